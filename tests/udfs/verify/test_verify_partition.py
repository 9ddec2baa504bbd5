"""The checker reports nothing for logs of brokers and of our compaction, and every difference of a generation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lastkey.jobs.archive.listing import list_archive
from lastkey.jobs.command.config import Config
from lastkey.jobs.compact.plan_inputs import input_from_archive
from lastkey.jobs.verify.plan_checks import plan_archived
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import segment_file
from lastkey.logformat.side_files import checkpoints
from lastkey.udfs.compact.compact_partition import compact_partition
from lastkey.udfs.compact.plan import CleanSettings, Limits, PartitionPlan, PartitionResult
from lastkey.udfs.segments import SideFile
from lastkey.udfs.storage import open_root
from lastkey.udfs.verify.blocks import Side, scan_headers
from lastkey.udfs.verify.findings import CheckPlan
from lastkey.udfs.verify.generation import GenerationPlan, check_generation
from lastkey.udfs.verify.parent import AllowedDrops, Differences, compare
from lastkey.udfs.verify.partition import check_partition
from tests.builders.damage import NOW_MS, START_MS, build, edit, flip
from tests.builders.plans import made_plan
from tests.builders.trees import files_in
from tests.golden import Case, case_names
from tests.reference import log
from tests.reference.log import Batch, data_batch, marker_batch

# -- what real brokers wrote


@pytest.mark.parametrize("name", case_names())
def test_golden_logs_have_no_problems(cases: dict[str, Case], name: str) -> None:
    for side in ("input", "expected1", "expected3"):
        root = open_root(str(cases[name].folder / side))
        partitions = list_archive(root, lambda _: True).partitions
        assert len(partitions) == len(cases[name].partitions)
        for archived in partitions.values():
            result = check_partition(plan_archived(archived, Config(), sealed=False))
            assert not result.problems and not result.not_checked
            assert result.batches and result.records


# -- a generation


def compacted(root: Path, store: Path, now_ms: int, settings: CleanSettings) -> tuple[PartitionPlan, PartitionResult]:
    (archived,) = list_archive(open_root(str(root)), lambda _: True).partitions.values()
    plan = made_plan(
        topic=archived.topic, partition=archived.partition, store_uri=str(store),
        folder="segments/p/1-run", high_watermark=None, sealed=False, force=True, dry_run=False, now_ms=now_ms,
        settings=settings, limits=Limits(), secret=(1, 2), given=input_from_archive(archived),  # type: ignore[arg-type]
    )  # fmt: skip
    result = compact_partition(plan)
    assert result.status == "cleaned", result.problem
    return plan, result


def generation(plan: PartitionPlan, result: PartitionResult, **changes: object) -> GenerationPlan:
    def ours(base: int, kind: str) -> str:
        return f"{plan.run.folder}/{segment_file(base, kind)}"

    segments = tuple(
        Segment(
            plan.run.store_uri if s.root == "store" else plan.input.segments[0].root, s.path, s.base_offset,
            s.size_bytes, s.mtime_ms,
            ours(s.base_offset, "index"), ours(s.base_offset, "timeindex"),
            ours(s.base_offset, "txnindex") if s.txn_index_bytes else None, plan.run.store_uri,
        )
        for s in result.log.segments
    )  # fmt: skip
    bases = [s.base_offset for s in result.log.segments if s.base_offset > result.log.log_start_offset]
    side = CheckPlan(
        topic=plan.input.topic, partition=plan.input.partition, name="p", store_uri=plan.run.store_uri,
        segments=segments,
        snapshots=tuple(SideFile(plan.run.store_uri, ours(b, "snapshot"), b) for b in [*bases, result.log.next_offset]),
        leader_epochs=SideFile(plan.run.store_uri, f"{plan.run.folder}/leader-epoch-checkpoint", 0),
        archived_epochs=plan.input.leader_epochs or (), generation=True,
        index_interval_bytes=plan.policy.settings.index_interval_bytes,
    )  # fmt: skip
    made = GenerationPlan(
        side=side, manifest=result.log.segments, folder=plan.run.folder, log_start_offset=result.log.log_start_offset,
        next_offset=result.log.next_offset, last_batch=result.log.last_batch,
        first_dirty_offset=result.cleanable.first_dirty_offset,
        end_offset=result.log.first_dirty_offset, now_ms=plan.run.now_ms,
        delete_retention_ms=plan.policy.settings.delete_retention_ms, null_keys=plan.policy.settings.null_keys,
        parent=plan.input.segments,
    )  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


ONE_OF_EACH = ("none-tomb-more", "txn-zstd", "txn-hang", "v0-gzip", "v1-lz4", "snappy-zipf", "idem-active")


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_generation_is_compared_with_its_parent(cases: dict[str, Case], tmp_path: Path, name: str) -> None:
    case = cases[name]
    (partition,) = case.partitions
    settings = CleanSettings(segment_bytes=case.settings["segment.bytes"], min_cleanable_dirty_ratio=0.0)
    root = case.folder / "input"
    plan, result = compacted(root, tmp_path / "store", case.now_ms(1, partition), settings)
    for memory in (1 << 30, 1 << 16):  # the keys in one part, and in several
        checked = check_generation(generation(plan, result, task_memory_bytes=memory))
        assert not checked.problems and not checked.not_checked
        assert checked.compared_records == sum(s.records for s in result.log.segments if s.cleaned)


@pytest.fixture
def made(cases: dict[str, Case], tmp_path: Path) -> tuple[PartitionPlan, PartitionResult]:
    case = cases["none-tomb"]
    settings = CleanSettings(segment_bytes=case.settings["segment.bytes"], min_cleanable_dirty_ratio=0.0)
    shutil.copytree(case.folder / "input", tmp_path / "archive")
    return compacted(tmp_path / "archive", tmp_path / "store", case.now_ms(1, case.partitions[0]), settings)


def written_log(plan: PartitionPlan, result: PartitionResult) -> Path:
    return Path(plan.run.store_uri) / result.log.segments[0].path


def test_files_that_contradict_the_manifest_are_problems(made: tuple[PartitionPlan, PartitionResult]) -> None:
    plan, result = made
    first = result.log.segments[0]
    for field, value in (
        ("records", 1), ("batches", 2), ("tombstones", 3), ("last_offset", 4), ("checksum", 5), ("max_timestamp_ms", 6),
        ("codecs", "gzip"), ("magics", "2,3"), ("next_offset", 7),
    ):  # fmt: skip
        manifest = (replace(first, **{field: value}), *result.log.segments[1:])
        problems = check_generation(generation(plan, result, manifest=manifest)).problems
        assert [(p.kind, p.path) for p in problems] == [("readback", first.path)], field
    wrong_end = check_generation(generation(plan, result, next_offset=result.log.next_offset + 1)).problems
    assert {p.kind for p in wrong_end} == {"readback", "side_file"}


def test_changed_leader_epoch_is_detected_by_the_checksum(made: tuple[PartitionPlan, PartitionResult]) -> None:
    plan, result = made
    edit(written_log(plan, result), 15, b"\x09")
    problems = check_generation(generation(plan, result)).problems
    assert [p.kind for p in problems] == ["readback"] and "checksum" in problems[0].expected


@pytest.mark.parametrize("held", [[(1, 0)], [], [(0, 0), (3, 10)], None])
def test_leader_epochs_that_contradict_the_archive_are_problems(
    made: tuple[PartitionPlan, PartitionResult], held: list[tuple[int, int]] | None
) -> None:
    """A copy of the archive's file that no compaction turns into these files; None: the file is empty. An older version
    wrote no checksum of it.
    """
    plan, result = made
    assert plan.input.leader_epochs == ((0, 0),)
    path = f"{plan.run.folder}/leader-epoch-checkpoint"
    (Path(plan.run.store_uri) / path).write_bytes(checkpoints.write_leader_epochs(held) if held is not None else b"")
    older = generation(plan, result, manifest=without_checksums(result))
    problems = check_generation(older)
    assert [(p.kind, p.path) for p in problems.problems] == [("side_file", path)]
    assert problems.problems[0].expected.startswith("leader epoch 0 at offset ")
    assert not check_generation(replace(older, side=replace(older.side, archived_epochs=()))).problems


@pytest.mark.parametrize(
    "epochs",
    [
        ((5, 0),),  # restored into another cluster, which began with epoch 5
        ((0, 10), (2, 30)),  # a broker that knows no epoch of what came before
        (),
    ],
)
def test_leader_epochs_shared_with_the_archive_are_no_problem(
    cases: dict[str, Case], tmp_path: Path, epochs: tuple[tuple[int, int], ...]
) -> None:
    """Regardless of the batches, no record was lost."""
    case = cases["none-tomb"]
    root = tmp_path / "archive"
    shutil.copytree(case.folder / "input", root)
    (file,) = root.rglob("leader-epoch-checkpoint")
    file.write_bytes(checkpoints.write_leader_epochs(epochs))
    settings = CleanSettings(segment_bytes=case.settings["segment.bytes"], min_cleanable_dirty_ratio=0.0)
    plan, result = compacted(root, tmp_path / "store", case.now_ms(1, case.partitions[0]), settings)
    assert plan.input.leader_epochs == epochs
    assert not check_generation(generation(plan, result)).problems


def test_an_epoch_that_begins_at_a_log_start_within_a_batch_is_no_problem(tmp_path: Path) -> None:
    """The copy's entry was moved up to it; the archive's may begin before."""
    part = build(tmp_path / "archive")
    (part.root / "log-start-offset-checkpoint").write_text("0\n1\nt 0 14\n")
    settings = CleanSettings(index_interval_bytes=0, min_cleanable_dirty_ratio=0.0)
    plan, result = compacted(part.root, tmp_path / "store", NOW_MS, settings)
    assert result.log.log_start_offset == 14
    own = tmp_path / "store" / plan.run.folder / "leader-epoch-checkpoint"
    own.write_bytes(checkpoints.write_leader_epochs([(3, 14)]))
    assert not check_generation(generation(plan, result, manifest=without_checksums(result))).problems


def without_checksums(result: PartitionResult) -> tuple[Segment, ...]:
    """Return the manifest as an older version wrote it, without checksums of side files."""
    return tuple(replace(row, side_files=None) for row in result.log.segments)


@pytest.mark.parametrize("kind", ["index", "timeindex", "snapshot", "leader-epoch-checkpoint", "log"])
def test_missing_files_are_problems(made: tuple[PartitionPlan, PartitionResult], kind: str) -> None:
    plan, result = made
    folder = Path(plan.run.store_uri) / plan.run.folder
    removed = folder / kind if kind == "leader-epoch-checkpoint" else files_in(folder, f"*.{kind}")[0]
    removed.unlink()
    checked = check_generation(generation(plan, result))
    assert any(p.path == f"{plan.run.folder}/{removed.name}" for p in checked.problems)
    assert checked.not_checked  # the parent


def test_index_of_a_generation_must_be_exact(made: tuple[PartitionPlan, PartitionResult]) -> None:
    """An archive's index may be sparser; one that we wrote may not."""
    plan, result = made
    index = (Path(plan.run.store_uri) / result.log.segments[2].path).with_suffix(".index")
    index.write_bytes(index.read_bytes()[8:])
    problems = check_generation(generation(plan, result)).problems
    assert {(p.kind, p.position) for p in problems if "rebuilds" in p.expected} == {("index", 0)}


