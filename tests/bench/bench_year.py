"""A year of nights over many topics, in an hour: `python -m tests.bench.bench_year`.

A broker appends to a tenth of the topics each day, rolls and gives up segments, and creates topics again; a segment is
damaged for some nights; one of three disks is missing for a week. Each night runs `compact` with the clock of that
night, and now and then the other commands that people schedule. The model knows every record that was ever appended.
After each night it checks the report and metrics of the run, and each key of the topics that the run cleaned. In drawn
nights it also checks the output of `runs`, the result of `restore --as-of`, and the tables of `export --latest`. File
times go back a day each night, so that whatever waits for days finds that they have passed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import itertools
import json
import random
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lastkey.jobs.command import cli
from lastkey.jobs.store.latest import TableOffsets, read_table_offsets
from lastkey.udfs.storage import open_root
from tests.attack.histories import Output, run
from tests.attack.model_log import Log, drawn_codec, drawn_records
from tests.builders.trees import make_older
from tests.reference.log import ABORT, COMMIT, decode_log

DAY_MS: Final = 86_400_000
START_MS: Final = 1_700_000_000_000
DISKS: Final = 3
NIGHTS: Final = 4  # remembered; vacuum keeps as many generations
SETTINGS: Final = """[defaults]
"cleanup.policy" = "compact"
"min.cleanable.dirty.ratio" = 0.3
"delete.retention.ms" = 259200000
[job]
"engine" = "threads"
"""


class WrongError(Exception):
    """Error of the model: a command's report or result differs from the model."""


@dataclass
class Topic:
    """A topic of the model. next: end offset of the store; damaged: file, bytes, and the night of its repair."""

    log: Log
    disk: int
    next: int = 0
    damaged: tuple[Path, bytes, int] | None = None
    odd: bool = False  # created again, or its beginning went above the store's end: the partition may be uncleanable


@dataclass
class Night:
    """State after a night: the clock then, the run, and each topic's log with what was said of its generation."""

    clock_ms: int
    run_id: str
    code: int
    made: list[str]
    stands: dict[str, tuple[Log, dict[str, Any]]]


