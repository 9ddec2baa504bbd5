"""A random model over time: the events of months in an archive and its store, drawn from a seed.

A broker keeps two topics (`model_log`): it appends, with and without keys, transactions and sequences; it rolls
segments, gives up the beginning of its logs, loses a segment in the middle, and creates topics again. Between these
events the model runs every command that changes data: compact with options and settings that differ each time,
rollback, rebuild-state, vacuum, reindex, restore; now and then a broker continues with the restored folder as the new
archive. After each command the model restores a generation. It reads the generation with a reader of its own, and
judges it by a rule of its own (`model_judge`). The commands' reports must be true; vacuum must not delete the only copy
of a record.

A case is a seed, a number and its steps. Each step draws from a seed of its own, so steps may be left out: a failing
case is made smaller until no step can go.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import shutil
import time
import traceback
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tests.attack.forked import Failed
from tests.attack.histories import Output, check_end, run, shown
from tests.attack.model_judge import (
    DAY_MS,
    Contents,
    Generation,
    RunOptions,
    given_to,
    list_faults,
    read_folder,
    rows_by_offset,
)
from tests.attack.model_log import Entry, Log, drawn_codec, drawn_records
from tests.attack.readers import data_source
from tests.reference.log import ABORT, COMMIT, Record

START_MS: Final = 1_700_000_000_000
HOUR_MS: Final = 3_600_000
TOPICS: Final = ("a", "b")
STEPS: Final = 32


@dataclass(frozen=True)
class Known:
    """A known defect that is not mended yet. With a pattern, a sequence ends at a failure that matches; without one,
    the model leaves out the events that cause it.
    """

    why: str
    pattern: str = ""


KNOWN: Final = {
    "another log, without a trace": Known(
        "a topic is created again without a topic id, and the archive has given up all that lay below the store's end: "
        "no file tells the two logs apart, though a run before may have called them diverged",
        "and nothing tells them apart",
    )
}


@dataclass(frozen=True)
class Case:
    """One sequence: its seed and number, and the steps that are left of those drawn."""

    seed: int
    number: int
    steps: tuple[int, ...] = tuple(range(STEPS))

    def __str__(self) -> str:
        steps = "" if len(self.steps) == STEPS else f":{','.join(map(str, self.steps))}"
        return f"{self.seed}.{self.number}{steps}"

    @classmethod
    def named(cls, name: str) -> Case:
        """Return the case with a name, as a failure prints it."""
        head, _, steps = name.partition(":")
        seed, _, number = head.partition(".")
        return cls(int(seed), int(number), *([tuple(map(int, steps.split(",")))] if steps else []))


@dataclass
class Tally:
    """Counts of one case or many."""

    steps: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)  # sequences that ended at one of KNOWN
    generations: int = 0
    by_yield: int = 0  # generations of runs by yield
    carried: int = 0  # generations by yield that carry segments over
    records: int = 0
    deleted: int = 0  # segments of the archive, because they were not needed


class World:
    """An archive, its store, and the model's state of both."""

    def __init__(self, root: Path, case: Case, tally: Tally, known: Mapping[str, Known]) -> None:
        self.root, self.case, self.tally, self.known = root, case, tally, known
        self.archive, self.store = root / "archive", root / "store"
        self.clock_ms = START_MS
        self.told: list[str] = []  # each step in words
        rng = self.rng("world")
        self.snapshots, self.nulls = rng.random() < 0.5, rng.random() < 0.2
        self.strategies = ("offset",) if rng.random() < 0.8 else ("offset", "timestamp", "header")
        self.by_yield = rng.random() < 0.4
        self.lives = itertools.count()
        self.logs: dict[str, Log] = {}
        self.current: dict[str, Generation] = {}
        self.archive.mkdir(parents=True)
        for topic in TOPICS:
            self.create(topic, rng)

    def rng(self, step: object) -> random.Random:
        return random.Random(f"{self.case.seed}.{self.case.number}.{step}")

    def create(self, topic: str, rng: random.Random) -> None:
        """Create a topic without records."""
        topic_id = rng.randbytes(16) if rng.random() < 0.5 else None
        log = Log(self.archive, topic, topic_id=topic_id, indexes=rng.random() < 0.7, lives=self.lives)
        log.create()
        self.logs[topic] = log

    def play(self) -> None:
        """Run all steps. Raises Failed with the complete history."""
        for step in self.case.steps:
            rng = self.rng(step)
            names = self.weights(step)
            name = rng.choices(list(names), list(names.values()))[0]
            command_name = f"{step} {name}"
            self.told.append(command_name)
            self.tally.steps[name] += 1
            try:
                getattr(self, name)(rng)
                self.write_checkpoints()
            except Exception as error:  # also the reader's errors: an unreadable log is wrong
                message = str(error) if isinstance(error, Failed) else "".join(traceback.format_exception(error)[-4:])
                history = "".join(f"\n      {one}" for one in self.told)
                raise Failed(f"step {step}, {name}: {message}{history}") from error

    def weights(self, step: int) -> dict[str, int]:
        """Return the steps that may come next, with their weights."""
        return _FIRST if step < len(_FIRST) else _STEPS | (_NIGHTS if self.by_yield else {})

    def tell(self, words: str) -> None:
        """Append the effect of a step to the history."""
        self.told[-1] += f": {words}"

    # the broker

    def any_log(self, rng: random.Random) -> Log:
        return self.logs[rng.choice(TOPICS)]

    def append(self, rng: random.Random) -> None:
        log = self.any_log(rng)
        begin = log.end
        if rng.random() < 0.4:
            log.roll(self.snapshots)
        for _ in range(rng.randint(1, 3)):
            self.clock_ms += rng.choice((1000, 60_000, HOUR_MS // 4))
            pid = rng.choice((-1, -1, 100, 101))
            log.append(drawn_records(rng, log, self.clock_ms, nulls=self.nulls), pid=pid, codec=drawn_codec(rng))
        self.tell(f"{log.topic} {begin}..{log.end - 1}")

    def transact(self, rng: random.Random) -> None:
        """Begin a transaction, or append to it."""
        log, pid = self.any_log(rng), rng.choice((200, 201, 202))
        self.clock_ms += 1000
        if rng.random() < 0.3:
            log.roll(self.snapshots)
        batch = log.append(
            drawn_records(rng, log, self.clock_ms, nulls=self.nulls, most=3), pid=pid, transactional=True
        )
        self.tell(f"{log.topic} {batch.base_offset}..{batch.last_offset}, producer {pid}")

    def end(self, rng: random.Random) -> None:
        """Commit or abort a transaction; now and then one without data."""
        log = self.any_log(rng)
        among = sorted(log.open) or [pid for pid in log.producers if pid >= 200][:1]
        if among:
            pid, kind = rng.choice(among), rng.choice((ABORT, COMMIT))
            self.clock_ms += 1000
            log.end_transaction(pid, kind, self.clock_ms)
            self.tell(f"{log.topic} {log.end - 1}, {('abort', 'commit')[kind]} of producer {pid}")

    def roll(self, rng: random.Random) -> None:
        log = self.any_log(rng)
        log.roll(self.snapshots)
        if rng.random() < 0.2:
            log.new_leader()
        self.tell(f"{log.topic} at {log.end}")

    def retention(self, rng: random.Random) -> None:
        """Remove a log's oldest segments, as a broker does; its checkpoint is written, or not yet."""
        log = self.any_log(rng)
        n = min(rng.randint(1, 4), len(log.segments) - 1)
        current = self.current.get(log.topic)
        if rng.random() < 0.8 and current is not None:  # mostly segments that the store holds
            n = min(n, sum(s.base < current.first_dirty for s in log.segments[1:]))
        log.give_up(n)
        if rng.random() < 0.5:
            log.start_known = max(log.start_known or 0, log.segments[0].base)
        elif n:
            log.odd.add("begins later, and no checkpoint says so")
        self.tell(f"{log.topic} from {log.segments[0].base} on, log start {log.start_known}")
        if rng.random() < 0.2:
            self.reindex_in_place(rng)

    def delete_records(self, rng: random.Random) -> None:
        log = self.any_log(rng)
        at = rng.randint(log.segments[0].base, log.end)
        log.start_known = max(log.start_known or 0, at)
        whole = sum(s.base <= log.start_known for s in log.segments[1:])
        log.give_up(whole if rng.random() < 0.5 else 0)
        self.tell(f"{log.topic} below {log.start_known}")

    def recreate(self, rng: random.Random) -> None:
        old = self.any_log(rng)
        shutil.rmtree(old.folder)
        self.create(old.topic, rng)
        log = self.logs[old.topic]
        log.odd.add("created again")
        if rng.random() < 0.4 and old.end < 150:  # one batch across all former offsets
            records = [g for _ in range(60) for g in drawn_records(rng, log, self.clock_ms, nulls=False)]
            log.append(records[: old.end + 2])
        self.tell(f"{log.topic}, up to {log.end}; was up to {old.end}")

    def lose(self, rng: random.Random) -> None:
        """Lose a segment, but not the last one. Or copy the log in parts, and index it before it is whole."""
        log = self.any_log(rng)
        if len(log.segments) > 1:
            in_parts = rng.random() < 0.3
            log.lose(rng.randrange(len(log.segments) - 1), log_alone=not in_parts and rng.random() < 0.5)
            self.tell(f"{log.topic} {log.lost[-1]}{', until its indexes are made' * in_parts}")
            if in_parts:
                self.reindex_in_place(rng)
                log.find()

    def find(self, rng: random.Random) -> None:
        log = self.any_log(rng)
        if log.missing:
            self.tell(f"{log.topic} {log.lost}")
            log.find()

    def high_watermark(self, rng: random.Random) -> None:
        """Make the high watermark known, let it lag, or remove it."""
        log = self.any_log(rng)
        log.hw_known = rng.random() < 0.6
        borders = [b for b in log.batches if b >= max(log.hw, log.start_known or 0)]
        log.hw = rng.choice([*borders[-3:], log.end])
        self.tell(f"{log.topic} {log.hw if log.hw_known else None}; log end {log.end}")
        if log.hw_known and (current := self.current.get(log.topic)) and log.hw < current.next:
            log.odd.add("high watermark below the generation's end")

    def side_files(self, rng: random.Random) -> None:
        """Remove snapshots or indexes."""
        log, kinds = self.any_log(rng), rng.choice((("snapshot",), ("index", "timeindex", "txnindex")))
        for kind in kinds:
            for path in log.folder.glob(f"*.{kind}"):
                path.unlink()
        log.indexes = log.indexes and kinds[0] == "snapshot"
        self.snapshots = rng.random() < 0.5
        self.tell(f"{log.topic} without {' '.join(kinds)}")

    def damage(self, rng: random.Random) -> None:
        """Damage or remove what runs by yield have left beside the logs of the store."""
        kind = rng.choice(("*.facts", "*.filter", "*.keys", "hash.key"))
        folders = sorted((self.store / "segments").rglob(kind))
        for path in folders if rng.random() < 0.5 else rng.sample(folders, min(len(folders), 1)):
            data, how = path.read_bytes(), rng.randrange(4)
            if how == 0:
                path.unlink()
            else:
                at = rng.randrange(max(len(data), 1))
                path.write_bytes((data[:at], data[:at] + b"?" + data[at + 1 :], b"")[how - 1])
        self.tell(f"{len(folders)} {kind}")

    def wait(self, rng: random.Random) -> None:
        self.clock_ms += rng.choice((HOUR_MS, 6 * HOUR_MS, 2 * DAY_MS))

    def write_checkpoints(self) -> None:
        """Write the checkpoints of the log directory."""
        logs = self.logs.values()
        starts = [(log.topic, log.start_known) for log in logs if log.start_known is not None]
        ends = [(log.topic, log.hw) for log in logs if log.hw_known]
        for name, rows in (("log-start-offset-checkpoint", starts), ("replication-offset-checkpoint", ends)):
            path = self.archive / name
            lines = ["0", str(len(rows)), *(f"{topic} 0 {offset}" for topic, offset in rows)]
            if rows:
                path.write_text("\n".join(lines) + "\n")
            else:
                path.unlink(missing_ok=True)

    # commands

    def command(self, *words: object, codes: Sequence[int] = (0,)) -> Output:
        """Run a command; any other exit code than these is a failure."""
        if self.archive.exists():
            self.write_checkpoints()
        output = run([*map(str, words), "--json"])
        short = " ".join(str(w).replace(f"{self.root}/", "") for w in words)
        if words[0] not in ("verify", "inspect", "lookup"):
            self.told.append(f"    {short} -> {output.code}")
        check_end(output)
        if output.code not in codes:
            raise Failed(f"{short}: expected exit code {codes}, found {shown(output)}")
        return output

    def compact(self, rng: random.Random) -> None:
        """Compact with options and settings that differ each time."""
        output, report = self.compacted(rng)
        aside = [p for p in output.report["partitions"] if p["status"] == "uncleanable"]
        for p in aside:
            self.check_uncleanable(p, report)
        if aside and rng.random() < 0.7:
            self.way_out(rng, {p["topic"] for p in aside})

    def way_out(self, rng: random.Random, topics: set[str]) -> None:
        """Run again with the options that make any uncleanable partition cleanable."""
        output, _ = self.compacted(rng, free=True)
        aside = [p for p in output.report["partitions"] if p["status"] == "uncleanable" and p["topic"] in topics]
        for p in aside:
            if p["problem"]["path"].endswith(
                ".txnindex"
            ):  # the index is wrong, or a marker is lost: the hint says to take it away
                (self.archive / p["problem"]["path"]).unlink()
                self.logs[p["topic"]].indexes = False
            elif not _undecided(p["problem"]):
                raise Failed(f"no way out: {p['problem']}")

    def compacted(self, rng: random.Random, *, free: bool = False) -> tuple[Output, RunOptions]:
        """Compact and judge the run. free: use the options against every reason for an uncleanable partition."""
        now_ms = self.clock_ms + rng.choice((0, 0, 0, HOUR_MS, 2 * DAY_MS, 4 * DAY_MS, -DAY_MS))
        policy = rng.choice(("compact",) * 6 + ("compact,delete",) * (3 if self.by_yield else 1) + ("delete",))
        options = RunOptions(
            now_ms=now_ms,
            policy=policy,
            strategy=rng.choice(self.strategies),
            null_keys="keep" if free else rng.choice(("fail", "keep", "drop")),
            min_lag_ms=rng.choice((0, 0, 0, HOUR_MS)),
            retention_ms=rng.choice(_RETENTION_MS[policy]),
            retention_bytes=rng.choice((-1, 600, 2000)) if "delete" in policy else -1,
            delete_retention_ms=rng.choice((0, HOUR_MS, DAY_MS)),
            sealed=rng.random() < 0.3,
            force=rng.random() < (0.1 if self.by_yield else 0.4),
            accept=free or rng.random() < 0.1,
        )
        words: list[object] = ["compact", self.archive, "--store", self.store, "--config", self.settings(rng, options)]
        words += ["--now", now_ms, "--set", f"null.keys={options.null_keys}"]
        words += ["--sealed"] * options.sealed + ["--force"] * options.force + ["--set", "gaps=accept"] * options.accept
        reset = "*" if free or self.has_moved() else rng.choice((*TOPICS, "*")) if rng.random() < 0.1 else ""
        words += ["--reset", reset] if reset else []
        words += ["--topics", rng.choice(TOPICS)] if rng.random() < 0.2 and not free else []
        words += ["--io-budget", rng.choice((0, 2000, 10_000))] if rng.random() < 0.2 else []
        output = self.command(*words, codes=(0, 3))
        made: list[str] = []
        for p in output.report["partitions"]:
            if p["generation"] is not None:
                if p["reset"] and "--reset" not in words:
                    raise Failed(f"started over without --reset: {p}")
                self.committed(p, output.report, options)
                made.append(p["topic"])
        if output.code == 3 and not any(p["status"] == "uncleanable" for p in output.report["partitions"]):
            raise Failed(f"exit code 3, and nothing is uncleanable: {shown(output)}")
        done = [f"{p['topic']} {p['status']} {p['generation'] or ''}" for p in output.report["partitions"]]
        done += [str(p["problem"]) for p in output.report["partitions"] if p["problem"]]
        self.told.append(
            f"      {', '.join(done)}; {options}; archive needed: {output.report['archive_needed_because']}"
        )
        self.check_contents(made, output.report)
        return output, options

    def night(self, rng: random.Random) -> None:
        """Append some batches to both logs, and roll them; then compact."""
        for log in self.logs.values():
            for _ in range(rng.randint(0, 3)):
                self.clock_ms += HOUR_MS
                log.append(drawn_records(rng, log, self.clock_ms, nulls=self.nulls), codec=drawn_codec(rng))
            log.roll(self.snapshots)
        self.compact(rng)

    def settings(self, rng: random.Random, options: RunOptions) -> Path:
        """Write a file with the run's settings."""
        path = self.root / "settings.toml"
        values = {
            "cleanup.policy": options.policy,
            "compaction.strategy": options.strategy,
            "min.compaction.lag.ms": options.min_lag_ms,
            "max.compaction.lag.ms": rng.choice((DAY_MS, 1 << 62)),
            "delete.retention.ms": options.delete_retention_ms,
            "segment.bytes": rng.choice((100, 400, 1500, 1 << 30)),
            "min.cleanable.dirty.ratio": rng.choice((0.0, 0.0, 0.4)),
            "retention.ms": options.retention_ms,
            "retention.bytes": options.retention_bytes,
            "compaction.schedule": "yield" if self.by_yield and rng.random() < 0.9 else "full",
            "compaction.min.yield": rng.choice((0.0, 0.0, 0.5)),
            "compaction.full.ms": rng.choice((DAY_MS, *(1 << 62,) * 5)),
            **({"compaction.strategy.header": "v"} if options.strategy == "header" else {}),
        }
        job = {"split.by": rng.choice(("auto", "none", "always")), "split.bytes": rng.choice((200, 1 << 30))}
        lines = ["[defaults]", *(f'"{k}" = {json.dumps(v)}' for k, v in values.items())]
        path.write_text("\n".join([*lines, "[job]", *(f'"{k}" = {json.dumps(v)}' for k, v in job.items())]) + "\n")
        return path

    def committed(self, p: dict[str, Any], report: dict[str, Any], options: RunOptions) -> None:
        """Judge a generation, by reading its files in their places; `check_contents` compares restore with the same."""
        topic, log = p["topic"], self.logs[p["topic"]]
        before = self.current.get(topic)
        parent = None if p["reset"] else before
        if parent is not None and not log.is_same_as(parent.log.life, parent.next):
            blind = log.segments[0].base >= parent.next and None in (log.topic_id, parent.log.topic_id)
            how = ", and nothing tells them apart" if blind else ""
            raise Failed(f"{topic}: continued from generation {parent.number}, which is of another log{how}")
        hole = self.hole(log, parent, p["next_offset"])
        if hole and not options.accept:
            raise Failed(f"{topic}: continued over {hole}, which are missing, and says nothing of it")
        records = given_to(log, parent)
        contents, in_archive = self.read_generation(topic, p["generation"], report["run_id"])
        made = Generation(
            p["generation"], report["run_id"], p["log_start_offset"], p["next_offset"], p["first_dirty_offset"],
            options.now_ms, self.archive, log, contents, in_archive, parent, before,
            frozenset(row.record for row in records.values()), options.strategy,
        )  # fmt: skip
        if wrong := list(list_faults(made, log, records, options)):
            raise Failed(
                f"{topic}, generation {made.number} ({made.start}..{made.next}), {options}:\n      "
                + "\n      ".join(wrong[:4])
            )
        self.current[topic] = made
        self.tally.generations += 1
        self.tally.by_yield += bool(p["schedule"])
        self.tally.carried += any(segment["reason"] == "kept" for segment in p["schedule"])
        self.tally.records += len(contents.rows)
        if p["reset"] or parent is None or options.accept:
            log.odd -= {"hole", "came back", "created again", "restored", "begins later, and no checkpoint says so"}
            if not options.accept:
                log.lost = []

    def hole(self, log: Log, parent: Generation | None, until: int) -> list[tuple[int, int]]:
        """Return the offsets of lost segments that this run needed, and must have missed."""
        first = parent.next if parent is not None else log.segments[0].base
        first = max(first, log.start_known or 0)
        if log.cleaned:
            return []
        return [(a, b) for a, b in log.lost if b >= first and b < until]

    def read_generation(self, topic: str, number: int, run_id: str) -> tuple[Contents, frozenset[int]]:
        """Read a generation as its manifest.json lists it; return its contents, and the offsets that it takes from the
        archive, with the bases of empty segments.
        """
        folder = self.store / "segments" / f"{topic}-0" / f"{number}-{run_id}"
        listed = json.loads((folder / "manifest.json").read_text())["generation"]["segments"]
        work = self.root / "files" / f"{topic}-0"
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        in_archive: set[int] = set()
        for segment in listed:
            root = self.archive if segment["root"] == "archive" else self.store
            path = work / f"{segment['base_offset']:020}.log"
            data = (root / segment["path"]).read_bytes()[: segment["size_bytes"]]
            path.write_bytes(data)
            if root == self.archive:
                in_archive |= {segment["base_offset"], *range(segment["base_offset"], segment["next_offset"])}
        return read_folder(work), frozenset(in_archive)

    def check_contents(self, topics: Sequence[str], report: dict[str, Any]) -> None:
        """Check that restore returns the judged contents, also without the archive if the report says that it is not
        needed; verify and reindex find no problem.
        """
        if not topics:
            return
        away = self.root / "archive.away"
        if report["archive_needed"]:
            self.restored(topics)
        else:
            self.archive.rename(away)
            try:
                self.restored(self.current)
            finally:
                away.rename(self.archive)
            for topic in self.current:
                self.check_all_held(topic)
        self.verify_store()

    def verify_store(self, *more: object) -> None:
        """Run verify on the store: it finds nothing wrong, except in partitions whose archive has changed since."""
        odd = {topic for topic in self.current if self.logs[topic].odd & {"hole", "came back", "created again"}}
        odd |= {topic for topic, made in self.current.items() if self.is_torn(made, self.logs[topic])}
        output = self.command("verify", "--store", self.store, *more, *self.now_at(more), codes=(0, 3) if odd else (0,))
        for p in output.report["partitions"] if odd else ():
            if p["problems"] and p["topic"] not in odd:
                raise Failed(f"verify --store: {p['problems']}")

    def check_all_held(self, topic: str) -> None:
        """Check that the generation reaches the log end, because the report says that the archive is no longer
        needed.
        """
        log, made = self.logs[topic], self.current[topic]
        if made.next != log.end and log.end > made.start:
            raise Failed(f"{topic}: the archive is not needed, and ends at {log.end}, generation at {made.next}")

    def restored(self, topics: Collection[str], *more: object) -> Path:
        """Restore the current generations, and compare them with the judged contents; leave out those that name
        segments which the archive has lost.
        """
        output = self.root / "restored"
        shutil.rmtree(output, ignore_errors=True)
        whole = [topic for topic, made in self.current.items() if not self.is_torn(made, self.logs[topic])]
        if len(whole) < len(self.current):
            topics = [topic for topic in topics if topic in whole]
            more = ("--topics", *topics[:1], *more)
        if not topics:
            return output
        without = {f"{topic}-0" for topic in self.logs if topic not in self.current}  # restore names them
        words = ["restore", "--store", self.store, "--output", output, *more, *self.now_at(more)]
        text = self.command(*words, codes=(0, 3) if without else (0,))
        problems = [p for p in text.report["problems"] if p["kind"] != "no_generation" or p["path"] not in without]
        if problems:
            raise Failed(f"restore: {problems}")
        existing = {p["topic"]: p for p in text.report["partitions"]}
        for topic in topics:
            if topic not in existing:
                raise Failed(f"{topic}: restore leaves it out: {existing}")
            made = self.current[topic]
            contents = read_folder(output / f"{topic}-0")
            if contents != made.contents:
                raise Failed(f"{topic}: restored {difference(contents, made.contents)}")
            if existing[topic]["log_start_offset"] != made.start or existing[topic]["next_offset"] != made.next:
                raise Failed(f"{topic}: restored {existing[topic]}, expected {made.start}..{made.next}")
        self.command("verify", output, "--set", "gaps=accept")
        self.command("reindex", output, "--check")
        return output

    def has_moved(self) -> bool:
        """Return whether a current generation was made from another place of the archive."""
        return any(made.archive != self.archive for made in self.current.values())

    def now_at(self, given: Sequence[object]) -> Sequence[object]:
        """Return the option with the archive's present place, if it has moved and `given` does not have it."""
        return ("--archive", self.archive) if self.has_moved() and "--archive" not in given else ()

    def check_uncleanable(self, p: dict[str, Any], options: RunOptions) -> None:
        """Check that the model knows a reason why a partition is uncleanable."""
        log, problem = self.logs[p["topic"]], p["problem"]
        nulls = any(e.record.key is None for e in log.entries.values())
        if problem["kind"] == "null_key" and nulls and options.null_keys == "fail":
            return
        if problem["kind"] == "version" and options.strategy == "header":
            return
        if problem["kind"] == "defect" or not log.odd:
            raise Failed(f"uncleanable without a reason (odd: {log.odd or 'nothing'}): {problem}")

    def rollback(self, rng: random.Random) -> None:
        numbers = [g.number for g in self.current.values()]
        if not numbers or max(numbers) < 2:
            return
        to = rng.randint(1, max(numbers) - 1)
        output = self.command("rollback", "--store", self.store, "--generation", to, codes=(0, 2, 3))
        if output.code == 0:
            for p in output.report["partitions"]:
                now = self.current[p["topic"]]
                old = next(generation for generation in now.line() if generation.number == to)
                self.current[p["topic"]] = replace(old, number=p["generation"], run_id=p["run_id"], before=now)
                log = self.logs[p["topic"]]
                if old.log is not log:  # the archive has been replaced since
                    log.odd.add("restored" if log.is_same_as(old.log.life, old.next) else "created again")
        self.look()

    def look(self) -> None:
        """Check the current generations against the model, if all their files exist."""
        self.restored(self.current)
        self.verify_store()

    def is_torn(self, made: Generation, log: Log) -> bool:
        """Return whether the archive has lost offsets that a generation takes from it."""
        here = {s.base for s in log.segments}
        return any(base not in here for base in made.contents.bases if base in made.in_archive) or (
            bool(made.in_archive) and not log.is_same_as(made.log.life, made.next)
        )

    def vacuum(self, rng: random.Random) -> None:
        """Run vacuum: unless asked, it deletes nothing that only one generation holds and the current one's chain has
        never read. A dry run names the same files.
        """
        if self.current:
            self.vacuumed(rng)
            self.look()

    def vacuumed(self, rng: random.Random) -> None:
        """Run vacuum once, perhaps with --give-up for a topic; check that it deletes no last copy."""
        words: list[object] = ["vacuum", "--store", self.store, "--grace-hours", rng.choice((0, 0, 1000))]
        given_up = rng.choice(TOPICS) if rng.random() < 0.2 else ""
        words += ["--give-up", given_up] if given_up in self.current else []
        obliged = {topic: self.obliged(topic) for topic in self.current if topic != given_up}
        dry, output = self.command(*words, "--dry-run"), self.command(*words)
        if dry.report["partitions"] != output.report["partitions"] or dry.report["kept"] != output.report["kept"]:
            raise Failed(f"a dry run said {dry.report}, vacuum {output.report}")
        for topic, records in obliged.items():
            left = self.in_store(topic)
            if removed := sorted(records - left, key=lambda r: r.offset):
                raise Failed(f"{topic}: vacuum took the only copy of {len(removed)} records: {removed[:2]}")

    def obliged(self, topic: str) -> set[Record]:
        """Return the records that the store holds, the archive does not, and the current generation's chain has never
        read into files of the store.
        """
        archived = {row.record for row in rows_by_offset(list(self.logs[topic].held())).values()}
        chain = self.current[topic].chain()
        read = {record for made in chain for record in made.given if record.offset not in made.in_archive}
        return self.in_store(topic) - archived - read

    def in_store(self, topic: str) -> set[Record]:
        """Return all records of all .log files of a partition in the store."""
        records: set[Record] = set()
        for folder in (self.store / "segments" / f"{topic}-0").iterdir():
            if folder.is_dir() and any(folder.glob("*.log")):
                records |= {row.record for row in read_folder(folder).rows.values()}
        return records

    def rebuild_state(self, rng: random.Random) -> None:
        """Lose the tables and rebuild them. First lose only some and run vacuum: it deletes no last copy."""
        if not self.current:
            return
        lost = rng.sample(("cleaner_runs", "cleaner_state"), rng.randrange(3))
        for name in lost:
            shutil.rmtree(self.store / "state" / name, ignore_errors=True)
        self.tell(" ".join(lost))
        if lost:
            self.vacuumed(rng)
        shutil.rmtree(self.store / "state")
        output = self.command("rebuild-state", "--store", self.store, codes=(0, 2))
        if output.code == 2:
            chosen = [f"--choose={topic}-0={made.run_id}" for topic, made in self.current.items()]
            output = self.command("rebuild-state", "--store", self.store, *chosen)
        for p in output.report["partitions"]:
            now = self.current[p["topic"]]
            self.current[p["topic"]] = replace(now, number=p["generation"], run_id=p["run_id"])
        self.look()

    def reindex(self, rng: random.Random) -> None:
        before = {log.topic: [b.data for b in log.held()] for log in self.logs.values()}
        if rng.random() < 0.7:
            self.reindex_in_place(rng)
        else:
            output = self.root / "indexes"
            shutil.rmtree(output, ignore_errors=True)
            self.command("reindex", self.archive, "--output", output, codes=(0, 3))
        for topic, log in self.logs.items():
            if [b.data for b in read_folder(log.folder).batches] != before[topic]:
                raise Failed(f"{topic}: reindex changed a .log")

    def reindex_in_place(self, rng: random.Random) -> None:
        self.command("reindex", self.archive, "--in-place", codes=(0, 3))
        for log in self.logs.values():
            log.indexes = True

    def go_on(self, rng: random.Random) -> None:
        """Lose the archive; a broker continues with the restored folder, with a new store or the same one."""
        if len(self.current) < len(TOPICS) or any(self.is_torn(g, self.logs[t]) for t, g in self.current.items()):
            return
        restored = self.restored(self.current)
        shutil.rmtree(self.archive)
        restored.rename(self.archive)
        for topic, made in self.current.items():
            log = self.logs[topic] = made.log.continued_with(self.archive / f"{topic}-0", made.next)
            log.start_known = made.start if made.start > log.segments[0].base else None
            log.hw_known = True
        self.tell(", ".join(f"{log.topic} {log.segments[0].base}..{log.end}" for log in self.logs.values()))
        if rng.random() < 0.3:
            self.tell("a new store")
            shutil.rmtree(self.store)
            self.current = {}

    def move(self, rng: random.Random) -> None:
        """Move the archive. Commands with --archive find it; compact demands --reset."""
        if not self.current or any(self.is_torn(g, self.logs[t]) for t, g in self.current.items()):
            return
        moved = self.root / f"archive{len(self.told)}"
        self.write_checkpoints()
        old, self.archive = self.archive, moved
        old.rename(moved)
        self.restored(self.current, "--archive", moved)
        self.verify_store("--archive", moved)
        if rng.random() < 0.5:
            moved.rename(old)
            self.archive = old
            return
        for log in self.logs.values():
            log.folder = moved / f"{log.topic}-0"
            log.odd.add("moved")
        as_before = ("compact", moved, "--store", self.store, "--topics", "*", "--cleanup-policy", "compact")
        self.command(*as_before, codes=(2,))
        self.way_out(rng, set(TOPICS))

    def read(self, rng: random.Random) -> None:
        """Check what readers see of the archive, and of the store."""
        if all(not log.odd for log in self.logs.values()):
            if all(log.indexes for log in self.logs.values()):  # readers need a .txnindex, and verify says so
                self.verify_archive()
            seen = data_source(self.archive, self.root, self.gaps())
            if seen.problems:
                raise Failed(f"data source: {seen.problems}")
            rows = {(r["topic"], r["offset"], r["key"], r["value"]) for r in seen.output["committed"]}
            least, most = set(self.committed_rows(0)), set(self.committed_rows(1))
            if not least <= rows <= most:
                raise Failed(f"read_committed: missing {list(least - rows)[:3]}, more {list(rows - most)[:3]}")
        for topic, made in self.current.items():
            if self.is_torn(made, self.logs[topic]):
                continue
            at = rng.randint(made.start, max(made.start, made.next - 1))
            batch = next((b for b in made.contents.batches if b.last_offset >= at), None)
            positions = {
                max(made.contents.bases),
                at if batch is None else batch.base_offset,
            }  # it looks up the log end too
            lost = made.archive != self.archive and bool(positions & made.in_archive)
            words = ("lookup", "--store", self.store, "--partition", f"{topic}-0", "--offset", at)
            output = self.command(*words, codes=(3,) if lost else (0,))
            if lost:  # the generation names its place before the archive moved
                if f"{made.archive}/{topic}-0/" not in output.report["partitions"][0]["problem"]:
                    raise Failed(f"lookup of {topic} {at}: {output.report}, expected a file of {made.archive}")
                continue
            [answer] = output.report["partitions"][0]["answers"]
            if batch is not None and answer["batch_base_offset"] != batch.base_offset:
                raise Failed(f"lookup of {topic} {at}: {answer}, expected the batch at {batch.base_offset}")

    def verify_archive(self) -> None:
        """Check that verify finds nothing wrong with the archive."""
        self.command("verify", self.archive, "--set", f"gaps={self.gaps()}")

    def gaps(self) -> str:
        """Return what readers of the archive do about a gap."""
        return "fail"

    def committed_rows(self, most: int) -> Iterator[tuple[str, int, bytes | None, bytes | None]]:
        """Yield the rows that a consumer of committed records sees, at least or at most: a broker that starts again may
        know nothing of an open transaction below the log start.
        """
        for topic, log in self.logs.items():
            start = max(log.segments[0].base, log.start_known or 0)
            held = [b.base_offset for b in log.held() if b.transactional and b.last_offset >= start]
            opened = [o for o in held if is_open(log.entries[o])] if most else [t.first for t in log.open.values()]
            stable = min([log.end, *opened])
            for offset, row in rows_by_offset(list(log.held())).items():
                txn = log.entries[offset].txn
                if start <= offset < stable and not row.batch.control and not (txn and txn.aborted):
                    yield topic, offset, row.record.key, row.record.value


_STEPS: Final = {  # step -> weight
    "append": 22, "transact": 11, "end": 10, "roll": 9, "retention": 5, "delete_records": 3, "recreate": 1, "lose": 2,
    "find": 2, "high_watermark": 3, "side_files": 2, "damage": 2, "wait": 2, "compact": 22, "rollback": 3, "vacuum": 3,
    "rebuild_state": 2, "reindex": 2, "go_on": 2, "move": 1, "read": 2,
}  # fmt: skip
_NIGHTS: Final = {"night": 40, "append": 10, "transact": 5, "end": 15, "damage": 5, "compact": 5, "vacuum": 5}
_RETENTION_MS: Final = {"compact": (-1,), "compact,delete": (-1, HOUR_MS, DAY_MS), "delete": (HOUR_MS, DAY_MS)}
_FIRST: Final = {"append": 4, "transact": 1, "end": 1, "roll": 2}  # weights of the first four steps


def _undecided(problem: dict[str, Any]) -> bool:
    """Return whether no option helps against a problem: a transaction's end lies in a gap (COMPACTION.md, "Holes")."""
    return problem["kind"] == "gap" and "transaction" in problem["expected"]


def is_open(entry: Entry) -> bool:
    """Return whether a record belongs to a transaction that has not ended."""
    return entry.txn is not None and entry.txn.end is None


def difference(found: Contents, expected: Contents) -> str:
    """Return a short description of the difference."""
    if found.bases != expected.bases:
        return f"segments {found.bases}, expected {expected.bases}"
    more = [row.record for offset, row in found.rows.items() if expected.rows.get(offset) != row]
    less = [row.record for offset, row in expected.rows.items() if found.rows.get(offset) != row]
    return f"records {more[:3]}, expected {less[:3]}"


def failure(
    case: Case,
    root: Path,
    tally: Tally | None = None,
    known: Mapping[str, Known] = MappingProxyType(KNOWN),
    kind: type[World] = World,
) -> str | None:
    """Return the failure of a sequence; None: no failure, or a known one."""
    shutil.rmtree(root, ignore_errors=True)
    tally = tally or Tally()
    try:
        kind(root, case, tally, known).play()
    except Failed as error:
        message = str(error)
        head = " ".join(message.split("\n")[:2])
        for name, one in known.items():
            if one.pattern and re.search(one.pattern, head):
                tally.known[name] += 1
                return None
        return message
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(root)
    return None


def gist(message: str) -> str:
    """Return the first words of a failure, without numbers: two failures with one gist count as the same."""
    head = re.sub(
        r"\(\d+\.\.\d+\)|RunOptions\(.*?\)|^step \d+, |Record\(.*\)|/.*world", "", " ".join(message.split("\n")[:2])
    )
    return re.sub(r"\d+|\b[ab]\b", "", head)[:100]


def shrunk(
    case: Case,
    root: Path,
    seconds: float,
    known: Mapping[str, Known] = MappingProxyType(KNOWN),
    kind: type[World] = World,
) -> Case:
    """Return the smallest case with the same failure: leave out steps in halves, then in smaller pieces, then one by
    one.
    """
    end = time.monotonic() + seconds
    wrong = gist(failure(case, root, known=known, kind=kind) or "")
    size = len(case.steps) // 2
    while size:
        at = 0
        while at < len(case.steps) and time.monotonic() < end:
            fewer = Case(case.seed, case.number, case.steps[:at] + case.steps[at + size :])
            message = failure(fewer, root, known=known, kind=kind) if fewer.steps else None
            if message is not None and gist(message) == wrong:
                case = fewer
            else:
                at += size
        size //= 2
    return case
