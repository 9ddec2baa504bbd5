"""Report of `compact`: a table and notes for people, every figure for programs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypedDict

from lastkey.jobs.command.parse import abbreviate_names
from lastkey.jobs.command.reporting import JobReport, TextTable, by_rule, counted, counts, labelled, size, table
from lastkey.jobs.command.stopping import EarlyEndError, OutOfTimeError
from lastkey.jobs.compact.needed import Needed, summary_lines
from lastkey.jobs.compact.start_outcome import Outcome, Start, partition_key
from lastkey.jobs.errors import DONE, PARTIAL, ConflictError
from lastkey.jobs.topics import Key
from lastkey.udfs.compact.plan import PartitionResult
from lastkey.udfs.held_back import HeldBack

_DROPPED: Final = (  # counter, reason
    ("superseded", "superseded"),
    ("tombstones", "expired tombstones"),
    ("aborted", "of aborted transactions"),
    ("null_key", "without a key"),
    ("markers", "transaction markers"),
    ("expired", "older than retention.ms"),
    ("erased", "of erased keys"),
)
_SCHEDULE: Final = TextTable(
    "schedule",
    "base_offset:offset size_bytes:size records dead_records:dead share reason:why",
    {"share": lambda s: f"{100 * s.dead_records / max(s.records, 1):.0f} %"},
)
_OF_RESULT: Final = (  # facts of a partition that its result has
    "topic partition held_back first_dirty_offset_before=cleanable.first_dirty_offset "
    "first_dirty_offset=log.first_dirty_offset log_start_offset=log.log_start_offset next_offset=log.next_offset "
    "dirty_ratio=cleanable.ratio clean_bytes=cleanable.clean_bytes dirty_bytes=cleanable.cleanable_bytes "
    "bytes_before=work.bytes_before bytes_after=work.bytes_after bytes_read=work.bytes_read "
    "bytes_written=work.bytes_written recompressed_bytes=work.recompressed_bytes segments_before=log.segments_before "
    "expired=log.expired *=work.counters splits=work.splits schedule "
    "peak_memory_bytes=work.peak_memory_bytes seconds=work.seconds notes problem"
)


class PhaseBytes(TypedDict):
    """Bytes of each phase; written segments are read back."""

    scan: int
    clean: int
    write: int
    read_back: int


@dataclass(frozen=True)
class PartitionRow:
    """Result of one partition, and its commit in this run. gaps: first and last offset of each."""

    facts: ClassVar[str] = (
        " ".join(f"{name}=result.{path or name}" for name, _, path in (of.partition("=") for of in _OF_RESULT.split()))
        + " state=result.problem.state status generation reset bytes_after_is_estimate segments_after gaps bytes"
    )
    result: PartitionResult
    status: str
    generation: int | None
    reset: bool
    bytes_after_is_estimate: bool
    segments_after: int
    gaps: list[list[int]]
    bytes: PhaseBytes


@dataclass
class CompactReport(JobReport):
    """Report of a run, partition by partition."""

    job = "compact"
    results_at = "results"
    facts = (
        "archive store run_id now_ms dry_run archive_needed=?archive_needed archive_needed_because=archive_needed "
        "conflict partial summary=last_line partitions not_compacted expired_nothing"
    )
    text_tables = (
        TextTable("shown", "partition state records left bytes bytes_after:left saved note", total="partition"),
    )

    archive: str
    store: str
    run_id: str
    now_ms: int
    dry_run: bool
    results: list[PartitionResult] = field(default_factory=list)
    generations: dict[Key, int] = field(default_factory=dict)  # committed by this run
    reset: set[Key] = field(default_factory=set)  # started over from the archive, by --reset
    archive_needed: list[Needed] = field(default_factory=lambda: [Needed("nothing")])  # reasons, the worst first
    not_compacted: list[str] = field(default_factory=list)  # other topics of the archive
    expired_nothing: list[str] = field(default_factory=list)  # topics of policy compact,delete
    conflict: str | None = None  # why another run kept this one from its commit
    due: set[Key] = field(default_factory=set)
    ended_early: EarlyEndError | None = None  # the reason
    cut_off: set[Key] = field(default_factory=set)  # at work when --max-runtime was over
    lag: dict[str, int] = field(default_factory=dict)  # lag behind the archive, see measure_lag

    @property
    def exit_code(self) -> int:
        """0; 3 if partitions are uncleanable or folders unread; 4 if another run was first; 6 if time was over."""
        if self.ended_early is not None and not self.partial:
            return self.ended_early.exit_code
        if self.conflict:
            return ConflictError.exit_code
        return super().exit_code or (PARTIAL if self.partial else DONE)

    @property
    def partial(self) -> bool:
        """True if --max-runtime was over before all was done."""
        return isinstance(self.ended_early, OutOfTimeError)

    def committed(self) -> str:
        """Return text with the number of due partitions that have a new generation."""
        return describe_committed(self.generations, self.due)

    def figures(self) -> dict[str, Any]:
        """Return the run's figures for monitoring: sums over the partitions that it committed."""
        cleaned = [r for r in self.results if partition_key(r) in self.generations]
        before, after = sum(r.work.bytes_before for r in cleaned), sum(r.work.bytes_after for r in cleaned)
        states = (r.problem.state if r.problem else self._status(r) for r in self.results)
        return super().figures() | {
            "committed_partitions": len(cleaned),
            "due_partitions": len(self.due),
            "read_bytes": sum(r.work.bytes_read for r in cleaned),
            "written_bytes": sum(r.work.bytes_written for r in cleaned),
            "before_bytes": before,
            "after_bytes": after,
            "saved_bytes": before - after,
            "read_records": sum(r.work.counters.get("records_read", 0) for r in cleaned),
            "kept_records": sum(r.work.counters.get("records_kept", 0) for r in cleaned),
            "partitions": counts(states),
            "lag": self.lag,
        }

    @property
    def partitions(self) -> list[PartitionRow]:
        """Bytes, seconds, and counts by reason of each partition."""
        return list(map(self._partition, self.results))

    @property
    def shown(self) -> list[dict[str, Any]]:
        """Rows of partitions that changed or are uncleanable; the others, perhaps hundreds, are counted."""
        rows = [r for r in self.results if self.show_all or r.status != "not_due"]
        return [_row(r, self._status(r), self.dry_run) for r in sorted(rows, key=partition_key)]

    def _partition(self, r: PartitionResult) -> PartitionRow:
        rebuilt = r.work.counters.get("batches_rebuilt", 0) > 0
        return PartitionRow(
            result=r,
            status=self._status(r),
            generation=self.generations.get(partition_key(r)),
            reset=partition_key(r) in self.reset,
            bytes_after_is_estimate=self.dry_run and rebuilt and _compressed(r),
            segments_after=len(r.log.segments),
            gaps=[[gap.first, gap.last] for gap in r.log.gaps],
            bytes={
                "scan": r.work.bytes_before,
                "clean": r.work.bytes_read - r.work.bytes_before,
                "write": r.work.bytes_written,
                "read_back": 0 if self.dry_run else r.work.bytes_written,
            },
        )

    def _status(self, r: PartitionResult) -> str:
        """Return cleaned, not_due, uncleanable, stopped; or conflict: cleaned, but another run had committed before."""
        lost = r.status == "cleaned" and not self.dry_run and partition_key(r) not in self.generations
        return "conflict" if lost else r.status

    def _problem_texts(self) -> Sequence[object]:
        return [*self.other_problems, *(_problem_text(r) for r in self.results if r.problem is not None)]

    def _lines(self) -> Iterator[str]:
        cleaned = [r for r in self.results if self._status(r) == "cleaned"]
        yield from self._not_due()
        yield from self._amounts(cleaned) if cleaned else ()
        yield from self._schedules() if self.dry_run else ()
        yield from labelled(
            "would expire" if self.dry_run else "expired", (_expired(r) for r in cleaned if r.log.expired)
        )
        for r in cleaned:
            if r.work.splits > 1:
                yield f"{r.name()}: {counted(r.work.splits, 'split')}"
        yield from self._started_over()
        yield from self._at_the_end([r.name() for r in cleaned if r.log.erases])

    def _amounts(self, cleaned: Sequence[PartitionResult]) -> list[str]:
        dropped = {reason: sum(r.work.counters.get(f"dropped_{key}", 0) for r in cleaned) for key, reason in _DROPPED}
        counts = ", ".join(f"{n:,} {reason}" for reason, n in dropped.items() if n)
        read, written = (sum(getattr(r.work, name) for r in cleaned) for name in ("bytes_read", "bytes_written"))
        return [
            f"records {'would be dropped' if self.dry_run else 'dropped'}: {counts or 'none'}",
            f"read {size(read)}, {'would write' if self.dry_run else 'wrote'} {size(written)}",
        ]

    def _started_over(self) -> Iterator[str]:
        for topic, partition in sorted(self.reset & self.generations.keys()):
            generation = self.generations[topic, partition]
            before = f"generation {generation - 1} stays in the store, restore --generation {generation - 1} copies it"
            more = f"; {before}" if generation > 1 else ""
            yield f"started over: {topic}-{partition}: generation {generation}, from the archive alone{more}"

    def _at_the_end(self, erased: Sequence[str]) -> Iterator[str]:
        if erased:
            yield f"erased, not compacted; the next run compacts: {abbreviate_names(erased)}"
        if self.expired_nothing:
            topics = ", ".join(self.expired_nothing)
            yield f"policy compact,delete without retention.ms or retention.bytes: compacted only: {topics}"
        if self.conflict:
            yield f"conflict: {self.conflict}"
        if self.ended_early is not None:
            rest = "; the rest is first in the next run with it" if self.partial else ""
            yield f"{self.ended_early.message}: {self.committed()}{rest}"
        if self.dry_run:
            yield "dry run: nothing was written; ~ marks estimates, because compression decides the size"
        else:
            yield from summary_lines(self.archive_needed)

    def _schedules(self) -> Iterator[str]:
        """Yield, for each partition of a run by yield, what it would rewrite, and why."""
        for r in self.results:
            if r.schedule:
                yield f"{r.name()}: {_schedule_summary(r)}"
                if rows := [s for s in r.schedule if self.show_all or s.reason != "kept"]:
                    yield table(_SCHEDULE.headers(), map(_SCHEDULE.cells, rows))

    def _outcome(self) -> str:
        states = [self._status(r) for r in self.results]
        verb = "erased from" if any(r.log.erases for r in self.results) else "compacted"
        done = f"would be {verb}" if self.dry_run else "committed"
        words = {"cleaned": done, "not_due": "not due"}
        counts = [f"{states.count(state):,} {words.get(state, state)}" for state in dict.fromkeys(states)]
        cleaned = [r for r in self.results if self._status(r) == "cleaned"]
        sizes = f"{size(sum(r.work.bytes_before for r in cleaned))} -> {size(sum(r.work.bytes_after for r in cleaned))}"
        none = "no partition of a compacted topic in the archive"
        parts = [f"{counted(len(states), 'partition')}: {', '.join(counts)}" if states else none]
        parts += [sizes] if cleaned else []
        parts += [] if self.dry_run else [f"archive {'still' if self.archive_needed else 'no longer'} needed"]
        return "; ".join(parts)

    def _not_due(self) -> list[str]:
        rest, out = [r for r in self.results if r.status == "not_due"], []
        if rest and not self.show_all:
            most = max(r.cleanable.ratio for r in rest)
            out.append(
                f"not due: {counted(len(rest), 'partition')}, at most {100 * most:.0f} % dirty; --all lists them"
            )
        return out + labelled("not due", _held_back(rest, every=self.show_all))


