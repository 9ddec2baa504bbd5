"""Files under a real broker: the broker must load them unchanged and serve exactly their records.

`load_under_broker` is for partition directories; `start_restored` for a whole log directory with its checkpoints.
"""

from __future__ import annotations

import atexit
import filecmp
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from .broker import Broker
from .errors import LabError
from .jvm import lab
from .oracle import consume, create_topics, digest_lines, dump, index_check, visible_lines

_NEVER_CLEAN = {"log.cleaner.enable": "false", "log.cleaner.min.compaction.lag.ms": 2**63 - 1}
CLEANS = {"log.cleaner.enable": "true", "log.cleaner.min.compaction.lag.ms": 0, "log.cleaner.backoff.ms": 100,
          "log.cleaner.min.cleanable.ratio": 0}  # fmt: skip
_TOPIC_CONFIGS = {"cleanup.policy": "compact", "segment.ms": 2**63 - 1, "max.message.bytes": 16 << 20}
_OWN_FILES = ("meta.properties", "bootstrap.checkpoint")  # the node's identity: the new cluster's, not the restored one
_CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint",
                "cleaner-offset-checkpoint")  # fmt: skip
_SEGMENT_FILE = re.compile(r"(\d{20})\.(log|index|timeindex|txnindex)$")

# Warnings that say nothing of the files: of a setting of ours, and of slowness, in parts that know no log files.
_HARMLESS = re.compile(
    r"log\.cleaner\.enable` is deprecated"
    r"|\((org\.apache\.kafka\.(controller|raft|clients|image|network|common\.network)|kafka\.(raft|network))\.[\w.$]+\)$"
    r"|\([\w.]*\.(BrokerLifecycleManager|NodeToController\w+|ControllerApis)\)$"
)
# Leader epochs of the data are above those of the new cluster: the broker cuts its epoch cache, the log stays as it is.
_NEW_EPOCHS = re.compile(r"caused truncation of conflicting")
# The clean shutdown file names no broker epoch: the node registers as after a crash, its logs are trusted all the same.
_NO_EPOCH = re.compile(r"Unable to read the broker epoch")
# INFO lines of the storage layer about repaired or deleted files.
_MENDED = re.compile(
    r"orrupt|rebuil|Could not find|Recovering unflushed|Truncat|stray|Inconsistent|Deleting|\bFound (file|log|a|an)\b"
    r"|unclean|non-monotonic|recovery for|Unable to|invalid",
    re.IGNORECASE,
)
_STORAGE = re.compile(
    "LogLoader|LogManager|UnifiedLog|LogSegment|ProducerStateManager|LocalLog|LeaderEpoch|(Offset|Time|Transaction)Index"
)
_USUAL = re.compile(r"Reloading from producer snapshot and rebuilding producer state|__cluster_metadata")
_SKIPPED = re.compile(r"Skipping recovery of \d+ logs? from|clean shutdown file was found")


