"""Check of a generation: its files against its manifest, and against its parent, if the parent still exists."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

import google_crc32c
import numpy as np

from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.errors import LogFormatError, readable
from lastkey.logformat.layout import CODEC_NAMES
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import segment_file
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.segments import Expired, LastBatch, side_checksums
from lastkey.udfs.storage import open_root, read_file, sizes_in
from lastkey.udfs.verify.blocks import Order, Side, scan_headers
from lastkey.udfs.verify.findings import CheckedSegment, CheckPlan, CheckResult, Findings, make_result
from lastkey.udfs.verify.parent import AllowedDrops, compare
from lastkey.udfs.verify.partition import check_side
from lastkey.udfs.verify.transactions import open_transactions


@dataclass(frozen=True)
class GenerationPlan:
    """One partition's generation and the run that made it."""

    side: CheckPlan  # its files; `generation` is set
    manifest: tuple[Segment, ...]  # the same segments, as the store's tables have them
    folder: str  # folder of its side files, relative to the store
    log_start_offset: int
    next_offset: int
    last_batch: LastBatch
    first_dirty_offset: int  # start of the run
    end_offset: int  # first offset that it did not clean
    now_ms: int
    delete_retention_ms: int
    null_keys: str
    compacts: bool = True  # else segments go by retention alone
    retention_ms: int = -1
    retention_bytes: int = -1
    retention_exact: bool = False
    by: Order = Order()  # rule that chooses the record of a key to keep
    erased: int = -1  # removed records of erased keys; -1: the run did not erase
    expired: tuple[Expired, ...] = ()
    log_start_known: int = 0  # highest log start that DeleteRecords can have set, by archive and parent generation
    parent: tuple[Segment, ...] = ()  # segments of the parent that still exist
    parent_log_start_offset: int = 0
    parent_gone: str = ""  # why there is no parent to compare with
    parent_problem: Problem | None = None  # the parent exists, but cannot be listed
    parent_stays_from: int = 0  # offset: below it the archive's broker may have cleaned since, or deleted
    task_memory_bytes: int = 1 << 30


def check_generation(plan: GenerationPlan) -> CheckResult:
    """Check one generation. Each problem, and a failure of the check, becomes a row."""
    started = time.perf_counter()
    findings = Findings()

    def own_files() -> None:
        check_side(plan.side, findings)
        _check_manifest(plan, findings)
        _check_files(plan, findings)
        _check_retention(plan, findings)

    findings.attempt(own_files, plan.side.name, logged=True)
    compared = 0
    if plan.parent_problem is not None:
        findings.problems.append(plan.parent_problem)
        findings.not_checked.append(f"{plan.side.name}: comparison with its source, which has problems")
    elif plan.parent_gone:
        findings.not_checked.append(f"{plan.side.name}: comparison with its source: {plan.parent_gone}")
    elif findings.problems:
        findings.not_checked.append(
            f"{plan.side.name}: comparison with its source, because its own files have problems"
        )
    else:
        done = attempt(plan.side.name, lambda: _check_parent(plan, findings))
        if isinstance(done, Problem):
            findings.problems.append(done)
            findings.not_checked.append(f"{plan.side.name}: comparison with its source, which has problems")
        else:
            compared = done
    return make_result(plan.side, findings, time.perf_counter() - started, compared)


def _check_manifest(plan: GenerationPlan, findings: Findings) -> None:
    """Check each row of the manifest against its file, and the rows against each other and the checkpoint."""
    bases = [row.base_offset for row in plan.manifest]
    ends = [*bases[1:], plan.next_offset]
    for row, facts, end in zip(plan.manifest, findings.facts, ends, strict=True):
        if facts.damaged:
            continue
        held = [
            ("bytes", row.size_bytes, facts.size), ("batches", row.batches, facts.batches),
            ("last offset", row.last_offset, facts.last_offset),
            ("largest timestamp", row.max_timestamp_ms, facts.max_timestamp_ms),
            ("codecs", _bits(row.codecs), facts.codecs), ("checksum", row.checksum, facts.checksum),
            ("records", row.records, facts.records if row.cleaned else facts.headers_records),
            ("end of its range", row.next_offset, end),
        ]  # fmt: skip
        if row.magics is not None:
            magics = sum(1 << int(magic) for magic in row.magics.split(",") if magic)
            held.append(("message formats", magics, facts.magics))
        if row.tombstones >= 0:
            held.append(("tombstones", row.tombstones, facts.tombstones))
        if row.min_timestamp_ms >= 0:
            held.append(("smallest timestamp", row.min_timestamp_ms, facts.min_timestamp_ms))
        for what, expected, seen in held:
            if expected != seen:
                _add(findings, facts.path, f"{what} {expected}, as the manifest says", str(seen))
    if findings.facts and not any(f.damaged for f in findings.facts):
        _check_end(plan, findings)