def describe_committed(committed: Collection[Key], due: Collection[Key]) -> str:
    """Return for people how many of the partitions that were due were committed."""
    return f"{len(committed)} of {counted(len(due), 'partition')} committed"


def _problem_text(r: PartitionResult) -> str:
    """Return the problem, with the partition's name if the path does not contain it."""
    named = r.problem is not None and r.name() in r.problem.path.split("/")
    return str(r.problem) if named else f"{r.name()}: {r.problem}"


def _held_back(results: Iterable[PartitionResult], *, every: bool) -> list[str]:
    """Return a line for each rule that holds partitions back, with the one that it has held back longest; or for every
    rule of each partition.
    """
    by_rule: dict[tuple[str, str], list[tuple[str, HeldBack]]] = {}
    for r in results:
        for reason in r.held_back:
            by_rule.setdefault((r.name() if every else "", reason.rule), []).append((r.name(), reason))
    lines = []
    for held in by_rule.values():
        name, reason = min(held, key=lambda one: one[1].since_ms if one[1].since_ms >= 0 else 2**63)
        more = f" (and {counted(len(held) - 1, 'more partition')} by this rule)" if len(held) > 1 else ""
        lines.append((str(reason) if reason.path else f"{name}: {reason}") + more)
    return lines


def _expired(r: PartitionResult) -> str:
    return f"{r.name()}: {by_rule(r.log.expired)}; the log starts at offset {r.log.log_start_offset:,} now"


