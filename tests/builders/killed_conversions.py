"""Conversions in forks that are killed at a moment: when a file is opened, named or dated, or batches are written."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from lastkey.jobs.archive.listing import list_archive
from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import ConvertOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.convert import job as convert
from lastkey.jobs.convert.job import ConvertReport
from lastkey.udfs import convert_log
from lastkey.udfs.storage import open_root
from tests.builders.trees import read_tree

CONFIG = parse_config({"job": {"engine": "threads"}})
EVENTS = ("open", "os.rename", "os.utime", "os.mkdir", "os.remove")


def run(source: Path, output: Path) -> ConvertReport:
    return convert.run(ConvertOptions(str(source), output=str(output), to="v3", config=CONFIG), Silent())


def killed_runs(archive: Path, work: Path, seed: int, cases: int) -> None:
    """Kill one run of each case twice, at drawn moments, and end it; print what happened, as JSON.

    Call it in a process of its own: its forks have all kernels.
    """
    run(archive, work / "undisturbed")
    moments = in_child(archive, work / "counted", None)
    expected = read_tree(work / "counted")
    draw, killed, kept = random.Random(seed), 0, 0
    for case in range(cases):
        output = work / f"case{case}"
        for _ in range(2):
            killed += in_child(archive, output, draw.randint(1, moments)) < 0
            files = read_tree(output) if output.exists() else {}
            for one in list_archive(open_root(str(output)), lambda _: True).partitions.values() if files else ():
                whole = {path: data for path, data in expected.items() if path.startswith(f"{one.path}/")}
                assert {path: data for path, data in files.items() if path.startswith(f"{one.path}/")} == whole
            if not any(path.endswith(".part") for path in files) and len(files) == len(expected):
                break  # it ended before that moment
        else:
            kept += sum(p.kept for p in run(archive, output).partitions)
        assert read_tree(output) == expected == read_tree(work / "undisturbed")
    print(json.dumps({"moments": moments, "killed": killed, "kept": kept}))


def in_child(archive: Path, output: Path, moment: int | None) -> int:
    """Convert in a fork; return how many moments it had, or -1 if it was killed at one."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        passed = [0]

        def count() -> None:
            passed[0] += 1
            if passed[0] == moment:
                os.kill(os.getpid(), signal.SIGKILL)

        _count(count, str(output))
        code = run(archive, output).exit_code
        os.write(write, b"%d" % passed[0])
        os._exit(code)
    os.close(write)
    message = os.read(read, 100)
    os.close(read)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), status
    return int(message) if status == 0 else -1


def _count(count: Callable[[], None], output: str) -> None:
    def hook(event: str, given: tuple[object, ...]) -> None:
        if event in EVENTS and output in str(given[0]):
            count()

    sys.addaudithook(hook)
    real = convert_log.crc32c_extend

    def extend(*given: object) -> int:
        count()
        return real(*given)  # type: ignore[arg-type]

    convert_log.crc32c_extend = extend  # type: ignore[assignment]
