"""The options of each job: what the command line, or a caller in Python, asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jobs.command.config import Config


@dataclass(frozen=True)
class CompactOptions:
    """`compact ARCHIVE --store STORE`. Paths or URIs; `topics` and `reset` are globs of topic names."""

    archive: str
    store: str
    now_ms: int
    config: Config = field(default_factory=Config)
    topics: str | None = None  # None: every topic
    cleanup_policy: str | None = None  # "compact" applies to the topics that `topics` names
    null_keys: str | None = None  # fail, keep, drop; wins over the setting null.keys
    gaps: str | None = None  # fail, accept; wins over the setting gaps
    sealed: bool = False  # the archive has no active segment
    force: bool = False  # due or not, from the log start of the last generation
    reset: str | None = None  # diverged partitions of these topics begin anew
    dry_run: bool = False


@dataclass(frozen=True)
class VerifyOptions:
    """`verify ARCHIVE` or `verify --store STORE [--generation N]`: one of both is given."""

    archive: str | None = None
    store: str | None = None
    config: Config = field(default_factory=Config)
    topics: str | None = None
    generation: int | None = None  # None: the current one
    archive_moved: str | None = None  # with `store`: where the archive is now
    gaps: str | None = None  # fail, accept; wins over the setting gaps
    sealed: bool = False


@dataclass(frozen=True)
class RestoreOptions:
    """`restore --store STORE --output DIR`."""

    store: str
    output: str
    config: Config = field(default_factory=Config)
    topics: str | None = None
    generation: int | None = None  # None: the current one of each partition
    archive: str | None = None  # where the archive is now; None: where it was


@dataclass(frozen=True)
class VacuumOptions:
    """`vacuum --store STORE`."""

    store: str
    config: Config = field(default_factory=Config)
    topics: str | None = None
    grace_hours: float = 168.0
    before_reset: str | None = None  # of these topics also generations that are kept since a reset came after them
    dry_run: bool = False


@dataclass(frozen=True)
class RunsOptions:
    """`runs --store STORE`."""

    store: str
    config: Config = field(default_factory=Config)
    topics: str | None = None


@dataclass(frozen=True)
class RollbackOptions:
    """`rollback --store STORE --generation N`."""

    store: str
    generation: int
    config: Config = field(default_factory=Config)
    topics: str | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class RebuildStateOptions:
    """`rebuild-state --store STORE`."""

    store: str
    config: Config = field(default_factory=Config)
    topics: str | None = None  # must be None: what would be left out is lost
    choose: tuple[str, ...] = ()  # TOPIC-N=RUN_ID, or TOPIC-N=none
    dry_run: bool = False


@dataclass(frozen=True)
class ReindexOptions:
    """`reindex ARCHIVE (--check | --output DIR | --in-place)`."""

    archive: str
    mode: Literal["check", "output", "in_place"]
    config: Config = field(default_factory=Config)
    topics: str | None = None
    partitions: tuple[range, ...] | None = None  # numbers of partitions; None: all
    output: str | None = None  # mode "output": an empty or absent folder
    skip_crc: bool = False  # read headers alone
    exact: bool = False  # in place: replace files too that are right and only not byte for byte Kafka's


@dataclass(frozen=True)
class InspectOptions:
    """`inspect PATH...`, files and folders."""

    paths: tuple[str, ...]
    config: Config = field(default_factory=Config)
    topics: str | None = None  # in folders: only partitions of these
    deep_iteration: bool = False
    print_data_log: bool = False
    skip_record_metadata: bool = False
    max_bytes: int = 2**31 - 1
    verify_index_only: bool = False
    index_sanity_check: bool = False
    key_decoder: str | None = None  # names of udfs.decode.decoders
    value_decoder: str | None = None
    records: str = ""  # which of Kafka's own topics they are: a name of logformat.messages.coordinator_records
    key: bytes | None = None  # only records with this key
    start_offset: int | None = None
    end_offset: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    as_json: bool = False
    output: str | None = None  # an empty or absent folder: a text for each file


@dataclass(frozen=True)
class LookupOptions:
    """`lookup (ARCHIVE | --store STORE)`, and one kind of question."""

    archive: str | None = None
    store: str | None = None
    config: Config = field(default_factory=Config)
    topics: str | None = None
    generation: int | None = None  # of the store; None: the current one
    partitions: tuple[str, ...] = ()  # names, <topic>-<partition>; none: all
    offsets: tuple[int, ...] = ()
    times: tuple[str, ...] = ()  # as typed
    isolation: str = "read_uncommitted"  # or read_committed: nothing from the last stable offset on
    queries: str | None = None  # a table of questions
    output: str | None = None  # where its answers go
    sizing: bool = False
    at: str | None = None  # asks the table time_index
    until: str | None = None
    refresh: bool = True  # bring the table up to date first


@dataclass(frozen=True)
class ReportOptions:
    """`report ARCHIVE --output FILE`."""

    archive: str
    output: str  # the page
    now_ms: int
    config: Config = field(default_factory=Config)
    topics: str | None = None
    store: str | None = None  # its generations stand for what they cover, and its history is told
    cleanup_policy: str | None = None  # as of compact
    hide_keys: bool = False  # hashes of keys alone