def _compressed(r: PartitionResult) -> bool:
    return any(codec != "none" for s in r.log.segments for codec in s.codecs.split(",") if codec)


def _row(r: PartitionResult, status: str, dry_run: bool) -> dict[str, Any]:
    """Return a row of the table, without columns whose value is unknown."""
    words = {"not_due": "not due", "uncleanable": r.problem.state if r.problem else "uncleanable"}
    row = {"topic": r.topic, "partition": r.partition, "state": words.get(status, status)}
    if status != "cleaned":
        return row | ({"note": f"{100 * r.cleanable.ratio:.0f} % dirty"} if status == "not_due" else {})
    dropped = sum(r.work.counters[k] for k in r.work.counters if k.startswith("dropped_"))
    kept = r.work.counters["records_kept"] if r.log.compacted else sum(s.records for s in r.log.segments)
    expired = sum(one.records for one in r.log.expired)
    if r.log.compacted:
        kept = max(kept - expired, 0)  # the oldest segments expire, and these were cleaned too
    done = "erased" if r.log.erases else "clean" if r.log.compacted else "expired" if expired or dropped else "kept"
    before, after, about = r.work.bytes_before, r.work.bytes_after, "~" if dry_run and _compressed(r) else ""
    return row | {
        "state": f"would be {done}" if dry_run else done,
        "records": kept + dropped + expired,
        "left": kept,
        "bytes": before,
        "bytes_after": about + size(after) if about else after,
        "saved": f"{about}{100 * (before - after) / before:.1f} %" if before else "",
    }