class LoadError(LabError):
    """Error of a broker that did not take the files as they are, or serves something else than they hold."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join([f"{len(problems)} problems under a real broker:", *problems[:40]]))
        self.problems = problems


@dataclass
class LoadReport:
    """Observations beside problems: notes of the broker, and the times that its search by time cannot find."""

    notes: list[str] = field(default_factory=list)
    hidden_times: dict[str, int] = field(default_factory=dict)  # partition -> how many of the times that were asked


def partition_dirs(folders: Iterable[Path]) -> dict[str, Path]:
    """Return `<topic>-<n>` -> directory, of partition directories and folders that hold some; no internal topics."""
    directories: dict[str, Path] = {}
    for folder in folders:
        inner = [folder] if any(folder.glob("*.log")) else sorted(p for p in folder.glob("*-*") if any(p.glob("*.log")))
        for path in inner:
            if path != folder and path.name.startswith("__"):
                continue
            if path.name in directories:
                raise LabError(f"{path.name} is given twice: {directories[path.name]} and {path}")
            directories[path.name] = path.resolve()
    if not directories:
        raise LabError(f"no partition directories in {', '.join(map(str, folders))}")
    return directories


def load_under_broker(
    folders: Iterable[Path], *, early: bool = False, times: int = 40, strict_times: bool = False
) -> LoadReport:
    """Put partition directories under a fresh broker that believes in a clean shutdown, and read them back.

    Raises LoadError unless the broker's log shows no recovery, rebuild, truncation or warning; a consumer reads in both
    isolation levels what the files hold; offsetsForTimes follows Kafka's rule; index_check finds nothing; and no
    segment file was changed, made or removed.

    early: as in index_check. strict_times: a record that Kafka's search by time misses is a problem too.
    """
    parts = partition_dirs(folders)
    with tempfile.TemporaryDirectory(prefix="kafka-load-") as work:
        broker = _fresh_cluster(Path(work), parts)
        for name in (*_CHECKPOINTS[:2], _CHECKPOINTS[3]):
            (broker.data / name).unlink(missing_ok=True)
        for name, source in parts.items():
            _swap_in(source, broker.data / name)
        return _serve_and_check(broker, parts, early=early, times=times, strict_times=strict_times)


@contextmanager
def served_by_broker(
    parts: Mapping[str, Path], *, beside: Iterable[Path] = (), options: Mapping[str, object] | None = None
) -> Iterator[Broker]:
    """Run a broker on copies of partition directories, `<topic>-<n>` -> directory, which it takes as they are.

    beside: files and folders to copy into its log directory too.
    """
    with tempfile.TemporaryDirectory(prefix="kafka-serve-") as work:
        broker = _fresh_cluster(Path(work), parts, options)
        for name in (*_CHECKPOINTS[:2], _CHECKPOINTS[3]):
            (broker.data / name).unlink(missing_ok=True)
        for name, source in parts.items():
            _swap_in(source, broker.data / name)
        for path in beside:
            (shutil.copytree if path.is_dir() else shutil.copy2)(path, broker.data / path.name)
        with broker:
            yield broker


@contextmanager
def recovered_by_broker(parts: Mapping[str, Path], *, options: Mapping[str, object] | None = None) -> Iterator[Path]:
    """Yield the log directory of a broker that found only the logs of partitions, after a crash, and was stopped again.

    parts: `<topic>-<n>` -> directory, of which the `.log` files alone are copied.
    """
    with tempfile.TemporaryDirectory(prefix="kafka-recover-") as work:
        broker = _fresh_cluster(Path(work), parts, options)
        for name in (*_CHECKPOINTS, ".kafka_cleanshutdown"):
            (broker.data / name).unlink(missing_ok=True)
        for name, source in parts.items():
            for path in (broker.data / name).iterdir():
                if path.name != "partition.metadata":
                    path.unlink()
            for path in source.glob("*.log"):
                shutil.copy2(path, broker.data / name)
        with broker:
            if "Recovering unflushed segment" not in broker.log_text():
                raise LabError("the broker recovered nothing")
        yield broker.data


@contextmanager
def start_restored(log_dir: Path, *, options: Mapping[str, object] | None = None) -> Iterator[Broker]:
    """Run a broker on a copy of a restored log directory: partitions, checkpoints and `.kafka_cleanshutdown`.

    The topics are made in a fresh cluster first. The files then take their place unchanged, except that
    partition.metadata keeps that cluster's topic id. Raises LoadError if the broker recovers, rebuilds or warns of
    anything while it starts; and at the end of the block, if it has done so since, or changed a file. With the options
    CLEANS, which let its cleaner work, it may change files later. `broker.data` is the copy.
    """
    parts = _all_partitions(log_dir)
    if not (log_dir / ".kafka_cleanshutdown").exists():
        raise LabError(f"{log_dir} holds no .kafka_cleanshutdown: a broker would recover every log in it")
    with tempfile.TemporaryDirectory(prefix="kafka-restored-") as work:
        broker = _fresh_cluster(Path(work), parts, options)
        for path in broker.data.iterdir():
            if path.is_file() and path.name not in _OWN_FILES:
                path.unlink()
        for path in log_dir.iterdir():
            if path.is_file() and path.name not in (*_OWN_FILES, ".lock"):
                shutil.copy2(path, broker.data)
        for name, source in parts.items():
            _swap_in(source, broker.data / name)
        with broker:
            problems = log_problems(broker)[0]  # its cleaner may have deleted what it has replaced by then
            _raise_if([p for p in problems if options != CLEANS or "Deleting" not in p])
            yield broker
        if options != CLEANS:
            _raise_if([*log_problems(broker)[0], *changed_files(parts, broker.data)])


def check_served(
    bootstrap: str, parts: Mapping[str, Path], *, times: int = 40, strict_times: bool = False
) -> tuple[list[str], dict[str, int]]:
    """Compare what a consumer gets from the broker with the files; return problems, and hidden times by partition."""
    problems: list[str] = []
    hidden: dict[str, int] = {}
    for name, path in parts.items():
        records = dump([path], "R")[path]
        for isolation in ("read_uncommitted", "read_committed"):
            expected, read = visible_lines(records, isolation), consume(bootstrap, name, isolation)
            if read.data_sha256 != digest_lines(expected):
                got = f"{isolation} consumer read {read.records} records"
                problems.append(f"{name}: {got}, not the {len(expected)} of the files")
        if times:
            offsets = lab().call("offsets_for_times", bootstrap=bootstrap, directory=path, times=times)
            problems += offsets["failures"]
            hidden[name] = offsets["hidden"]
            if strict_times and offsets["hidden"]:
                problems.append(
                    f"{name}: offsetsForTimes misses a record at {offsets['hidden']} of {offsets['times']} times"
                )
    return problems, hidden


def log_problems(broker: Broker) -> tuple[list[str], list[str]]:
    """Return the lines of the broker's log about a warning, recovery, rebuild or truncation, and the harmless notes."""
    problems, notes = [], []
    text = broker.log_text()
    alerts = set(broker.alerts())  # read after the text, which may grow, so that every alert in the text is known
    for line in text.splitlines():
        if _NO_EPOCH.search(line):
            notes.append(line)
        elif line in alerts:
            if _NEW_EPOCHS.search(line):
                notes.append(line)
            elif not _HARMLESS.search(line):
                problems.append(f"broker log: {line}")
        elif _MENDED.search(line) and _STORAGE.search(line) and not _USUAL.search(line) and not _SKIPPED.search(line):
            problems.append(f"broker log: {line}")
    if not _SKIPPED.search(text):
        problems.append("broker log: it did not skip recovery")
    return problems, notes


