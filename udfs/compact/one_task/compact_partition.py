"""The whole compaction of one partition in one task: scan, decide, rewrite, read back.

The steps run in an order that survives a crash: read and check all input; decide; write new segments with their side
files into a folder that nobody knows; read back; flush. The driver makes the folder visible (`jobs.store.writing`). The
task reads each input byte twice (headers and checksums; records) and decompresses it once (by version twice, in rounds
once more for each round); it writes each output byte once and reads it once.
"""

from __future__ import annotations

from dataclasses import replace

from lastkey.logformat.errors import NO_POSITION, LogFormatError
from lastkey.udfs.compact.clean.clean_batches import Tally
from lastkey.udfs.compact.clean.deciders import TooManyKeys
from lastkey.udfs.compact.one_task.passes import (
    Cleaned,
    Clock,
    KeysLost,
    clean_by_yield,
    clean_everything,
    remove_records,
    with_what_is_old,
)
from lastkey.udfs.compact.one_task.rounds import clean_in_rounds
from lastkey.udfs.compact.output.generation import remove_folder, result_of, write_generation
from lastkey.udfs.compact.plan import MOST_RANGES, Extent, PartitionPlan, PartitionResult, chunk_buffer
from lastkey.udfs.compact.scan.analyse import Analysis, analyse
from lastkey.udfs.compact.scan.scan_partition import if_nothing_expires, scan_all, scan_identity
from lastkey.udfs.problem import Problem, attempt, peak_memory
from lastkey.udfs.steps import step


def compact_partition(plan: PartitionPlan) -> PartitionResult:
    """Compact one partition, or say why not: every error becomes a result, except OSError for a full disk."""
    clock = Clock()
    done = attempt(plan.name, lambda: _compact_if_due(plan, clock))
    if isinstance(done, Problem):
        result = PartitionResult(plan.input.topic, plan.input.partition, "set_aside", problem=done)
    else:
        result = done
    if result.status == "set_aside":
        remove_folder(plan)
    step("partition done")
    work = replace(result.work, seconds=clock.seconds, peak_memory_bytes=peak_memory())
    return replace(result, work=work)


def _compact_if_due(plan: PartitionPlan, clock: Clock) -> PartitionResult:
    try:
        return _compact(plan, plan.extent, clock)
    except (KeysLost, TooManyKeys):  # in a run by yield: everything is cleaned instead
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
    tally, rounds = Tally(), 1
    with clock.phase("clean"):
        if analysis.affected:
            done = remove_records(plan, analysis, tally, buffer)
            if isinstance(done, PartitionResult):
                return done
            analysis, segments = done
            unchanged = 0 if plan.policy.erasing is None else sum(analysis.sources[n].size for n in analysis.untouched)
            cleaned = Cleaned(analysis, segments, bytes_read=unchanged)
        elif extent is Extent.PARTIAL and analysis.cleans:
            cleaned = clean_by_yield(plan, analysis, tally, buffer, clock)
        else:
            try:
                segments = clean_everything(plan, analysis, tally, buffer, clock)
            except TooManyKeys:
                remove_folder(plan)
                tally = Tally()
                segments, rounds = clean_in_rounds(plan, analysis, tally, buffer, clock)
            cleaned = Cleaned(analysis, segments)
    check_null_keys(plan, tally)
    analysis = cleaned.analysis
    with clock.phase("write"):
        generation = write_generation(plan, analysis, cleaned.segments, cleaned.keys)
    result = result_of(plan, analysis, generation, tally)
    work = replace(
        result.work,
        bytes_read=result.work.bytes_read + cleaned.bytes_read,
        bytes_written=result.work.bytes_written + cleaned.bytes_written,
        rounds=rounds,
    )
    return replace(
        result,
        work=work,
        schedule=cleaned.schedule,
        erased_offsets=() if tally.erased is None else tuple(map(tuple, tally.erased[:MOST_RANGES].tolist())),
    )


def check_null_keys(plan: PartitionPlan, tally: Tally) -> None:
    """Raise LogFormatError if the partition holds records without key and the setting null_keys is "fail"."""
    found = tally["null_keys"]
    if found and plan.policy.settings.null_keys == "fail":
        raise LogFormatError(
            "null_key",
            plan.name,
            NO_POSITION,
            "a key in every record",
            f"{found} records without one",
            hint="compaction would drop them: --null-keys keep or drop, or leave this topic out",
        )
