"""A side file that is unreadable because of a disk failure or its mode may be intact and readable later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.command.cli import main
from lastkey.logformat.names import segment_file
from lastkey.logformat.side_files import producer_snapshot
from lastkey.logformat.side_files.producer_state import ProducerState
from tests.builders.damage import NOW_MS, SEGMENT_OFFSETS, Partition, build
from tests.builders.faults import Fault, faults, happened
from tests.builders.trees import read_tree, tree

pytestmark = pytest.mark.slow

_OF_FOLDER = (
    f"t-0/{segment_file(SEGMENT_OFFSETS, 'index')}", f"t-0/{segment_file(SEGMENT_OFFSETS, 'timeindex')}",
    f"t-0/{segment_file(SEGMENT_OFFSETS, 'txnindex')}", f"t-0/{segment_file(3 * SEGMENT_OFFSETS, 'snapshot')}",
    "t-0/leader-epoch-checkpoint", "t-0/partition.metadata",
)  # fmt: skip
_OF_ROOT = (
    "cleaner-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint", "meta.properties",
)  # fmt: skip
_TOML = """
[defaults]
"cleanup.policy" = "compact"
"min.cleanable.dirty.ratio" = 0.0
"index.interval.bytes" = 0
"""


@pytest.fixture
def part(tmp_path: Path) -> Partition:
    """With every side file that there is."""
    part = build(tmp_path / "archive")
    (part.folder / segment_file(SEGMENT_OFFSETS, "txnindex")).write_bytes(b"")
    snapshot = producer_snapshot.write(ProducerState().entries())
    for number in range(1, 4):
        (part.folder / segment_file(number * SEGMENT_OFFSETS, "snapshot")).write_bytes(snapshot)
    (part.folder / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg\n")
    for name, offset in (("cleaner", 12), ("log-start", 0), ("replication", 48)):
        (part.root / f"{name}-offset-checkpoint").write_text(f"0\n1\nt 0 {offset}\n")
    (part.root / "meta.properties").write_text("version=1\ncluster.id=AAAAAAAAAAAAAAAAAAAAAg\nnode.id=1\n")
    (tmp_path / "settings.toml").write_text(_TOML)
    return part


def _compact(part: Partition, store: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    words = ["compact", str(part.root), "--store", str(store), "--now", str(NOW_MS)]
    code = main([*words, "--config", str(part.root.parent / "settings.toml"), "--json"])
    return code, json.loads(capsys.readouterr().out)


def _made(store: Path) -> dict[str, bytes]:
    files = read_tree(store / "segments")
    return {path.rpartition("/")[2]: data for path, data in files.items() if "manifest" not in path}


@pytest.mark.parametrize("error", ["EIO", "EACCES"])
@pytest.mark.parametrize("name", [*_OF_FOLDER, *_OF_ROOT])
def test_compact_reports_its_partition_as_uncleanable(
    part: Partition, tmp_path: Path, name: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A generation made without the file would keep its errors: late epochs, forgotten producers, no topic id, records
    below the log start. The next run, which can read the file, leaves the same as an undisturbed one.
    """
    with faults(tmp_path, Fault("open", str(part.root / name), error=error, times=None)):
        code, report = _compact(part, part.store, capsys)
    assert happened(tmp_path)[0] > 0
    (partition,) = report["partitions"]
    problem = partition["problem"]
    assert (code, partition["status"]) == (3, "uncleanable")
    assert (problem["kind"], problem["path"]) == ("unreadable", name)
    assert not _made(part.store)
    assert _compact(part, part.store, capsys)[0] == 0
    assert _compact(part, tmp_path / "undisturbed", capsys)[0] == 0
    assert _made(part.store) == _made(tmp_path / "undisturbed") != {}


@pytest.mark.parametrize("name", [name for name in _OF_FOLDER if not name.endswith("metadata")])
def test_compact_ignores_a_damaged_side_file(
    part: Partition, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (part.root / name).write_bytes(b"\xff" * 7)
    assert _compact(part, part.store, capsys)[0] == 0


@pytest.mark.parametrize("name", [name for name in _OF_FOLDER if name.endswith(("txnindex", "snapshot", "checkpoint"))])
@pytest.mark.parametrize("times", [1, None])
def test_reindex_does_not_replace_an_unreadable_side_file(
    part: Partition, tmp_path: Path, name: str, times: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Side files of a compacted log contain more than the remaining log. A file that the second attempt can read is
    kept too.
    """
    (part.folder / "leader-epoch-checkpoint").write_text("0\n2\n1 0\n3 2\n")
    before = tree(part.folder)
    with faults(tmp_path, Fault("open", str(part.root / name), error="EIO", times=times)):
        code = main(["reindex", str(part.root), "--in-place", "--json"])
    assert happened(tmp_path)[0] > 0
    report = json.loads(capsys.readouterr().out)
    assert tree(part.folder)[name.removeprefix("t-0/")] == before[name.removeprefix("t-0/")]
    outcomes = {f["path"]: (f["status"], f["reason"]) for p in report["partitions"] for f in p["files"]}
    if times is None or not name.endswith("checkpoint"):
        assert (code, outcomes[name]) == (3, ("impossible", "unreadable"))
    else:
        assert outcomes[name][0] == "same"


def test_a_lookup_in_a_store_continues_without_damaged_epochs(
    part: Partition, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A generation's damaged epochs cost a note and no answer."""
    words = ["--config", str(tmp_path / "settings.toml"), "--now", str(NOW_MS)]
    assert main(["compact", str(part.root), "--store", str(part.store), *words]) == 0
    [epochs] = part.store.glob("segments/t-0/*/leader-epoch-checkpoint")
    capsys.readouterr()

    def look() -> tuple[list[str], list[dict[str, Any]]]:
        assert main(["lookup", "--store", str(part.store), "--offset", "5", "--time", "latest", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        return report["notes"], report["partitions"][0]["answers"]

    notes, answers = look()
    assert notes == []
    assert [answer["leader_epoch"] for answer in answers] == [None, 3]  # an offset's is not asked for
    epochs.write_bytes(b"0\n2\n3 0\n")
    notes, without = look()
    assert len(notes) == 1
    assert str(epochs.relative_to(part.store)) in notes[0]
    assert "leader epochs unknown" in notes[0]
    assert without == [answer | {"leader_epoch": None} for answer in answers]
