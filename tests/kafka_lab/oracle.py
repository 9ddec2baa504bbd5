"""Kafka's own reader, cleaner, index classes, producer and consumer, as Python functions over java/Lab.java."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from .jvm import lab

Isolation = Literal["read_uncommitted", "read_committed"]
ConfigKind = Literal["TOPIC", "BROKER"]


@dataclass(frozen=True)
class CleanSpec:
    """One partition directory to clean in place, at a constant clock. Defaults are Kafka's, save the map."""

    directory: Path
    now_ms: int
    segment_bytes: int = 1 << 30
    first_dirty_offset: int = 0
    log_start: int = 0
    delete_retention_ms: int = 86_400_000
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    max_message_bytes: int = 1_048_588
    producer_id_expiration_ms: int = 86_400_000
    dedupe_buffer_bytes: int = 16 << 20  # size of the key map, for 629,000 keys; the broker's is 128 MiB
    ends_with_range: bool = True  # the high watermark is the end of the range, as in a generation; else the log end


@dataclass(frozen=True)
class CleanRound:
    """Figures of one round, as the cleaner reports them; a log takes several rounds if its keys do not fit the map."""

    directory: Path
    first_dirty_offset: int
    end_offset: int  # the next first dirty offset
    messages_read: int
    messages_written: int
    invalid_messages_read: int  # records without a key
    bytes_read: int
    bytes_written: int
    active_producers: int
    seconds: float


@dataclass(frozen=True)
class Digest:
    """Counts of a partition, and SHA-256 of its canonical lines (java/Dump.java): data, record and batch lines."""

    segments: int
    bytes: int
    batches: int
    empty_batches: int
    data: int
    control: int
    tombstones: int
    first_offset: int
    last_offset: int
    data_sha256: str
    record_sha256: str
    batch_sha256: str


@dataclass(frozen=True)
class IndexReport:
    """`failures` is empty when every side file fits the log; `rebuild_differs`: files that Kafka rebuilds otherwise."""

    failures: list[str]
    rebuild_differs: list[str]
    segments: int
    offset_entries: int
    early_entries: int
    time_entries: int
    aborted_transactions: int
    snapshots: int


@dataclass(frozen=True)
class Consumed:
    """Result of the real consumer; the digest is comparable with Digest.data_sha256."""

    begin_offset: int
    end_offset: int
    records: int
    last_offset: int
    data_sha256: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Located:
    """A broker's own answers. For each offset: (segment base, position, last offset of the batch), None if out of
    range, (-1, -1, -1) if there is nothing to read. For each time: (offset, timestamp, leader epoch), None for none.
    """

    log_start_offset: int
    log_end_offset: int
    offsets: list[tuple[int, int, int] | None]
    times: list[tuple[int, int, int] | None]


@dataclass(frozen=True)
class RecoverSpec:
    """A partition directory to load as after a crash: indexes, snapshots and epochs are made in it."""

    directory: Path
    interval: int = 4096  # index.interval.bytes
    log_start: int = 0


def recover(specs: Iterable[RecoverSpec]) -> list[tuple[int, int]]:
    """Load directories with UnifiedLog after an unclean shutdown, and close them; return (log start, log end) of each.

    The clock is one at which no producer expires.
    """
    recovered = lab().call("recover", logs=[asdict(spec) for spec in specs])
    return [(one["log_start"], one["log_end"]) for one in recovered]


def delete_old_segments(
    directory: Path, settings: Mapping[str, object], now_ms: int, log_start: int = 0, high_watermark: int | None = None
) -> tuple[int, list[int]]:
    """Run UnifiedLog.deleteOldSegments on a directory at a clock; return (log start then, base offsets that are left).

    high_watermark: None is the log end.
    """
    more = {} if high_watermark is None else {"high_watermark": high_watermark}
    response = lab().call(
        "delete_old_segments", directory=directory, settings=dict(settings), now=now_ms, log_start=log_start, **more
    )
    return response["log_start"], response["segments"]


def recover_segments(directory: Path, rounds: int, interval: int = 4096) -> tuple[int, list[float]]:
    """Run LogSegment.recover on every segment, some rounds; return (bytes, seconds of each round's recover calls)."""
    response = lab().call("recover_segments", directory=directory, rounds=rounds, interval=interval)
    return response["bytes"], response["seconds"]


