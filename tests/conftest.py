"""Fixtures that several packages' tests share."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from tests.attack.summary import pytest_addoption, pytest_terminal_summary  # noqa: F401 - hooks
from tests.golden import Case, golden

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

ROOT = Path(__file__).resolve().parent.parent

# The same examples in every run; HYPOTHESIS_PROFILE=explore draws new ones
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two processes for whole folders, on two cores; no more, for each may hold a session and a broker: 3 GB.

    A file that is named runs in this process. `-n 0`, `-n 2` say otherwise.
    """
    named = any(".py" in argument for argument in config.args)
    return 0 if named or (os.cpu_count() or 1) < 2 else 2


class FromBothEnds(LoadFileScheduling):
    """The first process takes files from the front of the list, where those with Spark stand; others from the back.

    So one session is started, and a second one only where nothing else is left to do.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is not self.nodes[0]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FromBothEnds | None:
    return FromBothEnds(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection() -> None:
    gc.disable()  # what is collected stays to the end: to look for garbage in it is a sixth of the time it takes


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)  # of the tests that are chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with tests that need Spark come first."""
    with_spark = {item.path for item in items if item.get_closest_marker("spark")}
    items.sort(key=lambda item: item.path not in with_spark)


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """Nobody loses power here, and a disk takes milliseconds: this process's files are not flushed. What cannot be
    flushed, since it is not open, raises as ever. Child processes flush, Spark's and those of tests.
    """
    with mock.patch("os.fsync", lambda descriptor: os.fstat(descriptor) and None):
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one session of a test run, made as the jobs make theirs."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))  # workers' too
    from jobs.spark import session

    made = session.start("lastkey-tests")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """The golden partitions by name. Read only."""
    return golden(tmp_path_factory)


@pytest.fixture(scope="session")
def now_ms(cases: dict[str, Case]) -> int:
    """A clock after all of them: the last of their first passes."""
    return max(case.now_ms(1, p) for case in cases.values() for p in case.partitions)
