"""A store of some logs, restored: the report as JSON and as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.builders.logs import write_partition
from tests.builders.place import Place

ENDS = {  # logs by how they end
    "plain-0": "a=1 b=2 | c=3",
    "marker-0": "{pid=1 txn} a=1 | {pid=1 commit}",
    "aborted-0": "b=1 | {pid=1 txn} a=1 | {pid=1 abort}",
    "emptied-0": "a=1 | b=2 | {last=5}",
    "sparse-0": "{codec=zstd last=9} a=1 b=2@4",
    "nothing-0": "{last=5}",
}


def restore_logs(tmp_path: Path, capsys: pytest.CaptureFixture[str], logs: dict[str, str], *words: str) -> Any:
    """Compact these logs, restore them, and return the report in JSON and as text."""
    place = Place(tmp_path, capsys)
    place.archive.rmdir()
    for name, text in logs.items():
        write_partition(place.archive.parent / name, text)
    for path in place.archive.parent.glob("bare-*/partition.metadata"):
        path.unlink()
    archive, store = str(place.archive.parent), str(place.store)
    named = ["--topics", "*", "--cleanup-policy", "compact", "--force"]
    assert place.run("compact", archive, "--store", store, *named, *(words or ["--sealed"]))[0] == 0
    code, output = place.run("restore", "--store", store, "--output", str(tmp_path / "text"))
    report = json.loads(place.run("restore", "--store", store, "--output", str(tmp_path / "json"), "--json")[1])
    assert (code, report["exit_code"]) == (0, 0)
    return report, output