def test_missing_parent_is_reported(made: tuple[PartitionPlan, PartitionResult]) -> None:
    plan, result = made
    checked = check_generation(generation(plan, result, parent_gone="vacuum took it"))
    assert not checked.problems and checked.compared_records == 0
    assert checked.not_checked == ("p: comparison with its source: vacuum took it",)
    end = plan.input.segments[-1].base_offset
    shorter = check_generation(generation(plan, result, parent=plan.input.segments[1:], parent_stays_from=end))
    assert not shorter.problems and "bytes when the generation was made" in shorter.not_checked[0]
    [unexplained] = check_generation(generation(plan, result, parent=plan.input.segments[1:])).problems
    assert (unexplained.kind, unexplained.path) == ("changed", plan.input.segments[0].path.rpartition("/")[0])
    [nothing_left] = check_generation(generation(plan, result, parent=())).problems
    assert (nothing_left.kind, nothing_left.path) == ("changed", "p")
    (Path(plan.input.segments[0].root) / plan.input.segments[0].path).unlink()
    gone = check_generation(generation(plan, result))
    assert not gone.problems and "unreadable" in gone.not_checked[0]


def test_damaged_parent_is_a_problem(made: tuple[PartitionPlan, PartitionResult]) -> None:
    plan, result = made
    log = Path(plan.input.segments[1].root) / plan.input.segments[1].path
    flip(log, 70)
    checked = check_generation(generation(plan, result))
    assert [(p.kind, p.path) for p in checked.problems] == [("crc", plan.input.segments[1].path)]
    assert checked.not_checked == ("p: comparison with its source, which has problems",)
    log.unlink()
    log.mkdir()  # it is there, and cannot be read
    assert [p.kind for p in check_generation(generation(plan, result)).problems] == ["unreadable"]


