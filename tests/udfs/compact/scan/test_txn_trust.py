"""A `.txnindex` has no checksum: its entries decide nothing, and an entry that the log contradicts is called wrong."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from lastkey.jobs.archive.listing import list_archive
from lastkey.jobs.command import cli
from lastkey.jobs.command.config import Config
from lastkey.jobs.compact.plan_inputs import input_from_archive
from lastkey.jobs.lookup.partitions import archived_partitions
from lastkey.jobs.topics import EVERY_TOPIC
from lastkey.jobs.verify.plan_checks import plan_archived
from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.side_files import transaction_index
from lastkey.udfs.compact.compact_partition import compact_partition
from lastkey.udfs.compact.plan import CleanSettings, Limits, PartitionResult
from lastkey.udfs.lookup.queries import Queries, lookup
from lastkey.udfs.segments import SideFile
from lastkey.udfs.storage import open_root
from lastkey.udfs.verify.partition import check_partition
from tests.builders.drawn import Drawn, logs
from tests.builders.folders import Archived, Outcome, compact, lay_out, make_plan
from tests.builders.logs import write_partition
from tests.builders.plans import changed, made_plan
from tests.builders.sources import read
from tests.reference.cleaner import replay
from tests.reference.producer_state import State

NOW_MS = 1_800_000_000_000
# Two committed records (0, 1), an aborted transaction (3, 4), another producer's, open across it (5 to 9)
LOG = (
    "{pid=1 txn} a=1 b=2 | {pid=1 commit} | {pid=1 txn} c=3 d=4 | {pid=2 txn} e=5 | {pid=1 abort} | {pid=1 txn} f=6"
    " | {pid=1 commit} | {pid=2 abort} || g=7 || h=8"
)
ENTRIES = [(0, 1, 3, 6, 5), (0, 2, 5, 9, 10)]  # version, producer, first, marker, last stable
SURVIVE = [0, 1, 2, 6, 7, 8, 9, 10, 11]
FIELDS = {"producer_id": 2, "first_offset": 10, "last_offset": 18, "last_stable_offset": 26}
SIZE = 34


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_partition(tmp_path / "archive" / "t-0", LOG)
    assert transaction_index.read(index_path(tmp_path / "archive").read_bytes(), "").tolist() == ENTRIES
    return tmp_path / "archive"


def index_path(root: Path) -> Path:
    return root / "t-0" / "00000000000000000000.txnindex"


def change(root: Path, row: int, name: str, value: int) -> None:
    data = bytearray(index_path(root).read_bytes())
    struct.pack_into(">q", data, row * SIZE + FIELDS[name], value)
    index_path(root).write_bytes(bytes(data))


def compacted(root: Path) -> tuple[PartitionResult, list[int]]:
    """Compact an archive; return the result, and the offsets that survive."""
    archived = list_archive(open_root(str(root)), lambda _: True).partitions["t", 0]
    store = root.parent / "store"
    plan = made_plan(
        topic="t", partition=0, store_uri=str(store), folder="segments/t-0/1-run",
        high_watermark=None, sealed=False, force=True, dry_run=False, now_ms=NOW_MS, settings=CleanSettings(),
        limits=Limits(), secret=(1, 2), given=input_from_archive(archived),  # type: ignore[arg-type]
    )  # fmt: skip
    result = compact_partition(plan)
    assert result.status == "cleaned", result.problem
    logs = [(store if s.root == "store" else root) / s.path for s in result.log.segments]
    return result, [offset for log in logs for offset in open_segment(log).to_arrow(["offset"])["offset"].to_pylist()]


def verified(root: Path) -> list[tuple[int, str, str]]:
    archived = list_archive(open_root(str(root)), lambda _: True).partitions["t", 0]
    problems = check_partition(plan_archived(archived, Config(), sealed=False)).problems
    assert {(p.kind, p.path) for p in problems} <= {("index", "t-0/00000000000000000000.txnindex")}
    return [(p.position, p.expected, p.found) for p in problems]


def test_intact_transaction_index_is_trusted(root: Path) -> None:
    result, offsets = compacted(root)
    assert offsets == SURVIVE
    assert not result.notes
    assert verified(root) == []


WRONG = [
    (0, "first_offset", 0, "a first offset above 2"),  # the two committed records would go
    (0, "first_offset", 2, "a first offset above 2"),
    (0, "first_offset", -1, "a first offset above 2"),
    (0, "first_offset", 4, "a first offset up to 3"),  # half of the aborted ones would come back
    (0, "first_offset", 2**63 - 1, "a first offset up to 3"),
    (1, "first_offset", 6, "a first offset up to 5"),
    (1, "first_offset", -7, "a first offset of 0 or more"),
    (0, "last_offset", 8, "marker"),
    (1, "last_offset", 6, "marker"),
    (1, "last_offset", -1, "marker"),
    (0, "producer_id", 2, "marker"),
    (1, "producer_id", -1, "marker"),
    (0, "last_stable_offset", 7, "stable offset"),  # a search would end before the other transaction
    (0, "last_stable_offset", -1, "stable offset"),
    (1, "last_stable_offset", 2**63 - 1, "stable offset"),
]


@pytest.mark.parametrize(("row", "name", "value", "message"), WRONG)
def test_index_entry_with_a_wrong_field_is_ignored_and_reported(
    root: Path, row: int, name: str, value: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(root, row, name, value)
    result, offsets = compacted(root)
    assert offsets == SURVIVE
    notes = [note for note in result.notes if f"t-0/00000000000000000000.txnindex at byte {row * SIZE}: index" in note]
    assert notes and message in notes[0] and notes[0].endswith("; the log decides")
    problems = [problem for problem in verified(root) if problem[0] == row * SIZE]
    assert message in problems[0][1]
    assert cli.main(["reindex", str(root), "--check", "--no-progress"]) == 3
    out = capsys.readouterr().out
    assert f"t-0/00000000000000000000.txnindex: wrong at byte {row * SIZE} (entry {row})" in out


@pytest.mark.parametrize(
    ("row", "name", "value", "message"),
    [
        (1, "first_offset", 4, "a first offset of 5"),  # a batch of another producer lies there
        (0, "last_stable_offset", 4, "a last stable offset of 5"),
    ],
)
def test_index_entry_of_a_complete_log_equals_the_replayed_entry(
    root: Path, row: int, name: str, value: int, message: str
) -> None:
    """The difference is harmless, but the log is complete, so the difference has no explanation."""
    change(root, row, name, value)
    assert compacted(root)[1] == SURVIVE
    assert [(position, expected) for position, expected, _ in verified(root)] == [(row * SIZE, message)]
    assert cli.main(["reindex", str(root), "--check", "--no-progress"]) == 3


@pytest.mark.long
def test_flipped_bit_in_the_index_changes_no_decision(root: Path) -> None:
    right, draw = index_path(root).read_bytes(), random.Random(3)
    for _ in range(60):
        data = bytearray(right)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        index_path(root).write_bytes(bytes(data))
        assert compacted(root)[1] == SURVIVE
        assert verified(root)


@pytest.mark.parametrize(("row", "name", "value", "message"), [*WRONG, (0, "", 0, "")])
def test_readers_ignore_the_transaction_index(root: Path, row: int, name: str, value: int, message: str) -> None:
    """The data source, and look-ups of committed data, use the markers in the log."""
    if name:
        change(root, row, name, value)
    else:
        index_path(root).unlink()
    committed = read("kafka_log", root, isolationLevel="read_committed")["offset"].to_pylist()
    assert committed == [0, 1, 7, 10, 11]
    (plan,) = archived_partitions(str(root), EVERY_TOPIC, [])
    queries = Queries(np.array([-1]), np.array([True]))
    assert lookup(plan, queries, committed=True).answers["answer_offset"].to_pylist() == [12]  # the end


def test_index_entry_may_begin_before_the_retained_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Offset 3 is missing. The archived entry has an earlier first offset, does not decide the transaction, and is
    copied unchanged to the new index.
    """
    root = tmp_path / "archive"
    text = (
        "{pid=1 txn} a=1 | {pid=1 commit} | {pid=1 txn base=4} c=3 | {pid=2 txn} e=5 | {pid=1 abort} | {pid=2 commit}"
    )
    write_partition(root / "t-0", f"{text} || g=7")
    assert transaction_index.read(index_path(root).read_bytes(), "").tolist() == [(0, 1, 4, 6, 5)]
    change(root, 0, "first_offset", 2)  # behind the marker at 1, where nothing is left
    change(root, 0, "last_stable_offset", 3)
    result, offsets = compacted(root)
    assert (offsets, result.notes) == ([0, 1, 5, 6, 7, 8], ())
    assert verified(root) == []
    made = root.parent / "store" / "segments/t-0/1-run/00000000000000000000.txnindex"
    assert made.exists() == bool([s for s in result.log.segments if s.txn_index_bytes])
    assert cli.main(["reindex", str(root), "--check", "--no-progress"]) == 0
    assert "txnindex: other_entries at byte 0 (entry 0)" in capsys.readouterr().out
    change(root, 0, "first_offset", 1)
    assert [p[1] for p in verified(root)] == ["a first offset above 1, its producer's previous marker"]
    assert cli.main(["reindex", str(root), "--check", "--no-progress"]) == 3


