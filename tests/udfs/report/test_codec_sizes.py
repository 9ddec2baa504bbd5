"""Bytes with each codec: exact where every batch is drawn, within the stated bound where a sample is."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from lastkey.logformat.layout import CODEC_NAMES
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.report import codec_sizes
from lastkey.udfs.report.codec_sizes import CodecBytes, sum_of_logs
from lastkey.udfs.report.measure_partition import ProfilePlan, profile_partition
from tests.builders.folders import compact, lay_out, make_plan
from tests.builders.plans import changed
from tests.reference.cleaner import Segment, Settings
from tests.reference.log import COMMIT, GZIP, NONE, Batch, data_batch, marker_batch

WORDS = [b"%x" % (i * 2654435761 % 2**24) for i in range(500)]


def batches(n: int, seed: int = 1) -> list[Batch]:
    """Return gzip batches of 1 to 30 records with keys of their own, which compress well, badly, or not."""
    drawn, out, offset = random.Random(seed), [], 0
    for i in range(n):
        rows = []
        for _ in range(drawn.randrange(1, 30)):
            words = WORDS[: drawn.choice([3, 30, 500])]
            noise = drawn.randbytes(40 if i % 9 == 0 else 0)
            rows.append((1000, b"%d" % (offset + len(rows)), b" ".join(drawn.choices(words, k=20)) + noise))
        out.append(data_batch(offset, rows, codec=GZIP if i % 4 else NONE))
        offset += len(rows)
    return out


def planned(tmp_path: Path, of: list[Batch]) -> PartitionPlan:
    archived = lay_out(tmp_path / "archive", [Segment(0, tuple(of), 1000)])
    return make_plan(archived, tmp_path / "store", Settings(), now_ms=10**6, log_start_offset=0, sealed=True)


def estimates(plan: PartitionPlan, *, compacted: bool = True) -> dict[str, CodecBytes]:
    profile = profile_partition(ProfilePlan(changed(plan, dry_run=True), compacted))
    assert profile.problem is None
    return {estimate.codec: estimate for estimate in profile.codec_bytes}


def bytes_of_a_compaction(plan: PartitionPlan, codec: str) -> int:
    new = replace(plan.policy.settings, compression_type=codec, recompress=True)  # type: ignore[arg-type]
    return compact(changed(plan, settings=new, folder=codec)).result.work.bytes_after


@pytest.mark.parametrize("compacted", [True, False])
def test_predicted_size_of_all_batches_equals_that_of_a_compaction(tmp_path: Path, compacted: bool) -> None:
    of_producer = {"producer_id": 3, "producer_epoch": 1, "base_sequence": 7, "transactional": True}
    first = batches(100)
    end = first[-1].last_offset + 1
    data = data_batch(end, [(5, b"a", b"1" * 50)], **of_producer)
    plan = planned(tmp_path, [*first, data, marker_batch(end + 1, 3, COMMIT, timestamp=6, epoch=1)])
    estimated = estimates(plan, compacted=compacted)
    assert list(estimated) == list(CODEC_NAMES)
    for codec, estimate in estimated.items():
        assert (estimate.bytes, estimate.error_bytes) == (bytes_of_a_compaction(plan, codec), 0)


@pytest.mark.parametrize("seed", range(4))
def test_predicted_size_of_a_sample_is_within_its_error_bound(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(tmp_path, batches(3000, seed))
    exact = {}
    for n in (1 << 30, 256):
        monkeypatch.setattr(codec_sizes, "_SAMPLE_BATCHES", n)
        estimated = estimates(plan)
        exact = exact or estimated
    assert estimated == estimates(plan), "a report is repeatable"
    for codec in CODEC_NAMES[1:]:
        assert 0 < estimated[codec].error_bytes < 0.05 * estimated[codec].bytes
        assert abs(estimated[codec].bytes - exact[codec].bytes) <= estimated[codec].error_bytes
    assert estimated["none"] == exact["none"]
    assert exact["zstd"].bytes == bytes_of_a_compaction(plan, "zstd")


def test_single_sampled_batch_gives_a_wide_error_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(tmp_path, batches(20))
    monkeypatch.setattr(codec_sizes, "_SAMPLE_BYTES", 1)
    assert estimates(plan)["zstd"].error_bytes > 0.9 * (estimates(plan)["zstd"].bytes - 20 * 61)


def test_single_large_batch_is_always_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch, a third of the log, compresses to almost nothing; if a sample missed it, the ratio would be wrong."""
    of = batches(600)
    end = of[-1].last_offset + 1
    plan = planned(tmp_path, [*of, data_batch(end, [(1000, b"large", bytes(200_000))])])
    monkeypatch.setattr(codec_sizes, "_SAMPLE_BATCHES", 100)
    for codec, estimate in estimates(plan).items():
        assert estimate.error_bytes < 0.1 * estimate.bytes
        assert abs(estimate.bytes - bytes_of_a_compaction(plan, codec)) <= estimate.error_bytes


def test_predicted_sizes_of_logs_are_added() -> None:
    sizes = tuple(CodecBytes(codec, 100, 3) for codec in CODEC_NAMES)
    other = tuple(CodecBytes(codec, 50, 4) for codec in CODEC_NAMES)
    assert sum_of_logs([(500, sizes), (500, other), (7, ())]) == tuple(CodecBytes(c, 157, 5) for c in CODEC_NAMES)
    assert sum_of_logs([(7, ())]) == ()