# -- differences, on small logs

PARENT = {0: [(START_MS, b"a", b"1"), (START_MS, b"b", b"2"), (START_MS, b"a", b"3"), (START_MS, b"c", None)]}


def make_side(root: Path, batches: list[Batch], mtime_ms: int = 0) -> Side:
    root.mkdir()
    data = b"".join(b.data for b in batches)
    (root / segment_file(0, "log")).write_bytes(data)
    segment = Segment(str(root), segment_file(0, "log"), 0, len(data), mtime_ms)
    return Side((segment,), 2**62)


def difference(
    tmp_path: Path, before: list[Batch], after: list[Batch], *, now_ms: int = START_MS, null_keys_stay: bool = False,
    mtime_ms: int = 0,
) -> Differences:  # fmt: skip
    parent, child = make_side(tmp_path / "parent", before, mtime_ms), make_side(tmp_path / "child", after, mtime_ms)
    reader = LogReader()
    rows, sizes = scan_headers(parent, reader)
    child_rows, _ = scan_headers(child, reader)
    rules = AllowedDrops(now_ms, 1000, null_keys_stay)
    return compare(parent, child, rows, child_rows, rules, 1 << 20, 1 << 24, sum(n for _, n, _ in sizes))


def kept(batch: Batch, *offsets: int, **changes: object) -> Batch:
    wanted = set(offsets)
    return replace(batch, records=tuple(r for r in batch.records if r.offset in wanted), **changes).encoded()  # type: ignore[arg-type]