def _schedule_summary(r: PartitionResult) -> str:
    rewritten = [s for s in r.schedule if s.reason != "kept"]
    read = sum(s.size_bytes for s in rewritten)
    freed = sum(s.size_bytes * s.dead_records // max(s.records, 1) for s in rewritten)
    return (
        f"would clean {size(r.cleanable.cleanable_bytes)} that are new, and rewrite {len(rewritten):,} of "
        f"{counted(len(r.schedule), 'segment')}: {size(read)} to read, about {size(read - freed)} to write, "
        f"{size(freed)} to free"
    )


def measure_lag(start: Start, outcome: Outcome) -> dict[str, int]:
    """Return partitions, bytes and offsets that are not cleaned yet, and the file time of the oldest of their segments
    (0 if none). A segment that is cleaned in part counts as a whole; the offsets end at the high watermark, or
    where the last segment begins, whichever is more.
    """
    cleaned = {key: row.first_dirty_offset for key, row in {**start.checkpoints, **outcome.committed}.items()}
    ends = {partition_key(r): r.log.next_offset for r in outcome.results}
    lag, oldest = {"partitions": 0, "bytes": 0, "offsets": 0}, []
    for key, archived in start.archive.partitions.items():
        if not archived.segments:
            continue
        first = cleaned.get(key, archived.segments[0].base_offset)
        at = max(bisect_right(archived.segments, first, key=lambda s: s.base_offset) - 1, 0)
        end = max(archived.segments[-1].base_offset, archived.high_watermark or 0, ends.get(key, 0))
        rest = [s for s in archived.segments[at:] if s.size_bytes and first < max(end, s.base_offset + 1)]
        if rest:
            lag["partitions"] += 1
            lag["bytes"] += sum(s.size_bytes for s in rest)
            lag["offsets"] += max(end - first, 0)
            oldest.append(min(s.mtime_ms for s in rest))
    return lag | {"oldest_ms": min(oldest, default=0)}
