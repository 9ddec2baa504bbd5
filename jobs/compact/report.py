"""Report of `compact`: a table and notes for people, every figure for programs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from lastkey.jobs.command.parse import some_of
from lastkey.jobs.command.reporting import (
    JobReport,
    PartitionLine,
    before_after_table,
    by_rule,
    count,
    counted,
    counts,
    labelled,
    size,
    table,
)
from lastkey.jobs.command.stopping import EarlyEndError, OutOfTimeError
from lastkey.jobs.compact.needed import Needed, summary_lines
from lastkey.jobs.compact.start_outcome import Outcome, Start, key_of
from lastkey.jobs.errors import DONE, PARTIAL, ConflictError
from lastkey.jobs.topics import Key
from lastkey.udfs.compact.plan import PartitionResult, ScheduledSegment
from lastkey.udfs.held_back import HeldBack
from lastkey.udfs.problem import Problem

_DONE: Final = {  # of a new generation: what was done, what a dry run would do
    "clean": "would clean",
    "expired": "would expire",
    "erased": "would erase",
    "kept": "would keep",  # as it is: the first generation of an empty log, or a --reset with nothing cleanable
}


@dataclass
class CompactReport(JobReport):
    """Report of a run, partition by partition."""

    archive: str
    store: str
    run_id: str
    now_ms: int
    dry_run: bool
    results: list[PartitionResult] = field(default_factory=list)
    generations: dict[Key, int] = field(default_factory=dict)  # committed by this run
    anew: set[Key] = field(default_factory=set)  # started over from the archive, by --reset
    archive_needed: list[Needed] = field(default_factory=lambda: [Needed("nothing")])  # reasons, the worst first
    not_compacted: list[str] = field(default_factory=list)  # other topics of the archive
    expired_nothing: list[str] = field(default_factory=list)  # topics of policy compact,delete
    conflict: str = ""
    due: set[Key] = field(default_factory=set)
    ended_early: EarlyEndError | None = None  # the reason
    cut_off: set[Key] = field(default_factory=set)  # at work when --max-runtime was over
    unreadable: list[Problem] = field(default_factory=list)  # folders of the archive whose contents are not known
    lag: dict[str, int] = field(default_factory=dict)  # behind the archive, see lag_of

    @property
    def problems(self) -> list[Problem]:
        """Problems of the report, including those of partitions that were set aside."""
        return [*self.unreadable, *(r.problem for r in self.results if r.problem is not None)]

    @property
    def exit_code(self) -> int:
        """0; 3 if partitions were set aside or folders not read; 4 if another run was first; 6 if time was over."""
        if self.ended_early is not None and not self.partial:
            return self.ended_early.exit_code
        if self.conflict:
            return ConflictError.exit_code
        return super().exit_code or (PARTIAL if self.partial else DONE)

    @property
    def partial(self) -> bool:
        """True if --max-runtime was over before all was done."""
        return isinstance(self.ended_early, OutOfTimeError)

    def n_due(self) -> int:
        """Return how many partitions were due."""
        return len(self.due)

    def committed(self) -> str:
        """Say how many of the partitions that were due have a new generation."""
        return committed_of(self.generations, self.due)

    def figures(self) -> dict[str, Any]:
        """Return what monitoring is told of the run: sums over the partitions that it committed."""
        made = [r for r in self.results if key_of(r) in self.generations]
        before, after = sum(r.work.bytes_before for r in made), sum(r.work.bytes_after for r in made)
        states = (r.problem.state if r.problem else self._status(r) for r in self.results)
        return super().figures() | {
            "committed_partitions": len(made),
            "due_partitions": self.n_due(),
            "read_bytes": sum(r.work.bytes_read for r in made),
            "written_bytes": sum(r.work.bytes_written for r in made),
            "before_bytes": before,
            "after_bytes": after,
            "saved_bytes": before - after,
            "read_records": sum(r.work.counters.get("records_read", 0) for r in made),
            "kept_records": sum(r.work.counters.get("records_kept", 0) for r in made),
            "partitions": counts(states),
            "lag": self.lag,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs: bytes, seconds, and counts by reason for each partition."""
        return {
            "job": "compact",
            "archive": self.archive,
            "store": self.store,
            "run_id": self.run_id,
            "now_ms": self.now_ms,
            "dry_run": self.dry_run,
            "exit_code": self.exit_code,
            "archive_needed": bool(self.archive_needed),
            "archive_needed_because": [reason.to_json() for reason in self.archive_needed],
            "conflict": self.conflict or None,
            "partial": self.partial,
            "summary": self.summary(),
            "partitions": [self._partition(r) for r in self.results],
            "not_compacted": self.not_compacted,
            "expired_nothing": self.expired_nothing,
            "problems": self.problems_json(),
            "notes": self.notes,
            "engine": self.work_json(),
            "seconds": self.seconds_json(),
            **self.io_json(),
        }

    def _partition(self, r: PartitionResult) -> dict[str, Any]:
        return {
            "topic": r.topic,
            "partition": r.partition,
            "status": self._status(r),
            "generation": self.generations.get(key_of(r)),
            "anew": key_of(r) in self.anew,
            "problem": asdict(r.problem) if r.problem else None,
            "held_back": [one.to_json() for one in r.held_back],
            "first_dirty_offset_before": r.cleanable.first_dirty_offset,
            "first_dirty_offset": r.log.first_dirty_offset,
            "log_start_offset": r.log.log_start_offset,
            "next_offset": r.log.next_offset,
            "dirty_ratio": round(r.cleanable.ratio, 6),
            "clean_bytes": r.cleanable.clean_bytes,
            "dirty_bytes": r.cleanable.cleanable_bytes,
            "bytes_before": r.work.bytes_before,
            "bytes_after": r.work.bytes_after,
            "bytes_after_is_estimate": self.dry_run
            and r.work.counters.get("batches_rebuilt", 0) > 0
            and _compressed(r),
            "bytes_read": r.work.bytes_read,
            "bytes_written": r.work.bytes_written,
            "recompressed_bytes": r.work.recompressed_bytes,
            "segments_before": r.log.segments_before,
            "segments_after": len(r.log.segments),
            "gaps": [[gap.first, gap.last] for gap in r.log.gaps],
            "expired": [asdict(one) for one in r.log.expired],
            **r.work.counters,
            "splits": r.work.splits,
            "rounds": r.work.rounds,
            "schedule": [asdict(s) for s in r.schedule],
            "peak_memory_bytes": r.work.peak_memory_bytes,
            "seconds": {name: round(value, 4) for name, value in r.work.seconds.items()},
            "bytes": {  # of each phase; written segments are read back
                "scan": r.work.bytes_before,
                "clean": r.work.bytes_read - r.work.bytes_before,
                "write": r.work.bytes_written,
                "read_back": 0 if self.dry_run else r.work.bytes_written,
            },
            "notes": list(r.notes),
        }

    def _status(self, r: PartitionResult) -> str:
        """Return cleaned, not_due, set_aside, stopped; or conflict: cleaned, but another run had committed before."""
        lost = r.status == "cleaned" and not self.dry_run and key_of(r) not in self.generations
        return "conflict" if lost else r.status

    def to_text(self) -> str:
        """Return the report for people: before -> after, then what they should know."""
        out = self._table()
        cleaned = [r for r in self.results if self._status(r) == "cleaned"]
        dropped = {
            reason: sum(r.work.counters.get(f"dropped_{key}", 0) for r in cleaned)
            for key, reason in (
                ("superseded", "superseded"),
                ("tombstones", "expired tombstones"),
                ("aborted", "of aborted transactions"),
                ("null_key", "without a key"),
                ("markers", "transaction markers"),
                ("expired", "older than retention.ms"),
                ("erased", "of erased keys"),
            )
        }
        counts = ", ".join(f"{n:,} {reason}" for reason, n in dropped.items() if n)
        if cleaned:
            verb = "would be dropped" if self.dry_run else "dropped"
            out.append(f"records {verb}: {counts or 'none'}")
            out.append(
                f"read {size(sum(r.work.bytes_read for r in cleaned))}, "
                f"{'would write' if self.dry_run else 'wrote'} {size(sum(r.work.bytes_written for r in cleaned))}"
            )
        if self.dry_run:
            out += self._schedules()
        out += labelled("would expire" if self.dry_run else "expired", (_expired(r) for r in cleaned if r.log.expired))
        out += labelled("in several splits", (f"{r.name()}: {r.work.splits}" for r in cleaned if r.work.splits > 1))
        in_rounds = (f"{r.name()}: {r.work.rounds}" for r in cleaned if r.work.rounds > 1)
        out += labelled("in several rounds, for task.memory.bytes holds not all keys", in_rounds)
        out += labelled("set aside", (_aside(r) for r in self.results if r.problem is not None))
        for topic, partition in sorted(self.anew & self.generations.keys()):
            generation = self.generations[topic, partition]
            before = f"generation {generation - 1} stays in the store, restore --generation {generation - 1} copies it"
            out.append(
                f"started over: {topic}-{partition}: generation {generation}, from the archive alone"
                + (f"; {before}" if generation > 1 else "")
            )
        if erased := [r.name() for r in cleaned if r.log.erases]:
            out.append(f"erased, not compacted; the next run compacts: {some_of(erased)}")
        if self.expired_nothing:
            topics = ", ".join(self.expired_nothing)
            out.append(f"policy compact,delete without retention.ms or retention.bytes: compacted only: {topics}")
        out += labelled("note", [*self.notes, *(n for r in self.results for n in r.notes)])
        if self.conflict:
            out.append(f"conflict: {self.conflict}")
        if self.ended_early is not None:
            rest = "; the rest is first in the next run with it" if self.partial else ""
            out.append(f"{self.ended_early.said}: {self.committed()}{rest}")
        if self.dry_run:
            out.append("dry run: nothing was written; ~ marks estimates, because compression decides the size")
        else:
            out += summary_lines(self.archive_needed)
        out += [self.last_lines(), self.summary()]
        return "\n".join(out)

    def _schedules(self) -> Iterator[str]:
        """Yield, for each partition of a run by yield, what it would rewrite, and why."""
        for r in self.results:
            if r.schedule:
                yield f"{r.name()}: {_schedule_summary(r)}"
                rows = [s for s in r.schedule if self.show_all or s.reason != "kept"]
                if rows:
                    yield table(_HEAD, [_schedule_row(s) for s in rows])

    def summary(self) -> str:
        """Return how the run ended, in one line: the last of the text, whatever happened."""
        states = [self._status(r) for r in self.results]
        verb = "erased from" if any(r.log.erases for r in self.results) else "compacted"
        done = f"would be {verb}" if self.dry_run else "committed"
        words = {"cleaned": done, "not_due": "not due", "set_aside": "set aside"}
        told = [f"{states.count(state):,} {words.get(state, state)}" for state in dict.fromkeys(states)]
        cleaned = [r for r in self.results if self._status(r) == "cleaned"]
        sizes = f"{size(sum(r.work.bytes_before for r in cleaned))} -> {size(sum(r.work.bytes_after for r in cleaned))}"
        parts = [f"{counted(len(states), 'partition')}: {', '.join(told)}" if states else "no partition"]
        parts += [sizes] if cleaned else []
        parts += [] if self.dry_run else [f"archive {'still' if self.archive_needed else 'no longer'} needed"]
        return "; ".join([*parts, f"exit code {self.exit_code}"])

    def _table(self) -> list[str]:
        """Return the lines of partitions that changed or were set aside; the rest, perhaps hundreds, is counted."""
        rest = [r for r in self.results if r.status == "not_due"]
        rows = [r for r in self.results if self.show_all or r.status != "not_due"]
        counts = counted(len(self.results), "partition") + (f", {len(rest):,} not due" if rest else "")
        lines = [_line(r, self._status(r), self.dry_run) for r in rows]
        out = [before_after_table(lines, counts if len(self.results) > 1 else "")] if rows else []
        if rest and not self.show_all:
            most = max(r.cleanable.ratio for r in rest)
            hidden = f"not due: {counted(len(rest), 'partition')}, at most {100 * most:.0f} % dirty; --all lists them"
            out.append(hidden)
        out += labelled("not due", _held_back(rest, every=self.show_all))
        return out or ["no partition of a compacted topic in the archive"]


