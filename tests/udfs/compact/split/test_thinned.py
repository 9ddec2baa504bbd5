"""Thinned chunks: the rewrite makes of them what one task makes of the log, and does not read the log."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lastkey.logformat.batches.bodies import SOFT_BYTES
from lastkey.logformat.errors import LogFormatError
from lastkey.udfs.compact.plan import PartitionPlan, chunk_buffer
from lastkey.udfs.compact.scan.analyse import analyse
from lastkey.udfs.compact.scan.scan_partition import scan_all, scan_identity
from lastkey.udfs.compact.split.block_kernels import thin_bodies
from lastkey.udfs.compact.split.rewrite_split import RewrittenSplit, rewrite_split
from lastkey.udfs.compact.split.settle import settle, share_out
from lastkey.udfs.compact.split.splits import make_splits
from lastkey.udfs.compact.split.walk_split import Thinner, WalkedSplit, key_folder, walk_split
from tests.builders.folders import compact, lay_out, plan_of
from tests.builders.plans import changed
from tests.builders.splits import assert_same, assert_same_all_ways, compact_in_blocks
from tests.reference.cleaner import Segment, Settings
from tests.reference.log import (
    ABORT,
    COMMIT,
    GZIP,
    NONE,
    SNAPPY,
    ZSTD,
    Batch,
    Record,
    data_batch,
    marker_batch,
    with_timestamps,
)

NOW = 1_700_000_000_000
VALUE = b"some words of a value " * 12


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Return a list that tells of each chunk of a walk whether it was kept thinned."""
    found, end = [], Thinner.end

    def counted(self: Thinner) -> Any:
        found.append(bool(runs := end(self)))
        return runs

    monkeypatch.setattr(Thinner, "end", counted)
    yield found


def drawn_batch(draw: random.Random, offset: int, keys: list[bytes | None], common: bool) -> Batch:
    """Return a batch that mostly loses most of its records; `common`: as most producers write it."""
    offsets = sorted(draw.sample(range(offset, offset + 40), draw.randint(1, 25)))
    records = tuple(
        Record(
            at, NOW + draw.choice([0, 1, -5, -3000]), draw.choice(keys),
            draw.choice([VALUE, VALUE[: draw.randint(0, 200)], None, b""]),
            draw.choice([(), (), ((b"h", b"1"), (b"h", None))]),
        )
        for at in offsets
    )  # fmt: skip
    fields: dict[str, Any] = {"codec": draw.choice([NONE, GZIP, SNAPPY, ZSTD])}
    if not common:
        fields["append_time"] = draw.random() < 0.3
        fields["delete_horizon"] = draw.choice([None, None, NOW - 1, NOW, NOW + 1])
        fields["max_timestamp"] = NOW
    last = offsets[-1] + draw.choice([0, 0, 2])
    batch = Batch(offset if draw.random() < 0.5 else offsets[0], last, records, **fields)
    if fields.get("append_time") and fields["delete_horizon"] is not None:
        records = tuple(replace(r, timestamp=NOW) for r in records)
        return replace(batch, base_timestamp=fields["delete_horizon"], records=records).encoded()
    return with_timestamps(batch).encoded()


