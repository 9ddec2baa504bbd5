"""The whole compaction of one partition in one task: scan, decide, rewrite, read back.

The steps run in an order that survives a crash: read and check all input; decide; write new segments with their side
files into a folder that no table names; read back; flush. The driver makes the folder visible (`jobs.store.writing`).
The task reads each input byte twice (headers and checksums; records) and decompresses it once; it writes each output
byte once and reads it once.

The task runs the stages of a large partition one after the other (`split_stages`) in two cases: the keys do not fit its
memory, or `compaction.strategy` is not offset. These read and decompress the log once more. The rows between the stages
wait in a temporary file.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.udfs.compact.clean.clean_batches import Tally
from lastkey.udfs.compact.clean.deciders import TooManyKeys, check_versions
from lastkey.udfs.compact.clean.winner_kernels import NO_VERSION
from lastkey.udfs.compact.output.generation import Cleaned, remove_folder, write_generation
from lastkey.udfs.compact.output.segment_output import join_empty_groups, written_segment
from lastkey.udfs.compact.passes import (
    Clock,
    KeysLost,
    clean_by_yield,
    clean_everything,
    remove_records,
    with_what_is_old,
)
from lastkey.udfs.compact.plan import Extent, PartitionPlan, PartitionResult, Work, chunk_buffer
from lastkey.udfs.compact.scan.analyse import Analysis, analyse
from lastkey.udfs.compact.scan.scan_partition import if_nothing_expires, scan_all, scan_identity
from lastkey.udfs.compact.split_stages import (
    Exchange,
    LargePartition,
    RewrittenGroup,
    buckets_for,
    last_of_each_key,
    local_survivors,
    make_splits,
    rewrite_group,
)
from lastkey.udfs.problem import Problem, attempt, peak_memory
from lastkey.udfs.steps import step

_BUCKETS_AT_ONCE: Final = 8  # buckets whose local survivors are in the memory of one task

# Runs the stages of a large partition and returns the values of the last one
RunStages = Callable[[LargePartition], Iterable[RewrittenGroup | Problem]]


def compact_partition(plan: PartitionPlan) -> PartitionResult:
    """Compact one partition. Return every error as a result, except OSError for a full disk."""
    clock = Clock()
    result = as_result(plan, attempt(plan.name, lambda: _compact_if_due(plan, clock)))
    step("partition done")
    work = replace(result.work, seconds=clock.seconds, peak_memory_bytes=peak_memory())
    return replace(result, work=work)


def as_result(plan: PartitionPlan, done: PartitionResult | Problem) -> PartitionResult:
    """Return the result of a compaction; for a problem that of an uncleanable partition, whose folder is removed."""
    if isinstance(done, PartitionResult):
        return done
    remove_folder(plan)
    return PartitionResult(plan.input.topic, plan.input.partition, "uncleanable", problem=done)


def _compact_if_due(plan: PartitionPlan, clock: Clock) -> PartitionResult:
    try:
        return _compact(plan, plan.extent, clock)
    except (KeysLost, TooManyKeys):  # in a run by yield: the whole log is cleaned instead
        remove_folder(plan)
        return _compact(plan, Extent.WHOLE, clock)


def _compact(plan: PartitionPlan, extent: Extent, clock: Clock) -> PartitionResult:
    buffer = chunk_buffer(plan)
    with clock.phase("scan"):
        if (nothing := if_nothing_expires(plan, buffer)) is not None:
            return nothing
        scans, identity = scan_all(plan, buffer, extent), scan_identity(plan, buffer)
        analysis = analyse(plan, scans, identity, extent)
        if isinstance(analysis, Analysis):
            analysis = with_what_is_old(plan, analysis, scans, identity, buffer)
    if isinstance(analysis, PartitionResult):
        return analysis
    step("segments scanned")
    with clock.phase("clean"):
        if analysis.affected:
            cleaned = remove_records(plan, analysis, buffer)
            if isinstance(cleaned, PartitionResult):
                return cleaned
        elif extent is Extent.PARTIAL and analysis.cleans:
            cleaned = clean_by_yield(plan, analysis, buffer, clock)
        else:
            cleaned = clean_all(plan, analysis, buffer, clock)
    return finish(plan, cleaned, clock)


def clean_all(plan: PartitionPlan, analysis: Analysis, buffer: ChunkBuffer, clock: Clock) -> Cleaned:
    """Clean all groups, in stages unless the last offsets of all keys fit into memory."""
    if plan.policy.settings.by_offset:
        with suppress(TooManyKeys):
            return clean_everything(plan, analysis, buffer, clock)
        remove_folder(plan)
    with clock.phase("stages"):
        return clean_in_stages(plan, analysis, 1, stages_in_turn, plan.run.folder)


def stages_in_turn(of: LargePartition) -> Iterator[RewrittenGroup | Problem]:
    """Run the stages one after the other; their rows wait in a temporary file."""
    with tempfile.TemporaryFile(prefix="lastkey-") as file:
        survivors, offsets = Exchange(file, "part"), Exchange(file, "group")
        for number in range(len(of.splits)):
            survivors.add(local_survivors(of, number))
        order = [("bucket", "ascending"), ("split", "descending"), ("block", "ascending")]
        for part in range(of.n_parts):
            offsets.add(last_of_each_key(of, survivors.read(part).sort_by(order).to_batches()))
        for group in range(len(of.groups)):
            yield from rewrite_group(of, offsets.read(group).to_batches())


def clean_in_stages(
    plan: PartitionPlan, analysis: Analysis, cores: int, run_stages: RunStages, folder: str = ""
) -> Cleaned:
    """Clean all groups in the stages of a large partition. Raises LogFormatError: a task's problem.

    folder: where one task writes all segments, below the store; "": each task has a folder of its own.
    """
    tally = Tally()
    if not analysis.cleans:
        return Cleaned(analysis, [], tally)
    scans = [source.lean() for source in analysis.sources[: analysis.groups[-1].stop]]
    n_buckets, n_parts = buckets_for(sum(scan.most_records for scan in scans), cores)
    large = LargePartition(
        plan=plan,
        scans=tuple(scans),
        splits=make_splits(scans, analysis.groups, plan.run.limits.split_bytes, cores),
        groups=tuple((analysis.group(numbers), numbers) for numbers in analysis.groups),
        rules=analysis.rules,
        first_dirty_offset=analysis.cleanable.first_dirty_offset if plan.policy.settings.by_offset else 0,
        kept_aborts=analysis.kept_aborts,
        n_buckets=n_buckets,
        n_parts=max(n_buckets // _BUCKETS_AT_ONCE, 1) if folder else n_parts,
        folder=folder,
    )
    done: dict[int, RewrittenGroup] = {}
    for result in run_stages(large):
        if isinstance(result, Problem):
            raise result.as_error()
        done[result.group] = result
    reports = [report for group in done.values() for report in group.reports]
    highest = max((report.highest for report in reports), default=NO_VERSION)
    check_versions(plan, highest, any(report.n_keys for report in reports))
    segments = []
    for number, (segment, _) in enumerate(large.groups):
        if number not in done:  # the group has no chunk
            segments.append(written_segment(segment))
            continue
        segments += done[number].segments
        tally.counters += done[number].tally.counters
        tally.recompressed_bytes += done[number].tally.recompressed_bytes
    peak = max((report.peak_memory_bytes for report in reports), default=0)
    work = Work(splits=len(large.splits), peak_memory_bytes=peak)
    return Cleaned(analysis, join_empty_groups(plan, segments), tally, work=work)


def finish(plan: PartitionPlan, cleaned: Cleaned, clock: Clock) -> PartitionResult:
    """Write the other files of the generation, and return the result. Raise LogFormatError if the partition holds
    records without key and the setting null_keys is "fail".
    """
    n_null_keys = cleaned.tally["null_keys"]
    if n_null_keys and plan.policy.settings.null_keys == "fail":
        expected, found = "a key in every record", f"{n_null_keys} records without one"
        hint = "compaction would drop them: --set null.keys=keep or drop, or leave this topic out"
        raise LogFormatError("null_key", plan.name, NO_POSITION, expected, found, hint=hint)
    with clock.phase("write"):
        return write_generation(plan, cleaned)