def batch(**fields: object) -> Batch:
    return data_batch(0, PARENT[0], **fields)


def test_equal_logs_have_no_difference(tmp_path: Path) -> None:
    compared = difference(tmp_path, [batch()], [kept(batch(), 1, 2, 3)])
    assert not compared.problems and compared.compared_records == 3


def test_superseded_records_may_be_retained(tmp_path: Path) -> None:
    assert not difference(tmp_path, [batch()], [batch()]).problems


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_missing_record_is_reported_at_its_offset(tmp_path: Path, lost: int) -> None:
    compared = difference(tmp_path, [batch()], [kept(batch(), *({1, 2, 3} - {lost}))])
    assert [(p.kind, p.base_offset) for p in compared.problems] == [("readback", lost)]


def test_older_record_instead_of_the_last_is_reported(tmp_path: Path) -> None:
    compared = difference(tmp_path, [batch()], [kept(batch(), 0, 1, 3)])
    assert [p.base_offset for p in compared.problems] == [2]


def test_tombstone_may_be_removed_only_past_its_horizon(tmp_path: Path) -> None:
    before = [batch(delete_horizon=START_MS)]
    after = [kept(before[0], 1, 2)]
    assert not difference(tmp_path, before, after, now_ms=START_MS).problems
    shutil.rmtree(tmp_path / "parent")
    shutil.rmtree(tmp_path / "child")
    assert [p.base_offset for p in difference(tmp_path, before, after, now_ms=START_MS - 1).problems] == [3]