def drawn_plan(draw: random.Random, folder: Path) -> PartitionPlan:
    """Return the plan of a log of large batches over few keys."""
    keys: list[bytes | None] = [b"key %d" % i for i in range(draw.choice([3, 10, 60]))]
    keys += [None] if draw.random() < 0.2 else []
    segments, offset, common = [], draw.choice([0, 100]), draw.random() < 0.5
    for _ in range(draw.randint(1, 4)):
        batches = list[Batch]()
        for _ in range(draw.randint(1, 12)):
            kind = "data" if common else draw.choice(["data"] * 6 + ["txn", "legacy"])
            if kind == "legacy":
                batches.append(data_batch(offset, [(NOW, b"key 1", b"old")], magic=1))
            elif kind == "txn":
                pid, end = draw.randint(1, 3), draw.choice([ABORT, COMMIT])
                producer = {"producer_id": pid, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
                rows = [(NOW, draw.choice(keys), VALUE) for _ in range(draw.randint(1, 20))]
                batches.append(data_batch(offset, rows, codec=draw.choice([NONE, ZSTD]), **producer))
                batches.append(marker_batch(batches[-1].last_offset + 1, pid, end, timestamp=NOW))
            else:
                batches.append(drawn_batch(draw, offset, keys, common))
            offset = batches[-1].last_offset + 1
        segments.append(Segment(batches[0].base_offset, tuple(batches), NOW))
    size = sum(len(batch.data) for segment in segments for batch in segment.batches)
    plan = plan_of(
        lay_out(folder / "archive", segments), folder / "store",
        Settings(
            delete_retention_ms=draw.choice([0, 1000]),
            segment_bytes=draw.choice([1500, 1 << 30]),
            keep_null_keys=draw.random() < 0.5,
        ),
        now_ms=NOW, log_start_offset=segments[0].base_offset, sealed=True, null_keys=draw.choice(["keep", "drop"]),
        checkpoint=draw.choice([None, None, draw.randint(segments[0].base_offset, offset)]), force=True,
    )  # fmt: skip
    more: dict[str, Any] = draw.choice([{}, {}, {"compaction_strategy": "timestamp"}, {"retention_exact": True}])
    plan = changed(
        plan, force=plan.input.checkpoint is None, settings=replace(plan.policy.settings, retention_ms=2000, **more)
    )
    return changed(plan, limits=replace(plan.run.limits, chunk_bytes=max(size // draw.choice([1, 3, 8]), 1)))


@pytest.mark.parametrize("seed", range(6))
def test_drawn_logs_whose_records_mostly_go(tmp_path: Path, kept: list[bool], seed: int) -> None:
    draw = random.Random(seed)
    for i in range(6):
        assert_same_all_ways(drawn_plan(draw, tmp_path / str(i)), seed=seed)
    assert any(kept) and not all(kept)


def plan_for(folder: Path, *batches: Batch) -> PartitionPlan:
    """Return the plan of a log of one segment and one chunk."""
    return plan_of(
        lay_out(folder / "archive", [Segment(0, batches, NOW)]), folder / "store", Settings(), now_ms=NOW,
        log_start_offset=0, sealed=True, null_keys="keep",
    )  # fmt: skip


def of_keys(offset: int, keys: str, **fields: Any) -> Batch:
    """Return a batch with a record for each character, its key; "-" is no key."""
    return data_batch(offset, [(NOW, None if k == "-" else k.encode(), VALUE) for k in keys], **fields)


def walk_of(plan: PartitionPlan) -> tuple[WalkedSplit, Any]:
    """Walk a partition as one split; return what the walk gave, and a function that rewrites it."""
    analysis = analyse(plan, scan_all(plan, buffer := chunk_buffer(plan)), scan_identity(plan, buffer))
    (split,) = make_splits(analysis.sources, analysis.groups, 1)
    walked = walk_split(plan, analysis.sources, split, analysis.rules, analysis.cleanable.first_dirty_offset, 4, "walk")

    def rewrite() -> RewrittenSplit:
        settled = [settle(plan, [walked], share, 4, "settle") for share in share_out([walked], 4, 1 << 30, 1)]
        groups, aborts = {0: analysis.group(analysis.groups[0])}, analysis.kept_aborts
        return rewrite_split(
            plan, split, groups, frozenset({0}), analysis.sources, analysis.rules, aborts, walked, settled, "rewrite"
        )

    return walked, rewrite


TXN = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}


@pytest.mark.parametrize(
    ("batches", "keeps"),
    [
        ([of_keys(0, "aaab"), of_keys(4, "abaa", codec=ZSTD)], True),
        ([of_keys(0, "aaaa"), of_keys(4, "abaa")], True),  # nothing of the first one leaves
        ([of_keys(0, "cccd"), data_batch(4, [(NOW, k, None) for k in (b"a", b"a", b"b", b"b")])], True),
        ([of_keys(0, "aaa", **TXN), marker_batch(3, 1, ABORT, timestamp=NOW), of_keys(4, "abaaaa")], False),  # control
        ([of_keys(0, "c"), of_keys(1, "abaaaa")], False),  # the first one may be copied as it is
        ([of_keys(0, "aaab"), of_keys(4, "aaa-")], False),  # no key
        ([of_keys(0, "a", magic=1), of_keys(1, "abaaaa")], False),
        ([of_keys(0, "abcd"), of_keys(4, "efgfg")], False),  # most leaves
        ([of_keys(0, "abcda"), of_keys(5, "efghe")], False),  # they would fit the bytes of the chunk
        ([data_batch(0, [(NOW, b"ab"[i // 3 : i // 3 + 1], b"") for i in range(6)])], False),  # headers are larger
    ],
    ids=["plain", "all-go", "tombstones", "control", "all-leave", "no-key", "magic-1", "most-leave", "half", "small"],
)
def test_a_chunk_is_kept_where_nothing_else_of_it_can_be_asked_for(
    tmp_path: Path, batches: list[Batch], keeps: bool
) -> None:
    plan = plan_for(tmp_path, *batches)
    assert_same_all_ways(plan)
    walked, _ = walk_of(changed(plan, folder="alone"))
    assert [bool(runs) for runs in walked.thinned] == [keeps]


def test_headers_alone_are_not_kept_where_they_are_larger_than_their_batches(tmp_path: Path) -> None:
    """Nothing leaves the first chunk, and its batches have 71 bytes each."""
    batches = [data_batch(i, [(NOW, b"a", b"")]) for i in range(20)]
    plan = plan_for(tmp_path, *batches)
    plan = changed(plan, limits=replace(plan.run.limits, chunk_bytes=sum(len(batch.data) for batch in batches) // 2))
    assert_same_all_ways(plan)
    walked, _ = walk_of(changed(plan, folder="alone"))
    assert [chunk["entries"] for chunk in walked.chunks] == [0, 1]
    assert walked.thinned == ((), ())


def test_a_dry_run_keeps_nothing(tmp_path: Path) -> None:
    """It guesses sizes from whole bodies, as one task does."""
    plan = plan_for(tmp_path, of_keys(0, "aaab"), of_keys(4, "aaab"))
    assert walk_of(changed(plan, folder="written"))[0].thinned != ((),)
    assert walk_of(changed(plan, folder="dry", dry_run=True))[0].thinned == ((),)


def test_a_rewrite_does_not_read_the_log_of_a_chunk_that_was_kept(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, of_keys(0, "abab"), of_keys(4, "aaab"))
    walked, rewrite = walk_of(plan)
    assert walked.thinned[0]
    (before,) = rewrite().pieces
    (log,) = (tmp_path / "archive").glob("*/*.log")
    log.write_bytes(bytes(log.stat().st_size))
    (after,) = rewrite().pieces
    assert (after.digest, after.data.checksum, after.rows.checksum) == (
        before.digest, before.data.checksum, before.rows.checksum,
    )  # fmt: skip


@pytest.mark.parametrize(("value", "keeps"), [(b"a" * 200, True), (b"a" * 3000, False)], ids=["small", "large"])
def test_a_chunk_whose_batches_are_decompressed_in_several_runs(tmp_path: Path, value: bytes, keeps: bool) -> None:
    """The walk meets the last run first, and all runs share the bytes of the chunk: any one of the large ones fits."""
    pads, long = random.Random(0), (NOW, b"long", bytes(SOFT_BYTES // 2))
    batches = [
        data_batch(4 * i, [long, (NOW, b"pad", pads.randbytes(2000)), long, (NOW, b"%d" % i, value)], codec=ZSTD)
        for i in range(4)
    ]
    batches.append(data_batch(16, [(NOW, key, b"") for key in (b"long", b"long", b"pad")], codec=ZSTD))
    plan = plan_for(tmp_path, *batches)
    walked, _ = walk_of(changed(plan, folder="alone"))
    assert [len(runs) > 1 for runs in walked.thinned] == [keeps]
    assert_same(compact(plan), compact_in_blocks(changed(plan, folder="blocks"), at_once=False))


def test_a_bit_that_kept_records_or_headers_lose_is_noticed(tmp_path: Path) -> None:
    plan = plan_for(tmp_path, of_keys(0, "aaab"), of_keys(4, "aaab"))
    walked, rewrite = walk_of(plan)
    ((run,),) = walked.thinned
    file = Path(plan.run.store_uri) / key_folder(plan) / "walk"
    whole = file.read_bytes()
    for position in range(run.data.position, run.data.position + run.data.size):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        file.write_bytes(damaged)
        with pytest.raises(LogFormatError) as found:
            rewrite()
        assert found.value.kind == "readback"
    file.write_bytes(whole)
    rewrite()


def test_the_checksum_is_that_of_the_records_where_they_were_copied_from(tmp_path: Path) -> None:
    """A copy that goes wrong is noticed, because the checksum does not come of the copy."""
    plan = plan_for(tmp_path, of_keys(0, "aaab"), of_keys(4, "aaab"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lastkey.udfs.compact.split.walk_split.thin_bodies", _copied_wrong)
        _, rewrite = walk_of(plan)
    with pytest.raises(LogFormatError) as found:
        rewrite()
    assert found.value.kind == "readback"


def _copied_wrong(*args: Any) -> tuple[int, int]:
    size, checksum = thin_bodies(*args)
    args[6][size - 1] ^= 1  # the last byte that was copied
    return size, checksum
