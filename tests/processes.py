"""The processes of a test run, and the assignment of test files to them."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.memory_files import memory_bytes

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.workermanage import WorkerController

# Files that mostly wait, for clusters, servers and processes of their own, and need no session: the longest first
BESIDE = (
    "tests/jobs/spark/test_cluster.py", "tests/jobs/spark/test_yarn.py", "tests/jobs/test_s3_access.py",
    "tests/airflow/", "tests/test_package.py", "tests/attack/", "tests/browser/",
)  # fmt: skip
_BESIDE_BYTES = 16 << 30  # memory: each process may hold a session and a broker, 3 GB


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return two processes for whole folders on two cores. A run that holds slow tests has a third one for BESIDE,
    where there is memory for it: those files leave half a core idle.

    A named file runs in this process. `-n 0` and `-n 2` overrule this.
    """
    named = any(".py" in argument for argument in config.args)
    if named or (os.cpu_count() or 1) < 2:
        return 0
    slow = config.option.markexpr in ("", "not bench")
    if slow:  # else each process would compile the same kernels, at the same time
        subprocess.run([sys.executable, "-m", "lastkey.jobs.warm_up"], cwd=config.rootpath, check=False)
    return 3 if slow and memory_bytes() >= _BESIDE_BYTES else 2


class FromBothEnds(LoadFileScheduling):
    """Scheduler whose first process takes files from the front of the list, where those with Spark stand; others take
    them from the back. So one session is started, and a second one only if nothing else is left to do. The third
    process begins with the files of BESIDE.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        place = self.nodes.index(node)
        beside = next((file for file in self.workqueue if file.startswith(BESIDE)), None)
        if place == 2 and beside is not None:
            self.workqueue.move_to_end(beside, last=False)
        elif place > 0:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FromBothEnds | None:
    return FromBothEnds(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(trylast=True)  # run on the selected tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with Spark first and those with Kafka last, so that each process starts one of the two; long files at
    both ends, so that no process waits long for the other where they meet. Leave out tests of clouds unless -m asks
    for them: their servers take minutes to install.
    """
    if items and "clouds" not in items[0].config.option.markexpr:
        items[:] = [item for item in items if item.get_closest_marker("clouds") is None]
    marks: dict[str, set[str]] = {}
    for item in items:
        marks.setdefault(_file(item), set()).update(mark.name for mark in item.iter_markers())
    items.sort(key=lambda item: _place(_file(item), marks[_file(item)]))


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _place(file: str, marks: set[str]) -> tuple[int, int]:
    if "kafka" in marks:
        return (0 if "spark" in marks else 4), 0
    for number, beside in enumerate(BESIDE):
        if file == beside or (file.startswith(beside) and "spark" not in marks):
            return 1, number
    if "spark" in marks:
        return 0, 0
    return (3 if "slow" in marks else 2), 0
