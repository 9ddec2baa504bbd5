"""Any log's profile against its slow twin, against what the twin of Kafka's cleaner leaves, and against a dry run."""

from __future__ import annotations

import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lastkey.udfs.compact.plan import Limits, PartitionPlan
from tests.builders.drawn import Drawn, logs
from tests.builders.folders import compact, lay_out, load, make_plan
from tests.builders.plans import changed
from tests.builders.profiles import profile
from tests.reference.cleaner import clean
from tests.reference.record_figures import LAST_TIME
from tests.reference.record_figures import profile as slow_profile

FIGURES = ("records", "null_keys", "control_records", "out_of_order", "max_lag_ms", "without_timestamp")


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(logs(), st.sampled_from([1 << 20, 300, 64]), st.sampled_from([None, None, 2**62, LAST_TIME, LAST_TIME + 1]))
def test_random_log_is_profiled_as_by_the_twin(
    tmp_path_factory: pytest.TempPathFactory, drawn: Drawn, chunk_bytes: int, far: int | None
) -> None:
    if far is not None:
        drawn = with_a_time(drawn, far)
    with tempfile.TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as tmp:
        archived = lay_out(Path(tmp) / "archive", drawn.segments)
        plan = make_plan(
            archived, Path(tmp) / "store", drawn.settings, now_ms=drawn.times[0], checkpoint=drawn.checkpoint,
            log_start_offset=drawn.log_start_offset, sealed=drawn.sealed, force=False, null_keys=drawn.null_keys,
            limits=Limits(chunk_bytes=chunk_bytes),
        )  # fmt: skip
        check_all_records(drawn, plan)
        check_cleaned(drawn, plan)


def with_a_time(drawn: Drawn, far: int) -> Drawn:
    """Change the first record's timestamp in the first batch whose records have their own timestamps."""
    for i, segment in enumerate(drawn.segments):
        for j, batch in enumerate(segment.batches):
            if batch.magic == 2 and batch.records and not batch.append_time and not batch.control:
                records = (replace(batch.records[0], timestamp=far), *batch.records[1:])
                changed = replace(batch, records=records, max_timestamp=max(r.timestamp for r in records)).encoded()
                batches = (*segment.batches[:j], changed, *segment.batches[j + 1 :])
                segments = list(drawn.segments)
                segments[i] = replace(segment, batches=batches)
                return replace(drawn, segments=tuple(segments))
    return drawn


def check_all_records(drawn: Drawn, plan: PartitionPlan) -> None:
    measured = profile(plan, compacted=False)
    figures, keys = slow_profile([list(s.batches) for s in drawn.segments])
    for ours, theirs in zip(measured.segments, figures, strict=True):
        assert [getattr(ours, n) for n in FIGURES] == [getattr(theirs, n) for n in FIGURES]
        ends = (min(theirs.times, default=None), max(theirs.times, default=None))
        assert (ours.min_timestamp_ms, ours.max_timestamp_ms) == ends
        assert {n: c.stored_bytes for n, c in ours.codecs.items()} == theirs.stored
    assert measured.distinct_keys == len(keys)
    assert [hot.records for hot in measured.hot_keys] == sorted(keys.values(), reverse=True)[:20]
    by_bucket = Counter[int]()
    for time in (time for segment in figures for time in segment.times):
        assert measured.times is not None
        by_bucket[time // measured.times.width_ms - measured.times.first] += 1
    assert by_bucket == ({i: n for i, n in enumerate(measured.times.counts) if n} if measured.times else {})


def check_cleaned(drawn: Drawn, plan: PartitionPlan) -> None:
    """Compare the live records with those that the twin leaves, and the sizes with those of a dry run."""
    settings = replace(plan.policy.settings, min_cleanable_dirty_ratio=-1.0)
    result = compact(changed(plan, dry_run=True, settings=settings)).result
    measured = profile(plan)
    if result.status == "uncleanable":
        assert result.problem is not None and result.problem.kind == "null_key"
        assert measured.total("null_keys") > 0
        return
    if result.status == "not_due":
        assert not any(s.cleaned for s in measured.segments)
        return
    assert measured.counters == result.work.counters
    assert measured.total("bytes_after") == result.work.bytes_after
    log = load(drawn.segments, drawn.log_start_offset, sealed=drawn.sealed)
    cleaned = clean(log, drawn.settings, drawn.checkpoint, drawn.times[0])
    left = {r.offset for s in cleaned.segments for b in s.batches if not b.control for r in b.records}
    for ours, segment in zip(measured.segments, drawn.segments, strict=True):
        offsets = [r.offset for b in segment.batches if not b.control for r in b.records]
        assert ours.records == len(offsets)
        assert ours.live_records == sum(offset in left for offset in offsets)
