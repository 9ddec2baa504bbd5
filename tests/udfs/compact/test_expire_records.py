"""`retention.exact`: expired records go out of segments that stay, and nothing else does."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.verdicts import NO_TIMESTAMP
from tests.builders.damage import flip
from tests.builders.folders import Archived, Outcome, archived_at, compact, golden_plan, lay_out, load, make_plan
from tests.builders.plans import changed
from tests.builders.splits import compact_in_blocks
from tests.builders.steps import at_step
from tests.golden import Case, case_names
from tests.reference.any_magic import decode_any
from tests.reference.cleaner import Segment, Settings, cleanable_range
from tests.reference.log import GZIP, SNAPPY, ZSTD, Batch, Record, data_batch, marker_batch


def decode_segments(plan: PartitionPlan) -> list[list[Batch]]:
    """Return the batches of each segment of the plan."""
    return [decode_any((Path(s.root) / s.path).read_bytes()) for s in plan.input.segments]


def batches_after(done: Outcome) -> list[list[Batch]]:
    """Return the batches of each segment of the generation."""
    return [decode_any(done.path(i).read_bytes()[: s.size_bytes]) for i, s in enumerate(done.result.log.segments)]


def open_from(plan: PartitionPlan) -> int:
    """Return the number of the first segment that must not change: the last one, or one with an open transaction."""
    segments = [
        Segment(s.base_offset, tuple(batches), 0)
        for s, batches in zip(plan.input.segments, decode_segments(plan), strict=True)
    ]
    end = cleanable_range(load(segments, 0), Settings(), None, plan.run.now_ms).first_uncleanable_offset
    return sum(s.base_offset < end for s in segments)


def data_records(batches: list[Batch]) -> list[Record]:
    return [r for b in batches if not b.control for r in b.records]


def times(batches: list[Batch]) -> list[int]:
    return sorted({r.timestamp for r in data_records(batches) if r.timestamp >= 0})


def exact(plan: PartitionPlan, oldest_ms: int, *, compacts: bool = False) -> PartitionPlan:
    settings = replace(
        plan.policy.settings,
        compacts=compacts,
        retention_ms=plan.run.now_ms - oldest_ms,
        retention_exact=True,
        null_keys="keep",
    )
    return changed(plan, settings=settings)


def young(records: list[Record], oldest_ms: int) -> list[Record]:
    return [r for r in records if not 0 <= r.timestamp < oldest_ms]


def check_other_records_unchanged(plan: PartitionPlan, done: Outcome, oldest_ms: int) -> None:
    """Check the records against the plain reader, and that control batches and offsets did not change."""
    was, after = decode_segments(plan), batches_after(done)
    removed = len([entry for entry in done.result.log.expired for _ in range(entry.segments)])
    closed = open_from(plan)
    expected = [r for batches in was[removed:closed] for r in young(data_records(batches), oldest_ms)]
    expected += [r for batches in was[closed:] for r in data_records(batches)]
    assert [r for batches in after for r in data_records(batches)] == expected
    assert [s.base_offset for s in done.result.log.segments] == [s.base_offset for s in plan.input.segments[removed:]]
    controls = [b for batches in was[removed:] for b in batches if b.control]
    assert [b for batches in after for b in batches if b.control] == controls
    for batches, left in zip(was[removed:], after, strict=True):
        if batches:
            assert left, "a segment became empty"
            assert left[-1].last_offset == batches[-1].last_offset
        ends = {b.last_offset: b for b in batches if b.magic == 2}  # a rebuilt batch of magic 0, 1 has another end
        for b in left:
            if b.last_offset in ends:
                before = ends[b.last_offset]
                assert _identity(b) == _identity(before)
                assert b.codec == before.codec or not b.records


def _identity(b: Batch) -> tuple[object, ...]:
    producer = (b.producer_id, b.producer_epoch, b.base_sequence)
    return b.base_offset, b.leader_epoch, b.transactional, b.control, *producer


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", case_names())
def test_exact_retention_of_golden_partitions_equals_the_twin(
    name: str, cases: dict[str, Case], tmp_path: Path
) -> None:
    """Use all codecs and magics; cut where a third of the times have passed, at the last and at the first of them."""
    case = cases[name]
    partition = case.partitions[0]
    plan = golden_plan(case, partition, 1, archived_at(case.folder / "input", partition), tmp_path)
    closed = [b for batches in decode_segments(plan)[: open_from(plan)] for b in batches]
    all_times = times(closed)
    if not all_times:  # magic 0: without timestamps no record is too old, and segments expire by their files
        oldest = plan.input.segments[0].mtime_ms + 1
        check_other_records_unchanged(plan, compact(exact(plan, oldest)), oldest)
        assert compact(exact(plan, oldest - 1)).result.status == "not_due"
        return
    for number, oldest in enumerate((all_times[len(all_times) // 3], all_times[-1], all_times[0])):
        mine = changed(exact(plan, oldest), folder=f"out-{number}")
        done = compact(mine)
        if len(data_records(closed)) == len(young(data_records(closed), oldest)) and not done.result.log.expired:
            assert done.result.status == "not_due", oldest  # a record exactly as old as the limit stays
            assert done.files() == {}
            continue
        assert done.result.status == "cleaned", done.result.problem
        check_other_records_unchanged(mine, done, oldest)
        assert not done.result.log.compacted
        assert done.result.work.counters["dropped_superseded"] == done.result.work.counters["null_keys"] == 0
        for i, segment in enumerate(done.result.log.segments):
            held = times(batches_after(done)[i])
            if segment.min_timestamp_ms >= 0:
                assert segment.min_timestamp_ms == min(held, default=NO_TIMESTAMP)


@pytest.mark.slow
@pytest.mark.parametrize("name", case_names())
def test_compaction_precedes_the_expiry_of_records(name: str, cases: dict[str, Case], tmp_path: Path) -> None:
    """The result is that of a plain compaction without the old records: no earlier value of a key reappears."""
    case = cases[name]
    partition = case.partitions[0]
    plan = golden_plan(case, partition, 1, archived_at(case.folder / "input", partition), tmp_path)
    plan = changed(plan, force=True, settings=replace(plan.policy.settings, null_keys="keep"))
    without = compact(changed(plan, folder="without"))
    assert without.result.status == "cleaned", without.result.problem
    end = without.result.log.first_dirty_offset
    cleaned_batches = [b for batches in batches_after(without) for b in batches]
    cleaned, rest = ([b for b in cleaned_batches if (b.last_offset < end) is side] for side in (True, False))
    all_times = times(cleaned)
    if not all_times:
        return
    oldest = all_times[len(all_times) // 2]
    outcomes = []
    for folder, way in (("one", compact), ("blocks", compact_in_blocks)):
        done = way(changed(exact(plan, oldest, compacts=True), folder=folder))
        assert done.result.status == "cleaned", done.result.problem
        kept = [b for batches in batches_after(done) for b in batches]
        start = done.result.log.log_start_offset  # whole segments went too
        expected = young(data_records(cleaned), oldest) + data_records(rest)
        assert data_records(kept) == [r for r in expected if r.offset >= start]
        outcomes.append(done)
    one, *others = outcomes
    for other in others:
        assert other.files() == one.files()
        assert other.result.work.counters == one.result.work.counters
        assert [replace(s, path="") for s in other.result.log.segments] == [
            replace(s, path="") for s in one.result.log.segments
        ]


NOW_MS = 2_000_000_000_000
DAY = 86_400_000


def drawn(rng: random.Random, root: Path) -> Archived:
    """Draw an archive: records of all ages in any order, with and without key, value and time; transactions that commit
    or abort.
    """
    segments, offset = [], 0
    for _ in range(rng.randint(2, 6)):
        base, batches = offset, []
        for _ in range(rng.randint(1, 5)):
            n = rng.randint(1, 6)
            records = [
                (
                    rng.choice([-1, NOW_MS - rng.randint(-2, 12) * DAY + rng.randint(-1, 1)]),
                    rng.choice([None, b"a", b"b", b"c"]),
                    rng.choice([None, b"v" * rng.randint(0, 300)]),
                )
                for _ in range(n)
            ]
            fields = {"codec": rng.choice([0, 0, GZIP, SNAPPY, ZSTD])}
            if rng.random() < 0.3:
                batches.append(data_batch(offset, records, transactional=True, producer_id=9, producer_epoch=0,
                                          base_sequence=offset, **fields))  # fmt: skip
                batches.append(marker_batch(offset + n, 9, rng.randint(0, 1), timestamp=NOW_MS))
                offset += n + 1
                continue
            if rng.random() < 0.3:
                fields |= {"append_time": True, "max_timestamp": NOW_MS - rng.randint(0, 12) * DAY}
            batches.append(data_batch(offset, records, **fields))
            offset += n
        segments.append(Segment(base, tuple(batches), NOW_MS - rng.randint(0, 20) * DAY))
    return lay_out(root, segments)


@pytest.mark.parametrize("seed", range(40))
def test_exact_retention_of_random_logs_equals_the_twin(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    archived = drawn(rng, tmp_path / "archive")
    oldest = NOW_MS - rng.randint(0, 12) * DAY
    plan = exact(make_plan(archived, tmp_path / "store", Settings(), now_ms=NOW_MS, log_start_offset=0), oldest)
    done = compact(plan)
    if done.result.status == "not_due":
        closed = [b for batches in decode_segments(plan)[: open_from(plan)] for b in batches]
        assert data_records(closed) == young(data_records(closed), oldest)
        return
    assert done.result.status == "cleaned", done.result.problem
    check_other_records_unchanged(plan, done, oldest)
    left = done.as_archive(tmp_path / "again", snapshots=False)
    plan = make_plan(left, tmp_path / "b", Settings(), now_ms=NOW_MS, log_start_offset=done.result.log.log_start_offset)
    again = compact(exact(plan, oldest)).result  # whole segments may go now, because their young records are gone
    assert again.work.counters.get("dropped_expired", 0) == 0


def write_aged_log(*ages: list[int], root: Path) -> Archived:
    """Write a segment for each list of ages in days, a batch for each record; add a last segment with a young
    record.
    """
    segments, offset = [], 0
    for of_segment in (*ages, [0]):
        batches = [
            data_batch(offset + i, [(NOW_MS - age * DAY, b"k%d" % (offset + i), b"v")])
            for i, age in enumerate(of_segment)
        ]
        segments.append(Segment(offset, tuple(batches), NOW_MS))
        offset += len(batches)
    return lay_out(root, segments)


def week(archived: Archived, store: Path, **fields: object) -> PartitionPlan:
    plan = make_plan(archived, store, Settings(), now_ms=NOW_MS, log_start_offset=0)
    return changed(exact(plan, NOW_MS - 7 * DAY), **fields)


def test_changed_segment_and_all_earlier_ones_are_written(tmp_path: Path) -> None:
    archived = write_aged_log([1, 1], [9, 1], [1, 1], [1, 1], root=tmp_path / "archive")
    done = compact(week(archived, tmp_path))
    assert [s.root for s in done.result.log.segments] == ["store", "store", "archive", "archive", "archive"]
    assert done.result.work.counters["dropped_expired"] == 1
    assert done.result.work.counters["batches_copied"] == done.result.work.counters["records_kept"] == 7
    assert done.path(0).read_bytes() == (tmp_path / "archive" / archived.segments[0].path).read_bytes()
    assert [s.min_timestamp_ms for s in done.result.log.segments] == [NOW_MS - DAY] * 4 + [-1]


def test_segments_with_recent_timestamps_are_not_read_again(tmp_path: Path) -> None:
    archived = write_aged_log([9, 1], [1, 1], [1, 1], root=tmp_path / "archive")
    plan = week(archived, tmp_path)
    for timestamp, read in ((NOW_MS - DAY, 2), (NOW_MS - 8 * DAY, 6), (-1, 6), (NO_TIMESTAMP, 2)):
        segments = (plan.input.segments[0], *(replace(s, min_timestamp_ms=timestamp) for s in plan.input.segments[1:]))
        done = compact(changed(plan, segments=segments, folder=f"out{timestamp}"))
        assert done.result.work.counters["records_read"] == read
    nothing_old = tuple(replace(s, min_timestamp_ms=NOW_MS) for s in plan.input.segments)
    assert compact(changed(plan, segments=nothing_old, folder="none")).result.status == "not_due"


def test_dry_run_lists_deletions(tmp_path: Path) -> None:
    archived = write_aged_log([9, 9], [1, 9], [1, 1], root=tmp_path / "archive")
    done, dry = compact(week(archived, tmp_path)), compact(week(archived, tmp_path, folder="dry", dry_run=True))
    assert dry.result.work.counters == done.result.work.counters
    assert dry.result.log.expired == done.result.log.expired
    assert [s.records for s in dry.result.log.segments] == [s.records for s in done.result.log.segments]
    assert not (tmp_path / "dry").exists()


def test_bytes_changed_after_the_scan_are_a_problem(tmp_path: Path) -> None:
    archived = write_aged_log([9, 1], [1, 1], root=tmp_path / "archive")
    path = tmp_path / "archive" / archived.segments[0].path
    with at_step("segments scanned", lambda: flip(path, path.stat().st_size - 1)):
        done = compact(week(archived, tmp_path))
    assert done.result.status == "uncleanable"
    assert done.result.problem is not None and done.result.problem.kind in ("changed", "crc")
    assert done.files() == {}