def changed_files(parts: Mapping[str, Path], data: Path) -> list[str]:
    """Return the segment files that changed, except the active segment's indexes, which a broker extends."""
    problems = []
    for name, source in parts.items():
        original, existing = _segment_files(source), _segment_files(data / name)
        active = max(stem for stem, _ in original)
        settled = {key for key in original | existing if key[0] != active or key[1] == "log"}
        for stem, kind in sorted(settled):
            file = f"{stem}.{kind}"
            if (stem, kind) not in existing:
                problems.append(f"{name}/{file} was removed by the broker")
            elif (stem, kind) not in original:
                problems.append(f"{name}/{file} was made by the broker")
            elif not filecmp.cmp(source / file, data / name / file, shallow=False):
                problems.append(f"{name}/{file} was changed by the broker")
    return problems


def _serve_and_check(
    broker: Broker, parts: Mapping[str, Path], *, early: bool, times: int, strict_times: bool
) -> LoadReport:
    report = LoadReport()
    with broker:
        problems, report.hidden_times = check_served(broker.bootstrap, parts, times=times, strict_times=strict_times)
    for path, indexes in index_check(parts.values(), early=early).items():
        problems += [f"{path.name}: {failure}" for failure in indexes.failures]
    from_log, report.notes = log_problems(broker)
    _raise_if([*problems, *from_log, *changed_files(parts, broker.data)])
    return report


def _fresh_cluster(folder: Path, parts: Iterable[str], options: Mapping[str, object] | None = None) -> Broker:
    """Return a stopped broker of a new cluster, with empty topics of these names."""
    topics: dict[str, int] = {}
    for name in parts:
        topic, _, number = name.rpartition("-")
        topics[topic] = max(topics.get(topic, 0), int(number) + 1)
    template = _cluster_with(tuple(sorted(topics.items())))
    for name in ("data", "meta"):
        shutil.copytree(template / name, folder / name)
    return Broker(folder, {**_NEVER_CLEAN, **(options or {})})


@cache
def _cluster_with(topics: tuple[tuple[str, int], ...]) -> Path:
    """Return the folder of a stopped broker with empty topics, made once a process: half of the time of a load."""
    folder = tempfile.TemporaryDirectory(prefix="kafka-cluster-")
    atexit.register(folder.cleanup)
    broker = Broker(Path(folder.name), _NEVER_CLEAN)
    with broker:
        create_topics(broker.bootstrap, dict(topics), _TOPIC_CONFIGS)
    partitions = [f"{topic}-{number}" for topic, count in topics for number in range(count)]
    missing = [name for name in partitions if not (broker.data / name / "partition.metadata").exists()]
    if missing:
        raise LabError(f"the broker made no {', '.join(missing)}")
    return broker.directory


def _swap_in(source: Path, target: Path) -> None:
    """Replace an empty partition by given files, under the topic id of the cluster."""
    for path in target.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    for path in source.iterdir():
        if path.is_file() and path.name != "partition.metadata":
            shutil.copy2(path, target)


def _all_partitions(log_dir: Path) -> dict[str, Path]:
    parts = {path.name: path for path in sorted(log_dir.iterdir()) if path.is_dir()}
    if not parts:
        raise LabError(f"{log_dir} holds no partitions")
    return parts


def _segment_files(folder: Path) -> set[tuple[str, str]]:
    return {match.groups() for path in folder.iterdir() if (match := _SEGMENT_FILE.match(path.name))}


def _raise_if(problems: list[str]) -> None:
    if problems:
        raise LoadError(problems)
