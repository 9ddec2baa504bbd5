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

from tests.attack.summary import pytest_addoption, pytest_terminal_summary  # noqa: F401 - hooks
from tests.builders.wheel import build_wheel, install
from tests.cheap_java import start_java_cheaply
from tests.golden import Case, golden
from tests.machine_load import MachineLoad
from tests.memory_files import keep_files_in_memory
from tests.processes import pytest_collection_modifyitems, pytest_xdist_auto_num_workers, pytest_xdist_make_scheduler  # noqa: F401 - hooks
from tests.unit import pytest_itemcollected, pytest_runtest_call, pytest_runtest_setup  # noqa: F401 - hooks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent

# The same examples in every run; HYPOTHESIS_PROFILE=explore draws new ones
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that prints the summary
        config.pluginmanager.register(MachineLoad())
        keep_files_in_memory()
        start_java_cheaply()


def pytest_collection() -> None:
    gc.disable()  # collected objects stay to the end: looking for garbage among them takes a sixth of the time


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def no_power_cut() -> Iterator[None]:
    """Disable fsync in this process: it takes milliseconds on a disk, and no test cuts the power. Descriptors that are
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
def spark(pytestconfig: pytest.Config) -> Iterator[SparkSession]:
    """Yield the one session of a test run, made as the jobs make theirs."""
    assert "not slow" not in pytestconfig.option.markexpr, "the quick tests start no session: mark this one slow"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))  # workers' too
    from lastkey.jobs.spark import session

    made = session.start("lastkey-tests")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command of an environment with the wheel, and with this run's packages."""
    return install(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="session")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Return the golden partitions by name. Read only."""
    return golden(tmp_path_factory)


@pytest.fixture(scope="session")
def now_ms(cases: dict[str, Case]) -> int:
    """Return a clock after all of them: the last one of their first passes."""
    return max(case.now_ms(1, p) for case in cases.values() for p in case.partitions)