def _check_end(plan: GenerationPlan, findings: Findings) -> None:
    last: CheckedSegment = findings.facts[-1]
    if findings.log_end_offset != plan.next_offset:
        _add(
            findings, last.path, f"a log that ends at {plan.next_offset}", f"one that ends at {findings.log_end_offset}"
        )
    last_batches = [f.last_batch for f in findings.facts if f.last_batch.base_offset >= 0]
    cleaned = [row.cleaned for row in plan.manifest]
    if not cleaned[-1] and last_batches and last.batches and last_batches[-1] != plan.last_batch:
        _add(findings, last.path, f"{plan.last_batch} before offset {plan.next_offset}", f"{last_batches[-1]}")
    if findings.facts[0].base_offset > plan.log_start_offset:
        expected = f"offsets from {plan.log_start_offset} on, the log start"
        _add(findings, findings.facts[0].path, expected, f"a first segment at {findings.facts[0].base_offset}")


def _check_retention(plan: GenerationPlan, findings: Findings) -> None:
    """Check the deletions that the run reports for retention against its settings and the remaining segments."""
    until = {one.reason: one.until for one in plan.expired}
    if until.get("log_start", 0) > plan.log_start_known:
        said = f"DeleteRecords to delete offsets below {plan.log_start_known} only, as far as the archive shows"
        _add(findings, plan.side.name, said, f"offsets below {until['log_start']} deleted")
    for reason, limit in (("time", plan.retention_ms), ("size", plan.retention_bytes)):
        if reason in until and limit < 0:
            _add(
                findings,
                plan.side.name,
                f"no segment deleted by {reason}, which has no limit",
                f"offsets below {until[reason]} deleted",
            )
    if until and max(until.values()) > plan.log_start_offset:
        _add(findings, plan.side.name, f"a log start of at least {max(until.values())}", f"{plan.log_start_offset}")
    left = sum(row.size_bytes for row in plan.manifest)
    left += sum(one.bytes if one.reason == "time" else one.bytes_above for one in plan.expired)
    if "size" in until and left < plan.retention_bytes:
        _add(
            findings, plan.side.name, f"at least {plan.retention_bytes} bytes left, as retention.bytes says", f"{left}"
        )


def _bits(codecs: str) -> int:
    return sum(1 << CODEC_NAMES.index(name) for name in codecs.split(",") if name in CODEC_NAMES)


def _add(findings: Findings, path: str, expected: str, seen: str) -> None:
    findings.add(LogFormatError("readback", path, 0, expected, seen))


def _check_files(plan: GenerationPlan, findings: Findings) -> None:
    """Check the files of a generation beside its logs: snapshots and text files exist, indexes have the manifest's
    sizes, and all have its checksums.
    """
    root = open_root(plan.side.store_uri)
    wanted = [
        segment_file(row.base_offset, "snapshot") for row in plan.manifest if row.base_offset > plan.log_start_offset
    ]
    wanted += [segment_file(plan.next_offset, "snapshot"), "leader-epoch-checkpoint"]
    checksums = side_checksums(row.side_files for row in plan.manifest)
    with readable(plan.folder):
        sizes = sizes_in(root, plan.folder)
    for name in dict.fromkeys([*wanted, *checksums]):
        if name not in sizes:
            path = f"{plan.folder}/{name}"
            findings.add(LogFormatError("side_file", path, 0, "a file of this generation", "no such file"))
    for row in plan.manifest:
        for kind, size in (
            ("index", row.offset_index_bytes), ("timeindex", row.time_index_bytes), ("txnindex", row.txn_index_bytes),
        ):  # fmt: skip
            name = segment_file(row.base_offset, kind)
            seen = sizes.get(name)
            if seen != size and not (seen is None and (size == 0 or kind != "txnindex")):
                expected = f"{size} bytes, as the manifest says"
                findings.add(LogFormatError("index", f"{plan.folder}/{name}", 0, expected, f"{seen}"))
    for name, checksum in checksums.items():
        path = f"{plan.folder}/{name}"
        there = sizes.get(name)
        if there is not None and (crc := google_crc32c.value(read_file(root, path, there))) != checksum:
            expected = f"CRC-32C {checksum:#010x}, as the manifest says"
            findings.add(LogFormatError("side_file", path, 0, expected, f"{crc:#010x}"))


