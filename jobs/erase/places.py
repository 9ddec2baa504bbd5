"""Places where a key may remain: every file of an archive and of a store, with its search method. Logs are searched by
records, Parquet files by columns, key files and filters by hashes. Formats that hold no keys are listed and not opened;
the report counts them by kind. Any other file is searched for the bytes of each key.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from lastkey.jobs.command.config import Config
from lastkey.jobs.errors import JobError
from lastkey.jobs.store.delta import data_files
from lastkey.jobs.store.generations import list_each
from lastkey.jobs.store.paths import (
    AUDIT_KEY,
    AUDIT_READS,
    AUDIT_TABLES,
    CHECKPOINTS,
    COMMITTED,
    ERASED_KEYS,
    MANIFEST,
    PARTITIONS,
    TABLES,
    is_audit_table,
    parse_run_folder,
)
from lastkey.jobs.store.rows import Checkpoint, Commit
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import TopicFilter
from lastkey.logformat import names
from lastkey.logformat.errors import NO_POSITION
from lastkey.logformat.listing import Segment
from lastkey.udfs.groups import groups
from lastkey.udfs.key_search.findings import SearchFile, list_files
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import Root

HASH_KEY: Final = "hash.key"
_WITHOUT_KEYS: Final = {*TABLES} - {*AUDIT_TABLES} | {AUDIT_READS}  # tables that never contain a key

_LOG = re.compile(r"[0-9]{20}\.log\b.*|.*\.log")  # <base>.log.deleted and the tiered <offset>-<id>.log too
_ID = "[A-Za-z0-9_-]{22}"  # id of a tiered segment
_NO_KEYS = re.compile(  # Kafka's files of offsets, times, producers, epochs, identities
    rf"[0-9]{{20}}([-_]{_ID})?\.(index|timeindex|txnindex|snapshot|leader_epoch_checkpoint)(\.[a-z]+)?"
    r"|leader-epoch-checkpoint|partition\.metadata|meta\.properties|quorum-state|\.lock|\.kafka_cleanshutdown"
    rf"|({'|'.join(names.OFFSET_CHECKPOINTS)})(\.tmp)?"
)
_OF_TABLE = re.compile(r".*\.parquet|[0-9]{20}(\.[a-z0-9.-]+)?\.(json|parquet)|\.[0-9]{20}\..*|_last_checkpoint.*")
_FACTS: Final = ".facts"
_KEY_FILE: Final = ".keys"
_FILTER: Final = ".filter"
_TASK_BYTES: Final = 256 << 20
_OPEN_BYTES: Final = 128 << 10  # cost of opening a file


@dataclass
class Places:
    """All files and folders that were listed."""

    files: list[SearchFile] = field(default_factory=list)
    without_keys: Counter[str] = field(default_factory=Counter)  # files that are not opened, by their kind
    topics: set[str] = field(default_factory=set)  # all that have a folder, asked for or not
    left_out: int = 0  # files of topics that were not asked for
    problems: list[Problem] = field(default_factory=list)
    listed: dict[str, list[SearchFile]] = field(default_factory=dict)  # by URI of the root

    def list_root(self, root: Root) -> list[SearchFile]:
        """List the files of a root, and note what was listed. Raises FileNotFoundError."""
        files, problems = list_files(root)
        self.listed[root.uri] = files
        self.problems += problems
        return files

    def takes(self, topic: str, wanted: TopicFilter) -> bool:
        """Note a file of a topic; return whether the topic is wanted."""
        self.topics.add(topic)
        self.left_out += not wanted.takes(topic)
        return wanted.takes(topic)

    def tasks(self) -> list[tuple[SearchFile, ...]]:
        """Return the files in tasks of about 256 MiB; a filter follows its log."""
        units: list[tuple[SearchFile, ...]] = []
        filters = {file.path: file for file in self.files if file.kind == "filter"}
        for file in self.files:
            if file.kind == "log" and (beside := filters.pop(f"{file.path.removesuffix('.log')}{_FILTER}", None)):
                units.append((file, beside))
            elif file.kind != "filter":
                units.append((file,))
        units += [(file,) for file in filters.values()]
        return [
            tuple(file for unit in group for file in unit)
            for group in groups(units, lambda unit: sum(f.size + _OPEN_BYTES for f in unit), _TASK_BYTES)
        ]


def add_archive(places: Places, root: Root, config: Config, topics: TopicFilter) -> None:
    """List an archive. Raises FileNotFoundError."""
    files = places.list_root(root)
    paths = {file.path for file in files}
    for file in files:
        folder, _, name = file.path.rpartition("/")
        parsed = names.parse_partition_folder(folder.rpartition("/")[2])
        if parsed is not None and not places.takes(parsed.topic, topics):
            continue
        if _NO_KEYS.fullmatch(name):
            places.without_keys["indexes, snapshots and checkpoints of Kafka"] += 1
            continue
        if parsed is not None:
            file = replace(file, topic=parsed.topic, partition=parsed.partition, state=parsed.mark)  # noqa: PLW2901
        places.files.append(_by_name(file, paths, config))


def add_store(places: Places, state: State, config: Config, topics: TopicFilter) -> None:
    """List a store. Raises FileNotFoundError."""
    files = places.list_root(state.root)
    paths = {file.path for file in files}
    generations = _Generations(state, places, any(path.startswith(f"{PARTITIONS}/") for path in paths))
    for file in files:
        if file.path.startswith(f"{PARTITIONS}/"):
            _add_segment_file(places, file, paths, generations, config, topics)
        elif file.path.startswith("state/"):
            _add_table_file(places, file, generations)
        elif file.path.startswith(f"{ERASED_KEYS}/"):
            places.without_keys["digests of erasures"] += 1
        else:
            places.files.append(_by_name(file, paths, config))


def appeared_since(places: Places, roots: Iterable[Root]) -> list[Problem]:
    """Return a problem for each file that is new, or has changed, since the roots were listed and was not searched."""
    out = []
    for root in roots:
        before = {entry.path: entry for entry in places.listed[root.uri]}
        for entry in list_files(root)[0]:
            if before.get(entry.path) != entry:
                found = "another size or time" if entry.path in before else "a new file"
                hint = "run it again when no process writes there"
                out.append(Problem("changed", entry.shown, NO_POSITION, "the same file as before", found, hint=hint))
    return out


def _by_name(file: SearchFile, paths: set[str], config: Config) -> SearchFile:
    """Return a file with the kind that follows from its name: log, table, or bytes."""
    folder, _, name = file.path.rpartition("/")
    if not _LOG.fullmatch(name):
        return _as_table(file)
    stem = name.partition(".")[0]
    suffix = name.partition(".log")[2]
    index = f"{folder}/{stem}.index{suffix}".lstrip("/")
    settings = config.topic_settings(file.topic or "")
    return replace(
        file,
        kind="log",
        state=file.state or suffix.lstrip("."),
        base_offset=int(stem) if re.fullmatch("[0-9]{20}", stem) else 0,
        index=index if index in paths else None,
        max_batch_bytes=settings.max_decompressed_batch_bytes,
    )


def _as_table(file: SearchFile) -> SearchFile:
    """Return a file as a table if its name is one of Parquet: those of all versions of a Delta table have such."""
    return replace(file, kind="table") if file.path.lower().endswith((".parquet", ".parq")) else file


def _add_segment_file(
    places: Places, file: SearchFile, paths: set[str], generations: _Generations, config: Config, topics: TopicFilter
) -> None:
    parts = file.path.split("/")
    parsed = names.parse_partition_folder(parts[1])
    run = parse_run_folder(parts[2]) if len(parts) == 4 else None
    name = parts[-1]
    if parsed is not None:
        if not places.takes(parsed.topic, topics):
            return
        file = replace(file, topic=parsed.topic, partition=parsed.partition)
    if parsed is None or run is None:
        places.files.append(_by_name(file, paths, config))
        return
    folder = file.path.rpartition("/")[0]
    file = replace(file, generation=run[0], run_id=run[1])
    file = replace(file, state=generations.file_state(file, folder))
    secrets = (f"{folder}/{HASH_KEY}", *generations.secrets.get(file.path.rpartition(".")[0], ()))
    made_by = next((path for path in secrets if path in paths), None)
    if _LOG.fullmatch(name):
        places.files.append(replace(_by_name(file, paths, config), state=file.state))
    elif name.endswith(_KEY_FILE):
        places.files.append(
            replace(file, kind="key_file", secret=made_by, checksum=generations.key_files.get(file.path))
        )
    elif name.endswith(_FILTER):
        places.files.append(replace(file, kind="filter", secret=made_by))
    elif name.endswith(_FACTS) or name in (MANIFEST, COMMITTED, HASH_KEY) or _NO_KEYS.fullmatch(name):
        places.without_keys["indexes, snapshots, facts and manifests of generations"] += 1
    else:
        places.files.append(_as_table(file))


def _add_table_file(places: Places, file: SearchFile, generations: _Generations) -> None:
    parts = file.path.split("/")
    table, name, of_log = parts[1], parts[-1], "_delta_log" in parts
    is_checksum = name.startswith(".") and name.endswith(".crc")  # Hadoop's, of the file beside it
    ours = is_audit_table(table)
    known_file = _OF_TABLE.fullmatch(name) is not None and len(parts) > 2
    if (
        (table in _WITHOUT_KEYS and known_file)
        or table in ("running", ".lock")
        or file.path == AUDIT_KEY
        or is_checksum
    ):
        places.without_keys["tables without keys, leases, locks"] += 1
    elif of_log and ours and known_file:  # Delta keeps statistics of texts and numbers; keys are neither
        places.without_keys["logs of tables"] += 1
    else:
        file = _as_table(file)
        if file.kind == "table":
            state = "log" if of_log else generations.file_version(table, "/".join(parts[2:]))
            file = replace(file, state=state, of_audits=ours, may_hide=ours)
        places.files.append(file)


class _Generations:
    """Tables of the store, for descriptions of its files: the generation or table version that references each file."""

    def __init__(self, state: State, places: Places, has_generations: bool) -> None:
        self._root = state.root
        self.current: set[str] = set()  # stems of logs, and folders, of current generations
        self.older: set[str] = set()  # the same of older generations
        self.key_files: dict[str, tuple[int, int]] = {}  # path -> number of keys, CRC-32C
        # stem of a log or key file -> secrets beside the generations that name it: vacuum leaves it without its own
        self.secrets: dict[str, list[str]] = {}
        self._versions: dict[str, set[str] | None] = {}
        self._has_checkpoints = state.table_exists(CHECKPOINTS)
        if self._has_checkpoints:
            try:
                self._read(state)
            except JobError as error:
                self._has_checkpoints = False
                places.problems.append(_unknown(state.root, str(error), error.advice))
        elif has_generations:
            places.problems.append(_unknown(state.root, "no tables", "rebuild-state makes them from the manifests"))

    def _read(self, state: State) -> None:
        checkpoints, manifests = state.current()
        for key, generations in list_each(state.root, checkpoints).items():
            self._add(checkpoints[key], manifests[key], self.current)
            for number, commit in generations:
                if number < checkpoints[key].generation and isinstance(commit, Commit):
                    self._add(commit.checkpoint, commit.segments, self.older)

    def _add(self, row: Checkpoint, segments: Iterable[Segment], named: set[str]) -> None:
        """Add the folders and files of a generation to those of the current ones, or of the older ones."""
        named |= {row.folder, row.own_folder}
        secret = f"{row.own_folder}/{HASH_KEY}"
        for segment in segments:
            stems = [segment.path.removesuffix(".log")] if segment.root == "store" else []
            for _, _, path, n, checksum in json.loads(segment.key_files or "[]"):
                self.key_files[path] = n, checksum
                stems.append(path.removesuffix(_KEY_FILE))
            named.update(stems)
            for stem in stems:
                self.secrets.setdefault(stem, []).append(secret)

    def file_state(self, file: SearchFile, folder: str) -> str:
        """Return current, older, dead (of a run that no checkpoint names) or unknown."""
        if not self._has_checkpoints:
            return "unknown"
        stem = f"{folder}/{file.path.rpartition('/')[2].partition('.')[0]}"
        for state, paths in (("current", self.current), ("older", self.older)):
            if stem in paths:
                return state
        return "current" if folder in self.current else "older" if folder in self.older else "dead"

    def file_version(self, table: str, path: str) -> str:
        """Return whether a data file belongs to the table's newest version: current, older, or unknown."""
        if table not in self._versions:
            try:
                self._versions[table] = data_files(self._root, table)
            except Exception:  # any error: only a description in the report depends on the version
                self._versions[table] = None
        of_newest = self._versions[table]
        return "unknown" if of_newest is None else "current" if path in of_newest else "older"


def _unknown(store: Root, found: str, hint: str) -> Problem:
    expected = "which generations are current"
    return Problem("side_file", f"{store.uri}/state", NO_POSITION, expected, found, hint=hint)