def committed_of(committed: Collection[Key], due: Collection[Key]) -> str:
    """Return for people how many of the partitions that were due were committed."""
    return f"{len(committed)} of {counted(len(due), 'partition')} committed"


def _aside(r: PartitionResult) -> str:
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


def _line(r: PartitionResult, status: str, dry_run: bool) -> PartitionLine:
    state = {"cleaned": "clean", "not_due": "not due", "set_aside": r.problem.state if r.problem else "set aside"}
    if status != "cleaned":
        note = f"{100 * r.cleanable.ratio:.0f} % dirty" if status == "not_due" else ""
        return PartitionLine(r.topic, r.partition, state.get(status, status), note=note)
    dropped = sum(r.work.counters[k] for k in r.work.counters if k.startswith("dropped_"))
    kept = r.work.counters["records_kept"] if r.log.compacted else sum(s.records for s in r.log.segments)
    expired = sum(one.records for one in r.log.expired)
    if r.log.compacted:
        kept = max(kept - expired, 0)  # the oldest segments expire, and these were cleaned too
    done = "erased" if r.log.erases else "clean" if r.log.compacted else "expired" if expired or dropped else "kept"
    return PartitionLine(
        r.topic,
        r.partition,
        _DONE[done] if dry_run else done,
        records_before=kept + dropped + expired,
        records_after=kept,
        bytes_before=r.work.bytes_before,
        bytes_after=r.work.bytes_after,
        segments_before=r.log.segments_before,
        segments_after=len(r.log.segments),
        estimate=dry_run and _compressed(r),
    )