def _check_parent(plan: GenerationPlan, findings: Findings) -> int:
    """Check invariants 1 to 3; return the number of records that were compared.

    A missing file of the parent is no problem of the generation, as `vacuum` deletes old ones; a damaged or unreadable
    one raises LogFormatError.
    """
    try:
        return _compare_with_parent(plan, findings)
    except LogFormatError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        findings.not_checked.append(f"{plan.side.name}: comparison with its source: {error}")
        return 0


def _compare_with_parent(plan: GenerationPlan, findings: Findings) -> int:
    side = plan.side
    whole = Side(plan.parent, plan.next_offset)
    rows, sizes = scan_headers(whole, LogReader(side.chunk_bytes, side.max_batch_bytes))
    gone = _changed_parent(plan, sizes)
    if gone:
        findings.not_checked.append(f"{side.name}: comparison with its source: {gone}")
        return 0
    log_start = max(plan.parent_log_start_offset, plan.log_start_offset)
    opened = open_transactions(rows, np.array([plan.next_offset]), log_start)
    opened = opened[opened["first_offset"] < plan.end_offset] if plan.compacts else opened[:0]
    for one in opened[np.argsort(opened["first_offset"])][:1]:
        expected = (
            f"nothing cleaned from offset {one['first_offset']} on, where producer {one['producer_id']} "
            "began a transaction that was open"
        )
        _add(findings, side.name, expected, f"a log cleaned up to offset {plan.end_offset}")
    if plan.log_start_offset < plan.parent_log_start_offset:
        _add(findings, side.name, f"a log start of at least {plan.parent_log_start_offset}", str(plan.log_start_offset))
    until = {one.reason: one.until for one in plan.expired}
    written = plan.retention_exact or plan.erased >= 0
    exact_until = max((row.next_offset for row in plan.manifest if row.cleaned and written), default=0)
    end = max(plan.end_offset, exact_until, *until.values())
    parent = replace(whole, segments=tuple(s for s in plan.parent if s.first_offset < end), end_offset=end)
    cleaned = tuple(s for s in side.segments if s.base_offset < end)
    child = replace(parent, segments=cleaned)
    before = [s for s in plan.parent if s.first_offset < plan.first_dirty_offset]
    rules = AllowedDrops(
        now_ms=plan.now_ms,
        legacy_horizon_ms=before[-1].mtime_ms - plan.delete_retention_ms if before else -(2**63),
        null_keys_stay=plan.null_keys == "keep",
        gone_until=max(until.get("log_start", 0), until.get("size", 0)),
        old_until=until.get("time", 0),
        oldest_ms=plan.now_ms - plan.retention_ms,
        exact_until=exact_until if plan.retention_exact else 0,
        by=plan.by,
        every_record=not plan.compacts,
        erased=plan.erased,
        readable_from=plan.log_start_offset,
        file_times={
            s.path: largest if largest >= 0 else s.mtime_ms for s, (*_, largest) in zip(plan.parent, sizes, strict=True)
        },
    )
    most, memory, n_records = side.max_batch_bytes, plan.task_memory_bytes, sum(n for _, n, _ in sizes)
    differences = compare(parent, child, rows, findings.transactions, rules, most, memory, n_records)
    for error in differences.problems:
        findings.add(error)
    findings.notes += [f"{side.name}: {n} more rows of this kind: {kind}" for kind, n in differences.unlisted.items()]
    return differences.compared_records


def _changed_parent(plan: GenerationPlan, sizes: list[tuple[int, int, int]]) -> str:
    """Return why the parent differs from the source of the run; "" if it does not. Raises LogFormatError for an
    unexplained difference: a file is missing, short or replaced.
    """
    base = np.array([s.first_offset for s in plan.parent], np.int64)
    held = np.array([n for n, _, _ in sizes], np.int64)
    for row in plan.manifest:
        seen = int(held[(base >= row.base_offset) & (base < row.next_offset)].sum())
        offsets = f"offsets {row.base_offset} to {row.next_offset - 1}"
        restored = seen == row.size_bytes  # a broker may continue with this generation in place of the archive
        if seen != row.source_bytes and row.base_offset >= plan.parent_stays_from and not restored:
            raise LogFormatError(
                "changed",
                plan.parent[0].path.rpartition("/")[0] if plan.parent else plan.side.name,
                0,
                f"{row.source_bytes} bytes of batches in {offsets}, as when the generation was made",
                f"{seen}",
                hint="a file is missing, short, or another one: verify ARCHIVE shows which; restore it from a copy",
            )
        if seen != row.source_bytes:
            return f"{offsets} held {row.source_bytes} bytes when the generation was made, and now hold {seen}"
    return ""