@pytest.mark.parametrize(("mtime_ms", "stays"), [(1000, False), (1001, True)])
def test_removal_of_a_tombstone_in_magic_1_is_checked(tmp_path: Path, mtime_ms: int, stays: bool) -> None:
    before = [replace(data_batch(i, [r], magic=1), max_timestamp=START_MS).encoded() for i, r in enumerate(PARENT[0])]
    after = [data_batch(i, [PARENT[0][i]]) for i in (1, 2)]
    compared = difference(tmp_path, before, after, mtime_ms=mtime_ms)
    assert [p.base_offset for p in compared.problems] == ([3] if stays else [])


@pytest.mark.parametrize(
    "changed",
    [
        {"timestamp": START_MS + 1}, {"key": b"B"}, {"value": b"other"}, {"value": None}, {"headers": ((b"h", b"x"),)},
    ],
)  # fmt: skip
def test_changed_record_is_reported(tmp_path: Path, changed: dict[str, object]) -> None:
    after = kept(batch(), 1, 2, 3)
    first = replace(after.records[0], **changed)  # type: ignore[arg-type]
    after = replace(after, records=(first, *after.records[1:])).encoded()
    compared = difference(tmp_path, [batch()], [after])
    assert [p.base_offset for p in compared.problems] == [1, 1]  # it is not as it was, and the one that was is lost


@pytest.mark.parametrize(
    "changed",
    [
        {"producer_id": 8}, {"producer_epoch": 1}, {"base_sequence": 5}, {"leader_epoch": 4}, {"last_offset": 4},
        {"transactional": True},
    ],
)  # fmt: skip
def test_changed_batch_is_reported(tmp_path: Path, changed: dict[str, object]) -> None:
    before = batch(producer_id=7, producer_epoch=0, base_sequence=0)
    follows = data_batch(9, [(START_MS, b"z", b"z")])
    compared = difference(tmp_path, [before, follows], [kept(before, 1, 2, 3, **changed), follows])
    assert compared.problems and {p.kind for p in compared.problems} == {"readback"}


def test_added_record_and_batch_are_reported(tmp_path: Path) -> None:
    more = data_batch(20, [(START_MS, b"new", b"x")])
    compared = difference(tmp_path, [batch()], [batch(), more])
    assert [p.base_offset for p in compared.problems] == [20, 20]
    shutil.rmtree(tmp_path / "parent")
    shutil.rmtree(tmp_path / "child")
    inside = [batch(), data_batch(30, PARENT[0])]
    compared = difference(tmp_path, inside, [batch(), more, data_batch(30, PARENT[0])])
    assert [p.base_offset for p in compared.problems] == [20, 20]


def test_removal_of_records_without_a_key_depends_on_the_setting(tmp_path: Path) -> None:
    before = [data_batch(0, [(START_MS, None, b"1"), (START_MS, b"b", b"2")])]
    after = [kept(before[0], 1)]
    assert not difference(tmp_path, before, after).problems
    shutil.rmtree(tmp_path / "parent")
    shutil.rmtree(tmp_path / "child")
    assert [p.base_offset for p in difference(tmp_path, before, after, null_keys_stay=True).problems] == [0]