_HEAD = ("offset", "size", "records", "dead", "share", "why")


def _rewrites(schedule: tuple[ScheduledSegment, ...]) -> tuple[int, int, int]:
    """Return the bytes that the rewrites read, and that they should write and free."""
    read = [s.size_bytes for s in schedule if s.reason != "kept"]
    freed = [s.size_bytes * s.dead_records // max(s.records, 1) for s in schedule if s.reason != "kept"]
    return sum(read), sum(read) - sum(freed), sum(freed)


def _schedule_summary(r: PartitionResult) -> str:
    read, written, freed = _rewrites(r.schedule)
    n = sum(s.reason != "kept" for s in r.schedule)
    return (
        f"would clean {size(r.cleanable.cleanable_bytes)} that are new, and rewrite {n:,} of "
        f"{counted(len(r.schedule), 'segment')}: {size(read)} to read, about {size(written)} to write, "
        f"{size(freed)} to free"
    )


def _schedule_row(s: ScheduledSegment) -> tuple[str, ...]:
    share = f"{100 * s.dead_records / max(s.records, 1):.0f} %"
    counts = count(s.records), count(s.dead_records), share
    return str(s.base_offset), size(s.size_bytes), *counts, s.reason


def lag_of(start: Start, outcome: Outcome) -> dict[str, int]:
    """Return partitions, bytes and offsets that are not cleaned yet, and the file time of the oldest of their segments
    (0: there is none). A segment that is cleaned in part counts as a whole; the offsets end at the high watermark, or
    where the last segment begins, whichever is more.
    """
    cleaned = {key: row.first_dirty_offset for key, row in {**start.checkpoints, **outcome.committed}.items()}
    ends = {key_of(r): r.log.next_offset for r in outcome.results}
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
