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
from tests.machine_load import MachineLoad
from tests.memory_files import keep_files_in_memory
from tests.unit import pytest_itemcollected, pytest_runtest_call, pytest_runtest_setup  # noqa: F401 - hooks

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
    """Return two processes for whole folders on two cores; not more, as each may hold a session and a broker: 3 GB.

    A named file runs in this process. `-n 0` and `-n 2` overrule this.
    """
    named = any(".py" in argument for argument in config.args)
    return 0 if named or (os.cpu_count() or 1) < 2 else 2


class FromBothEnds(LoadFileScheduling):
    """Scheduler whose first process takes files from the front of the list, where those with Spark stand; others take
    them from the back. So one session is started, and a second one only if nothing else is left to do.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is not self.nodes[0]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FromBothEnds | None:
    return FromBothEnds(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that prints the summary
        config.pluginmanager.register(MachineLoad())
        keep_files_in_memory()


def pytest_collection() -> None:
    gc.disable()  # collected objects stay to the end: looking for garbage among them takes a sixth of the time


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)  # run on the selected tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with Spark first and those with Kafka last, so that each process starts one of the two; long files at
    both ends, so that no process waits long for the other where they meet.
    """
    marks: dict[Path, set[str]] = {}
    for item in items:
        marks.setdefault(item.path, set()).update(mark.name for mark in item.iter_markers())
    items.sort(key=lambda item: _place(marks[item.path]))


def _place(marks: set[str]) -> int:
    if "spark" in marks:
        return 0
    if "kafka" in marks:
        return 4
    return 1 if marks & {"attack", "airflow"} else 3 if marks & {"slow", "browser"} else 2


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """Flush no file of this process, since a disk takes milliseconds and no test cuts its power. Descriptors that are
    not open raise as ever. Child processes flush: Spark's and those of tests.
    """
    with mock.patch("os.fsync", lambda descriptor: os.fstat(descriptor) and None):
        yield


@pytest.fixture(scope="session", autouse=True)
def threads_unless_asked() -> Iterator[None]:
    """Let jobs in this process run in threads, unless a test names an engine: a session takes seconds and a gigabyte.
    Child processes run as users' do.
    """
    with mock.patch("lastkey.jobs.spark.engine.OF_WRITERS", "threads"):
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Yield the one session of a test run, made as the jobs make theirs."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))  # workers' too
    from lastkey.jobs.spark import session

    made = session.start("lastkey-tests")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Return the golden partitions by name. Read only."""
    return golden(tmp_path_factory)


@pytest.fixture(scope="session")
def now_ms(cases: dict[str, Case]) -> int:
    """Return a clock after all of them: the last one of their first passes."""
    return max(case.now_ms(1, p) for case in cases.values() for p in case.partitions)