@dataclass
class Year:
    """All of it."""

    root: Path
    n_topics: int
    seed: int = 1
    night: int = 0
    topics: dict[str, Topic] = field(default_factory=dict)
    missing: tuple[int, int] | None = None  # a disk, and the night it comes back
    seconds: list[tuple[float, int]] = field(default_factory=list)  # by run, with the number of cleaned partitions
    stood: dict[int, Night] = field(default_factory=dict)  # the last nights
    success: tuple[float, float] | None = None  # the clock before and after the last run with exit code 0
    draw: float = 0.1  # share of the nights in which more commands are asked
    n_tables: int = 0  # topics whose last records are exported, by Spark
    tables: dict[str, tuple[Log, int]] = field(default_factory=dict)  # table -> its log, and where it begins
    said: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    checked: int = 0
    lives: Iterator[int] = field(default_factory=itertools.count)  # numbers of the logs

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def archive(self) -> Path:
        return self.root / "archive"

    @property
    def now_ms(self) -> int:
        return START_MS + self.night * DAY_MS

    def begin(self) -> None:
        self.rng = random.Random(self.seed)
        (self.root / "settings.toml").write_text(SETTINGS)
        for number in range(self.n_topics):
            disk = number % DISKS
            (self.archive / f"disk{disk}").mkdir(parents=True, exist_ok=True)
            self._create(f"topic-{number:03}", disk)

    def _create(self, name: str, disk: int) -> None:
        log = Log(self.archive / f"disk{disk}", name, topic_id=self.rng.randbytes(16), indexes=True, lives=self.lives)
        log.create()
        self.topics[name] = Topic(log, disk)
        self._append(log)

    # events by day

    def day(self) -> None:
        self.night += 1
        rng = self.rng
        if self.missing is not None and self.missing[1] <= self.night:
            (self.root / f"disk{self.missing[0]}").rename(self.archive / f"disk{self.missing[0]}")
            self.missing = None
        for topic in self.topics.values():
            if topic.damaged is not None and topic.damaged[2] <= self.night and self._is_there(topic):
                path, data, _ = topic.damaged
                path.write_bytes(data)
                topic.damaged = None
        writable = [topic for topic in self.topics.values() if self._is_there(topic) and topic.damaged is None]
        for topic in rng.sample(writable, min(len(writable), max(1, self.n_topics // 10))):
            self._append(topic.log)
        if rng.random() < 0.3:  # retention of a topic that the store has read
            topic = rng.choice(writable)
            n = sum(s.base < topic.next for s in topic.log.segments[1:])
            topic.log.give_up(rng.randint(0, n))
            topic.log.start_known = topic.log.segments[0].base
            self.events["beginnings given up"] += 1
        if rng.random() < 0.15:
            self._damage(rng.choice(writable))
        if self.night % 30 == 17:
            topic = rng.choice(writable)
            shutil.rmtree(topic.log.folder)
            self._create(topic.log.topic, topic.disk)
            self.topics[topic.log.topic].odd = True
            self.events["topics created again"] += 1
        if self.night % 120 == 50:
            disk = rng.randrange(DISKS)
            (self.archive / f"disk{disk}").rename(self.root / f"disk{disk}")
            self.missing = (disk, self.night + 7)
            self.events["weeks without a disk"] += 1
        self._write_checkpoints()

    def _append(self, log: Log) -> None:
        """Append some batches, perhaps a transaction, and begin a new segment."""
        rng, now_ms = self.rng, self.now_ms - DAY_MS // 2
        for _ in range(rng.randint(1, 4)):
            log.append(drawn_records(rng, log, now_ms, nulls=False, most=9), codec=drawn_codec(rng))
        if rng.random() < 0.2:
            log.append(drawn_records(rng, log, now_ms, nulls=False), pid=7, transactional=True)
            log.end_transaction(7, rng.choice((ABORT, COMMIT)), now_ms)
        log.roll(snapshots=True)

    def _damage(self, topic: Topic) -> None:
        """Change a byte of a segment that the next run must read."""
        segments = [s for s in topic.log.segments[:-1] if s.base >= topic.next and s.size > 80]
        if segments:
            path = topic.log.folder / f"{segments[0].base:020}.log"
            data = path.read_bytes()
            path.write_bytes(data[:70] + bytes([data[70] ^ 0x55]) + data[71:])
            topic.damaged = (path, data, self.night + self.rng.randint(1, 9))
            self.events["damaged segments"] += 1

    def _is_there(self, topic: Topic) -> bool:
        return self.missing is None or topic.disk != self.missing[0]

    def _write_checkpoints(self) -> None:
        for disk in range(DISKS):
            if self.missing is None or self.missing[0] != disk:
                rows = [(t.log.topic, t.log.start_known) for t in self.topics.values() if t.disk == disk]
                lines = [f"{name} 0 {offset}" for name, offset in rows if offset is not None]
                path = self.archive / f"disk{disk}" / "log-start-offset-checkpoint"
                path.write_text("\n".join(["0", str(len(lines)), *lines]) + "\n")

    # commands by night

    def run(self, *words: object, codes: Sequence[int] = (0,)) -> Output:
        output = run([*map(str, words), "--json"])
        if output.code not in codes:
            raise WrongError(f"night {self.night}: {words}: exit code {output.code}, {output.report} {output.stderr}")
        return output

    def sleep(self) -> None:
        """Run and check all commands of a night."""
        where = [self.archive, "--store", self.store, "--config", self.root / "settings.toml"]
        metrics = self.root / "compact.prom"
        begin, clock = time.perf_counter(), time.time()
        reset = [t.log.topic for t in self.topics.values() if t.odd and self._is_there(t)]
        words = ["--reset", ",".join(reset)] if reset and self.rng.random() < 0.5 else []
        words += ["--metrics-file", str(metrics)]
        output = self.run("compact", *where, "--now", self.now_ms, *words, codes=(0, 3))
        took = time.perf_counter() - begin
        if output.code == 0:
            self.success = clock, time.time()
        made = self._judge(output, reset="--reset" in words)
        self.seconds.append((took, len(made)))
        self._judge_metrics(metrics.read_text(), output, made)
        self._remember(output, made)
        if self.rng.random() < self.draw:
            self._ask_runs()
        if self.rng.random() < self.draw:
            self._restore_older()
        if self.n_tables and self.missing is None and self.rng.random() < self.draw:
            self._export_latest()
        if self.night % 5 == 0:
            self._delete(self.run("archive-needed", self.archive, "--store", self.store, codes=(0, 3)))
        if self.night % 7 == 0:
            self.run("vacuum", "--store", self.store, "--keep", NIGHTS)
        if self.night % 30 == 0:
            self.run("verify", "--store", self.store)
        make_older(self.root, 24)

    def _remember(self, output: Output, made: list[str]) -> None:
        before = self.stood[self.night - 1].stands if self.night - 1 in self.stood else {}
        stands = before | {
            p["topic"]: (self.topics[p["topic"]].log, p) for p in output.report["partitions"] if p["topic"] in made
        }
        self.stood[self.night] = Night(time.time_ns() // 1_000_000, output.report["run_id"], output.code, made, stands)
        self.stood.pop(self.night - NIGHTS, None)

    # commands of drawn nights

    def _judge_metrics(self, text: str, output: Output, made: list[str]) -> None:
        """Compare the metrics of a run with its report and the model."""
        metrics = samples(text)
        states = Counter(p["status"] for p in output.report["partitions"] if p["status"] != "uncleanable")
        counts = Counter({what: int(n) for (name, what), n in metrics.items() if name == "lastkey_run_partitions"})
        aside = sum(p["status"] == "uncleanable" for p in output.report["partitions"])
        wanted = {"lastkey_run_exit_code": output.code, "lastkey_run_committed_partitions": len(made)}
        if any(metrics[name, ""] != n for name, n in wanted.items()) or sum(counts.values()) != states.total() + aside:
            raise WrongError(
                f"night {self.night}: expected {wanted}, {states}, {aside} uncleanable; metrics: {metrics}"
            )
        self._judge_success(metrics)

    def _judge_success(self, found: dict[tuple[str, str], float]) -> None:
        """Compare the time of the last success with the model's."""
        last = found.get(("lastkey_last_success_timestamp_seconds", ""))
        if (last is None) != (self.success is None):
            raise WrongError(f"night {self.night}: last success {last}, expected {self.success}")
        if last is not None and self.success is not None and not self.success[0] <= last <= self.success[1]:
            raise WrongError(f"night {self.night}: last success {last}, expected {self.success}")

    def _ask_runs(self) -> None:
        """Compare what `runs` tells of the last nights with the model."""
        since = min(self.stood)
        output = self.run(
            "runs", "--store", self.store, *(("--since", self.stood[since].clock_ms) if since > 1 else ())
        )
        runs_by_id = {run["run_id"]: run for run in output.report["runs"] if run["job"] == "compact"}
        for number, night in self.stood.items():
            run = runs_by_id.get(night.run_id)
            if run is None and number == since > 1:
                continue  # it began in front of --since
            if (
                run is None
                or run["exit_code"] != night.code
                or run["figures"]["committed_partitions"] != len(night.made)
            ):
                raise WrongError(f"night {self.night}: of night {number} {night.made}, {night.code}, `runs` says {run}")
            made = {p["topic"]: p["generation"] for p in run["partitions"]}
            wanted = {name: night.stands[name][1]["generation"] for name in night.made}
            if made != wanted:
                raise WrongError(f"night {self.night}: of night {number} `runs` says {made}, expected {wanted}")
        shown = run_text(["runs", "--store", str(self.store), "--format", "openmetrics"])
        self._judge_success(samples(shown, command="compact"))
        self.events["nights asked of runs"] += 1

    def _restore_older(self) -> None:
        """Restore some topics as they were some nights ago, and compare each key."""
        number = self.rng.choice(list(self.stood))
        night, output = self.stood[number], self.root / "restored"
        names = self.rng.sample(sorted(night.stands), min(len(night.stands), 8))
        words = ("--topics", ",".join(names), "--as-of", night.clock_ms, "--output", output)
        if any(self.topics[name].disk == (self.missing or (None,))[0] for name in names):
            return  # its generations may need it
        text = self.run("restore", "--store", self.store, *words)
        generations = {p["topic"]: p["generation"] for p in text.report["partitions"]}
        wanted = {name: night.stands[name][1]["generation"] for name in names}
        if generations != wanted:
            raise WrongError(f"night {self.night}: as of night {number} restored {generations}, expected {wanted}")
        for name in names:
            logs = sorted((output / f"{name}-0").glob("*.log"))
            self._check(*night.stands[name], (batch for path in logs for batch in decode_log(path.read_bytes())))
        shutil.rmtree(output)
        self.events["topics restored as of a night"] += len(names)

    def _export_latest(self) -> None:
        """Update the tables of last records, and compare them with all records ever appended."""
        stands, output = self.stood[self.night].stands, self.root / "latest"
        names = [name for name in sorted(self.topics)[:: len(self.topics) // self.n_tables] if name in stands]
        words = ("--latest", "--format", "delta", "--output", output, "--topics", ",".join(names))
        text = self.run("export", "--store", self.store, *words, codes=(0, 3))
        problems = {p["topic"] for p in text.report["topics"] if p["problems"]}
        for name in names:
            log, p = stands[name]
            if name not in problems and self.tables.get(name, (None, 0))[0] is not log:
                self.tables[name] = log, p["log_start_offset"]
            if name in self.tables:
                self._check_table(name, output)
            if name in problems:  # retention removed it first, or it is unknown why a key is gone
                self.events["tables rebuilt"] += 1
                shutil.rmtree(output / name, ignore_errors=True)
                self.tables.pop(name, None)
            elif name in self.tables:
                self.events["tables checked"] += 1

    def _check_table(self, name: str, output: Path) -> None:
        log, begin = self.tables[name]
        stand = read_table_offsets(open_root(str(output)), name)
        if not isinstance(stand, TableOffsets):
            raise WrongError(f"night {self.night}: {name}: {stand}")
        wanted = last_records(log, begin, stand.offsets.get(0, 0))
        rows = DeltaTable(str(output / name)).to_pyarrow_table(columns=["key", "offset", "value"]).to_pylist()
        if {row["key"]: (row["offset"], row["value"]) for row in rows} != wanted:
            raise WrongError(f"night {self.night}: table of {name}, {stand}: expected {wanted}, found {rows}")

    def _delete(self, output: Output) -> None:
        """Delete unneeded segments, of about half of the topics."""
        there = {name for name, topic in self.topics.items() if self._is_there(topic)}
        if there != {p["topic"] for p in output.report["partitions"]}:
            raise WrongError(f"night {self.night}: archive-needed does not speak of all topics")
        for p in output.report["partitions"]:
            topic, removed = self.topics[p["topic"]], [s["base_offset"] for s in p["segments"] if not s["needed"]]
            if removed and (topic.odd or removed[-1] >= topic.next):
                raise WrongError(f"night {self.night}: {p} needs more")
            self.said["topics of which archive-needed frees a part"] += bool(removed)
            if self.rng.random() < 0.5:
                for uri in p["files"]:
                    Path(uri.removeprefix("file://")).unlink()
                topic.log.segments = [s for s in topic.log.segments if s.base not in removed]
                self.events["segments deleted"] += len(removed)

    def _judge(self, output: Output, *, reset: bool) -> list[str]:
        """Check a run's results for each topic, and each key of the cleaned topics. Return the cleaned topics."""
        partitions = {p["topic"]: p for p in output.report["partitions"]}
        made = []
        for name, topic in self.topics.items():
            p = partitions.pop(name, None)
            if not self._is_there(topic):
                if p is not None and p["generation"] is not None:
                    raise WrongError(f"night {self.night}: {name} lies on a missing disk: {p}")
                self.said["on a missing disk"] += 1
                continue
            if p is None:
                raise WrongError(f"night {self.night}: nothing is said of {name}")
            self.said[p["status"]] += 1
            aside = p["status"] == "uncleanable"
            if aside and topic.damaged is None and not topic.odd:
                raise WrongError(f"night {self.night}: {name} is uncleanable, and nothing is wrong: {p['problem']}")
            if aside and output.code != 3:
                raise WrongError(f"night {self.night}: exit code {output.code}, {name} is uncleanable")
            if p["generation"] is not None:
                if topic.damaged is not None and p["next_offset"] > int(topic.damaged[0].stem):
                    raise WrongError(f"night {self.night}: {name} went over a damaged segment: {p}")
                if topic.odd and not reset:
                    raise WrongError(f"night {self.night}: {name} is another log, and the run continued: {p}")
                topic.odd = False
                topic.next = p["next_offset"]
                self._check(topic.log, p, self._batches(name, p["generation"], output.report["run_id"]))
                made.append(name)
        if partitions:
            raise WrongError(f"night {self.night}: the run speaks of {sorted(partitions)}, which are not there")
        return made

    def _check(self, log: Log, p: dict[str, Any], batches: Iterable[Any]) -> None:
        """Compare the last record of each key with those that were appended."""
        end = p["first_dirty_offset"]
        live = last_records(log, p["log_start_offset"], end)
        newest: dict[bytes, tuple[int, bytes | None]] = {}
        for batch in batches:
            for record in () if batch.control else batch.records:
                if record.offset < end and record.key is not None and record.offset >= p["log_start_offset"]:
                    entry = log.entries[record.offset]
                    if entry.record.value != record.value:
                        raise WrongError(f"night {self.night}: {log.topic} {record} is not {entry.record}")
                    if entry.txn is None or not entry.txn.aborted:
                        newest[record.key] = (record.offset, record.value)
        if {key: one for key, one in newest.items() if one[1] is not None} != live:
            raise WrongError(f"night {self.night}: {log.topic}: expected {live}, found {newest}")
        self.checked += len(live)

    def _batches(self, name: str, generation: int, run_id: str) -> Iterator[Any]:
        folder = self.store / "segments" / f"{name}-0" / f"{generation}-{run_id}"
        for segment in json.loads((folder / "manifest.json").read_text())["generation"]["segments"]:
            root = self.archive if segment["root"] == "archive" else self.store
            yield from decode_log((root / segment["path"]).read_bytes()[: segment["size_bytes"]])


def last_records(log: Log, begin: int, end: int) -> dict[bytes, tuple[int, bytes]]:
    """Return offset and value of the last record of each key between two offsets, without deleted keys."""
    last: dict[bytes, tuple[int, bytes | None]] = {}
    for offset, entry in sorted(log.entries.items()):
        hidden = entry.batch.control or (entry.txn is not None and entry.txn.aborted)
        if entry.record.key is not None and not hidden and begin <= offset < end:
            last[entry.record.key] = offset, entry.record.value
    return {key: (offset, value) for key, (offset, value) in last.items() if value is not None}


def _run_figures(run: dict[str, Any]) -> tuple[int, int]:
    return run["exit_code"], run["figures"]["committed_partitions"]


def samples(text: str, **labels: str) -> dict[tuple[str, str], float]:
    """Return the samples of metrics by name and state, those with these labels."""
    return {
        (sample.name, sample.labels.get("state", sample.labels.get("kind", ""))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if labels.items() <= sample.labels.items()
    }


def run_text(words: list[str]) -> str:
    """Run a command, and return its output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if cli.main(words):
            raise WrongError(f"{words}: {out.getvalue()}")
    return out.getvalue()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=300)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tables", type=int, default=5, help="topics with a table of `export --latest`")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as root:
        year = Year(Path(root), options.topics, options.seed, n_tables=options.tables)
        year.begin()
        for _ in range(options.nights):
            year.day()
            year.sleep()
            if year.night % 30 == 0 or year.night == options.nights:
                last = [seconds for seconds, _ in year.seconds[-30:]]
                files = [p.stat().st_size for p in (year.store / "state").rglob("*") if p.is_file()]
                print(
                    f"night {year.night}: median {statistics.median(last):.2f} s, worst {max(last):.2f}; "
                    f"{sum(n for _, n in year.seconds[-30:])} generations; state {len(files)} files, "
                    f"{sum(files) / 1e6:.2f} MB; {year.checked} keys checked",
                    flush=True,
                )
                gc.collect()
        print(dict(year.events), dict(year.said))


if __name__ == "__main__":
    main()