def test_abort_without_data_of_old_brokers_is_accepted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their entry begins at its own marker."""
    root = tmp_path / "archive"
    write_partition(root / "t-0", "{pid=1 txn} a=1 b=2 | {pid=1 commit} | {pid=1 abort} || g=7 || h=8")
    index_path(root).write_bytes(struct.pack(">hqqqq", 0, 1, 3, 3, 4))
    assert verified(root) == []
    result, offsets = compacted(root)
    assert (offsets, result.notes) == ([0, 1, 2, 3, 4, 5], ())
    assert cli.main(["reindex", str(root), "--check", "--no-progress"]) == 0
    assert "txnindex: other_entries" in capsys.readouterr().out
    change(root, 0, "first_offset", 4)
    assert [p[1] for p in verified(root)] == ["a first offset up to 3"]
    change(root, 0, "first_offset", 2)
    assert verified(root)


@pytest.mark.parametrize(("log_start", "cleaned"), [(0, False), (1, False), (2, True), (3, True), (4, True), (5, True)])
def test_transaction_that_began_below_the_log_start_is_accepted(log_start: int, cleaned: bool, tmp_path: Path) -> None:
    """A broker that recovers a log reads nothing far below its start, so its index lets such a transaction begin later.

    In a log with holes the reason may be a lost marker, but of records that are never read.
    """
    text = "{pid=1 txn} a=1 b=2 | {pid=1 txn base=4} c=3 | {pid=1 abort} || g=7 || h=8"
    write_partition(tmp_path / "a" / "t-0", text)
    (tmp_path / "a" / "log-start-offset-checkpoint").write_text(f"0\n1\nt 0 {log_start}\n")
    change(tmp_path / "a", 0, "first_offset", 4)
    if not cleaned:
        with pytest.raises(AssertionError, match="kind='transaction'"):
            compacted(tmp_path / "a")
        return
    result, survivors = compacted(tmp_path / "a")
    assert survivors == [5, 6, 7]
    [note] = result.notes
    assert note.endswith("the log decides")


@pytest.mark.parametrize("first", [2, 3, 4])
def test_committed_records_whose_marker_is_lost_are_not_dropped(first: int, tmp_path: Path) -> None:
    """The index knows: the ABORT at 4 ended another transaction, or none (brokers of before KAFKA-10702 note it)."""
    write_partition(tmp_path / "a" / "t-0", "{pid=1 txn} a=1 b=2 | {pid=1 abort base=4} || g=7 || h=8")
    change(tmp_path / "a", 0, "first_offset", first)
    with pytest.raises(AssertionError, match="kind='transaction'"):
        compacted(tmp_path / "a")


def log_files(outcome: Outcome) -> dict[str, bytes]:
    return {name: data for name, data in outcome.files().items() if name.endswith(".log")}


def with_indexes(archived: Archived, drawn: Drawn) -> Archived:
    """Add the `.txnindex` files that a broker would have written."""
    bases = [s.base_offset for s in drawn.segments]
    for txn in replay([b for s in drawn.segments for b in s.batches], State()):
        base = max(base for base in bases if base <= txn.last_offset)
        path = f"t-0/{base:020d}.txnindex"
        if path not in [file.path for file in archived.txn_indexes]:
            archived.txn_indexes.append(SideFile(str(archived.root), path, base))
        with (archived.root / path).open("ab") as file:
            file.write(
                struct.pack(">hqqqq", 0, txn.producer_id, txn.first_offset, txn.last_offset, txn.last_stable_offset)
            )
    return archived


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(drawn=logs())
def test_markers_decide_transactions_in_every_pass(tmp_path_factory: pytest.TempPathFactory, drawn: Drawn) -> None:
    """Clean logs again and again: without index files, and with damaged ones, the same logs result."""
    tmp = tmp_path_factory.mktemp("passes")
    archived, draw = with_indexes(lay_out(tmp / "archive", drawn.segments), drawn), random.Random(5)
    for number, now_ms in enumerate([*drawn.times, drawn.times[-1] + 10**9]):
        plan = make_plan(
            archived, tmp / f"store{number}", drawn.settings, now_ms=now_ms, log_start_offset=drawn.log_start_offset,
            sealed=drawn.sealed, null_keys="keep",
        )  # fmt: skip
        ours = compact(plan)
        if ours.result.status != "cleaned":
            return
        assert not [note for note in ours.result.notes if "txnindex" in note]
        without = compact(changed(plan, txn_indexes=(), store_uri=str(tmp / f"none{number}")))
        assert log_files(without) == log_files(ours)
        for file in plan.input.txn_indexes:
            path = Path(file.root) / file.path
            data = bytearray(path.read_bytes())
            right = bytes(data)
            for _ in range(3):
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(bytes(data))
            damaged = compact(changed(plan, store_uri=str(tmp / f"bad{number}-{file.offset}")))
            assert log_files(damaged) == log_files(ours)
            path.write_bytes(right)
        archived = ours.as_archive(tmp / f"pass{number}", snapshots=True)