def transaction(kind: int) -> list[Batch]:
    written = data_batch(
        0, [(START_MS, b"a", b"1")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
    )
    return [data_batch(0, [(START_MS, b"z", b"0")]), *_moved(written, 1), marker_batch(2, 7, kind, timestamp=START_MS)]


def _moved(b: Batch, offset: int) -> list[Batch]:
    records = tuple(replace(r, offset=offset) for r in b.records)
    return [replace(b, base_offset=offset, last_offset=offset, records=records).encoded()]


def test_aborted_records_may_be_removed(tmp_path: Path) -> None:
    before = transaction(0)
    assert not difference(tmp_path, before, [before[0], before[2]]).problems


def test_committed_records_may_not_be_removed(tmp_path: Path) -> None:
    before = transaction(1)
    assert [p.base_offset for p in difference(tmp_path, before, [before[0], before[2]]).problems] == [1]


@pytest.mark.parametrize("kind", [0, 1])
def test_marker_must_be_kept_until_its_records_are_removed(tmp_path: Path, kind: int) -> None:
    """Readers would return aborted records or miss committed ones."""
    before = transaction(kind)
    compared = difference(tmp_path, before, before[:2])
    assert [(p.base_offset, "decided" in p.found) for p in compared.problems] == [(1, True)]


@pytest.mark.long
def test_keys_that_exceed_the_table_take_several_rounds(tmp_path: Path) -> None:
    """Wrappers of magic 1 have no record count, so the walk is repeated for parts of the keys."""
    n = 70_000
    records = [(START_MS, b"%d" % i, b"") for i in range(n)]
    wrapper = data_batch(0, records, magic=1, codec=1)
    parent = make_side(tmp_path / "parent", [wrapper])
    child = make_side(tmp_path / "child", [kept(data_batch(0, records), *range(0, n, 2), base_offset=0)])
    rows, sizes = scan_headers(parent, LogReader())
    assert sizes[0][1] == 1
    compared = compare(parent, child, rows, rows, AllowedDrops(START_MS, 0, False), 1 << 24, 1 << 20, 1)
    assert compared.compared_records == n // 2
    assert compared.counts["lost"] == n // 2
    assert len([p for p in compared.problems if "last of its key" in p.found]) == 20


# Verify's reading of versions in a process of its own, because a read out of bounds may end the process
_VERSIONS_OF = """
import sys
from lastkey.logformat.listing import Segment
from lastkey.udfs.verify.blocks import Order, Side, blocks
listed = Segment(sys.argv[1], "00000000000000000000.log", 0, int(sys.argv[2]), 0)
side = Side((listed,), 1)
for block in blocks(side, (1, 2), 1 << 20, 1 << 20, Order("header", "version")):
    print(block.records.version.tolist())
"""


@pytest.mark.process
def test_excess_bits_of_a_varint_length_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Kafka's reader and in ours (`varint_kernels`): such a record was read and cleaned."""

    def with_a_long_length(*_: object) -> bytes:
        name = bytes([14 | 0x80, 0x80, 0x80, 0x80, 0x70]) + b"version"
        body = b"\0\0\0" + b"\x02k" + b"\x02v" + b"\x02" + name + b"\x10" + (5).to_bytes(8, "big")
        return bytes([2 * len(body)]) + body

    monkeypatch.setattr(log, "encode_record", with_a_long_length)
    side = make_side(tmp_path / "log", [data_batch(0, [(START_MS, b"k", b"v")])])
    size = str(side.segments[0].size_bytes)
    completed = subprocess.run(
        [sys.executable, "-c", _VERSIONS_OF, str(tmp_path / "log"), size], capture_output=True, text=True, check=False
    )
    assert (completed.returncode, completed.stdout) == (0, "[5]\n"), completed.stderr