def locate(directory: Path, offsets: Sequence[int], times: Sequence[int], log_start: int = 0) -> Located:
    """Search a copy of a partition directory, opened with UnifiedLog after a clean shutdown."""
    reply = lab().call("locate", directory=directory, log_start=log_start, offsets=list(offsets), times=list(times))

    def tuples(answers: list[list[int]]) -> list[tuple[int, int, int] | None]:
        return [tuple(answer) if answer else None for answer in answers]  # type: ignore[misc]

    return Located(reply["log_start"], reply["log_end"], tuples(reply["offsets"]), tuples(reply["times"]))


def list_offsets(
    bootstrap: str, queries: Mapping[str, Sequence[int]], isolation: Isolation = "read_uncommitted"
) -> dict[str, list[tuple[int, int, int]]]:
    """Return Admin.listOffsets: `<topic>-<n>` -> (offset, timestamp, leader epoch) of each time, -1 for none.

    Times in ms; -1 latest, -2 earliest, -3 the largest timestamp.
    """
    reply = lab().call("list_offsets", bootstrap=bootstrap, isolation=isolation, queries=dict(queries))
    return {name: [tuple(answer) for answer in answers] for name, answers in reply.items()}  # type: ignore[misc]


def seek(bootstrap: str, queries: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Return `<topic>-<n>` -> offset of the first record that a consumer gets after it seeks each offset; -1: none."""
    return lab().call("seek", bootstrap=bootstrap, queries=dict(queries))


@dataclass(frozen=True)
class DrawSpec:
    """A partition directory that UnifiedLog writes, by operations drawn from a seed: java/DrawnLog.java."""

    directory: Path
    seed: int
    operations: tuple[int, ...]
    more: bool = False  # extends an existing directory; the fields below say from where
    log_start: int = 0
    now_ms: int = 0
    leader_epoch: int = 0
    clean: bool = True  # the broker had a clean shutdown
    recovery_point: int = 0  # after a crash: offset from whose segment on the log is recovered


@dataclass(frozen=True)
class DrawnLog:
    """A log that was written, and the settings to clean it with."""

    log_start: int
    log_end: int
    now_ms: int
    leader_epoch: int
    closed: bool  # else as a crash leaves it, but whole
    segment_bytes: int
    segment_index_bytes: int
    index_interval_bytes: int
    delete_retention_ms: int
    counts: Mapping[str, int]  # operation -> how often


def draw_logs(specs: Iterable[DrawSpec]) -> list[DrawnLog]:
    """Make logs, or extend existing ones (`more`)."""
    return [DrawnLog(**log) for log in lab().call("draw_logs", logs=[asdict(spec) for spec in specs])]


def clean(specs: Iterable[CleanSpec]) -> list[CleanRound]:
    """Run the broker's Cleaner in place over each directory, as a broker that has just started would."""
    rounds = lab().call("clean", logs=[asdict(spec) for spec in specs])
    return [CleanRound(**{**r, "directory": Path(r["directory"])}) for r in rounds]


def dump(paths: Iterable[Path], kinds: str = "BR") -> dict[Path, list[str]]:
    """Return canonical lines of partition directories or .log files, of the kinds D (data), R (record), B (batch).

    See java/Dump.java for the fields. A batch's line comes after those of its records.
    """
    return {path: lab().call("dump", path=path, kinds=kinds)["lines"] for path in paths}


def digest(paths: Iterable[Path]) -> dict[Path, Digest]:
    """Return counts and digests of partition directories or .log files."""
    return {path: Digest(**lab().call("dump", path=path, kinds="")["digest"]) for path in paths}


def without_segments(lines: Iterable[str]) -> list[str]:
    """Return the lines without the base of a batch's segment, to compare logs that are cut differently."""
    return [line.rpartition("\t")[0] if line.startswith("B\t") else line for line in lines]


def visible_lines(record_lines: Iterable[str], isolation: Isolation) -> list[str]:
    """Return the D lines that a consumer must get, worked out from the R lines of a log alone."""
    shown: list[tuple[int, str] | None] = []
    open_transactions: dict[str, list[int]] = {}  # producer id -> rows of `shown`
    for line in record_lines:
        fields = line.split("\t")
        offset, timestamp, _, key, value, headers, producer, _, _, transactional, control = fields[1:12]
        if control == "-":
            if transactional == "1":
                open_transactions.setdefault(producer, []).append(len(shown))
            shown.append((int(offset), "\t".join(("D", offset, timestamp, key, value, headers))))
        elif control in ("COMMIT", "ABORT"):
            rows = open_transactions.pop(producer, [])
            if control == "ABORT" and isolation == "read_committed":
                for row in rows:
                    shown[row] = None
    kept = [row for row in shown if row]
    if isolation == "read_committed" and open_transactions:
        last_stable = min(shown[rows[0]][0] for rows in open_transactions.values())
        kept = [row for row in kept if row[0] < last_stable]
    return [line for _, line in kept]


def digest_lines(lines: Iterable[str]) -> str:
    """Return the SHA-256 over lines as the lab takes it."""
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


def index_check(
    dirs: Iterable[Path], *, early: bool = False, rebuild: bool = False, interval: int = 4096
) -> dict[Path, IndexReport]:
    """Check each side file of partition directories against its log. early, rebuild: see java/IndexCheck.java."""
    return {
        path: IndexReport(**lab().call("index_check", directory=path, early=early, rebuild=rebuild, interval=interval))
        for path in dirs
    }


def make_logs(bootstrap: str, specs: Sequence[str]) -> list[dict[str, object]]:
    """Make topics through the real producer, one spec line a topic: see java/MakeLogs.java."""
    return lab().call("make_logs", bootstrap=bootstrap, specs=list(specs))


def create_topics(bootstrap: str, topics: Mapping[str, int], configs: Mapping[str, object]) -> None:
    """Make empty topics: name -> partitions."""
    texts = {name: str(value) for name, value in configs.items()}
    lab().call("create_topics", bootstrap=bootstrap, topics=dict(topics), configs=texts)


def delete_topics(bootstrap: str, topics: Sequence[str]) -> None:
    """Delete topics."""
    lab().call("delete_topics", bootstrap=bootstrap, topics=list(topics))


def alter_configs(bootstrap: str, kind: ConfigKind, name: str, configs: Mapping[str, object]) -> None:
    """Set configs of a topic, or a broker ("": the default of all); None removes one."""
    texts = {setting: None if value is None else str(value) for setting, value in configs.items()}
    lab().call("alter_configs", bootstrap=bootstrap, kind=kind, name=name, configs=texts)


def describe_configs(bootstrap: str, kind: ConfigKind, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return Admin.describeConfigs: name -> setting -> value as Kafka resolves it."""
    return lab().call("describe_configs", bootstrap=bootstrap, kind=kind, names=list(names))


def kafka_topics(bootstrap: str, *args: str) -> str:
    """Return what kafka-topics prints, for example for "--describe"."""
    return str(lab().call("topics", argv=["--bootstrap-server", bootstrap, *args]))


def kafka_configs(bootstrap: str, *args: str) -> str:
    """Return what kafka-configs prints, for example for "--entity-type", "topics", "--describe"."""
    return str(lab().call("configs", argv=["--bootstrap-server", bootstrap, *args]))


def consume(
    bootstrap: str,
    partition: str,
    isolation: Isolation = "read_uncommitted",
    *,
    lines: bool = False,
    start: int | None = None,
) -> Consumed:
    """Read `<topic>-<n>` from its beginning, or from an offset, to its end with the real consumer."""
    read = lab().call(
        "consume", bootstrap=bootstrap, partition=partition, isolation=isolation, lines=lines, start=start
    )
    return Consumed(**{**read, "lines": tuple(read.get("lines", ()))})


def read_group(bootstrap: str, group: str, topics: Sequence[str], records: int) -> dict[str, int]:
    """Let a real group read about so many records, and commit; return `<topic>-<n>` -> its offset."""
    return lab().call("read_group", bootstrap=bootstrap, group=group, topics=list(topics), records=records)


def dump_log_segments(*args: object) -> str:
    """Return what kafka-dump-log prints, for example `dump_log_segments("--deep-iteration", "--files", path)`."""
    return str(_dumped(args)["out"])


def dump_log_findings(*args: object) -> str:
    """Return what kafka-dump-log prints on stderr: faults of indexes, and gaps of offsets."""
    return str(_dumped(args)["err"])


def _dumped(args: tuple[object, ...]) -> dict[str, str]:
    return lab().call("dump_log_segments", argv=[str(arg) for arg in args])
