"""Options of each job, as given on the command line or by a caller in Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from lastkey.jobs.command.config import Config, Engine
from lastkey.jobs.errors import UsageError
from lastkey.jobs.topics import EVERY_TOPIC, TopicFilter


@dataclass(frozen=True)
class CompactOptions:
    """Options of `compact ARCHIVE --store STORE`. Archive and store are paths or URIs."""

    archive: str
    store: str
    now_ms: int
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    engine: Engine | None = None  # wins over the setting; None: as it says, else as the command does
    cleanup_policy: str | None = None  # "compact" applies to the topics that `topics` names
    null_keys: str | None = None  # fail, keep, drop; wins over the setting null.keys
    gaps: str | None = None  # fail, accept; wins over the setting gaps
    sealed: bool = False  # the archive has no active segment
    force: bool = False  # due or not, from the log start of the last generation
    reset: TopicFilter | None = None  # diverged partitions of these topics start over
    dry_run: bool = False
    wait: bool = False  # for another run that works on the same partitions
    min_yield: float | None = None  # wins over the setting compaction.min.yield
    io_budget: int | None = None  # bytes that rewrites by yield may read and write; None: no limit
    max_runtime: float | None = None  # seconds, after which no more work begins; None: as long as it takes
    hmac_key: str | None = None  # a file: the key of the digests of erased keys


@dataclass(frozen=True)
class VerifyOptions:
    """Options of `verify ARCHIVE` or `verify --store STORE [--generation N]`: exactly one of the two is given."""

    archive: str | None = None
    store: str | None = None
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    engine: Engine | None = None  # wins over the setting; None: as it says, else as the command does
    generation: int | None = None  # None: the current one
    archive_moved: str | None = None  # with `store`: where the archive is now
    gaps: str | None = None  # fail, accept; wins over the setting gaps
    sealed: bool = False


@dataclass(frozen=True)
class ArchiveNeededOptions:
    """Options of `archive-needed ARCHIVE --store STORE`."""

    archive: str
    store: str
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    engine: Engine | None = None  # wins over the setting; None: as it says, else as the command does
    gaps: str | None = None  # fail, accept; wins over the setting gaps
    current_only: bool = False  # no run will have to go on after a rollback
    skip_crc: bool = False  # compare sizes alone
    paths: bool = False  # the report is a list of files


@dataclass(frozen=True)
class RestoreOptions:
    """Options of `restore --store STORE --output DIR`."""

    store: str
    output: str
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    generation: int | None = None  # None: the current one of each partition
    as_of_ms: int | None = None  # the generation that was current then, instead
    archive: str | None = None  # where the archive is now; None: where it was
    full_clean: bool = False  # first clean what a broker would clean again


@dataclass(frozen=True)
class VacuumOptions:
    """Options of `vacuum --store STORE`."""

    store: str
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    grace_hours: float = 168.0
    give_up: TopicFilter | None = None  # topics whose generations go even with offsets that were never read
    keep_generations: int = 0  # the newest ones stay, whatever their age
    keep_daily: int = 0  # and the newest of so many days,
    keep_weekly: int = 0  # and weeks
    erased: bool = False  # also what may hold records that were erased since, whatever its age
    dry_run: bool = False


@dataclass(frozen=True)
class PackOptions:
    """Options of `pack OUTPUT`."""

    output: str
    driver: bool = False
    replace: bool = False


@dataclass(frozen=True)
class PoliciesOptions:
    """Options of `policies (--from FILE... | --bootstrap-server HOST:PORT)`."""

    sources: tuple[str, ...] = ()  # files, and folders of __cluster_metadata
    bootstrap_server: str | None = None
    command_config: str | None = None  # properties of the connection
    output: str | None = None  # a new file; None: stdout
    replace: bool = False
    retention: bool = True  # with retention.ms and retention.bytes
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC


@dataclass(frozen=True)
class RunsOptions:
    """Options of `runs --store STORE`."""

    store: str
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    since_ms: int | None = None  # only runs that started then or later
    format: Literal["text", "openmetrics"] = "text"


@dataclass(frozen=True)
class RollbackOptions:
    """Options of `rollback --store STORE --generation N`."""

    store: str
    generation: int
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    dry_run: bool = False


@dataclass(frozen=True)
class RebuildStateOptions:
    """Options of `rebuild-state --store STORE`."""

    store: str
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC  # must be every topic: the others' state would be lost
    choose: tuple[str, ...] = ()  # TOPIC-N=RUN_ID, or TOPIC-N=none
    dry_run: bool = False


@dataclass(frozen=True)
class ConvertOptions:
    """Options of `convert (ARCHIVE | --store STORE) --to v3|v2 --output DIR`."""

    archive: str | None
    output: str
    to: Literal["v2", "v3"]
    store: str | None = None
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    engine: Engine | None = None  # wins over the setting; None: as it says, else as the command does


ExportFormat = Literal["ndjson", "parquet", "delta"]
EXPORT_FORMATS: Final[tuple[ExportFormat, ...]] = get_args(ExportFormat)
Isolation = Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True)
class ExportOptions:
    """Options of `export (ARCHIVE | --store STORE) --format FORMAT --output DIR`."""

    archive: str | None  # with `store`: where the archive is now
    output: str
    format: ExportFormat
    latest: bool = False  # the last record of each key, brought up to date
    store: str | None = None
    generation: int | None = None  # of the store; None: the current one
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    engine: Engine | None = None  # wins over the setting; None: as it says, else as the command does
    gaps: str | None = None  # fail, accept; wins over the setting gaps
    isolation: Isolation = "read_committed"
    key_decoder: str | None = None  # names of udfs.decode.decoders; None: bytes, as ndjson text
    value_decoder: str | None = None


@dataclass(frozen=True)
class ReplayOptions:
    """Options of `replay (ARCHIVE | --store STORE) --bootstrap-server HOST:PORT`."""

    archive: str | None  # with `store`: where the archive is now
    bootstrap_server: str
    store: str | None = None
    generation: int | None = None  # of the store; None: the current one
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    engine: Engine | None = None  # wins over the setting; None: as it says, else as the command does
    gaps: str | None = None  # fail, accept; wins over the setting gaps
    isolation: Isolation = "read_committed"
    renames: tuple[str, ...] = ()  # REGEX=REPLACEMENT: names in the cluster
    repartition: bool = False  # by keys, as a producer does
    append: bool = False  # begin also where a partition holds records
    group: str | None = None  # keeps the progress; None: one of this source
    command_config: str | None = None  # properties of the connection


@dataclass(frozen=True)
class ReindexOptions:
    """Options of `reindex ARCHIVE (--check | --output DIR | --in-place)`."""

    archive: str
    mode: Literal["check", "output", "in_place"]
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    engine: Engine | None = None  # wins over the setting; None: as it says, else as the command does
    partitions: tuple[range, ...] | None = None  # numbers of partitions; None: all
    output: str | None = None  # mode "output": an empty or absent folder
    skip_crc: bool = False  # read headers alone
    exact: bool = False  # in place: also replace right files that differ from Kafka's bytes


@dataclass(frozen=True)
class InspectOptions:
    """Options of `inspect PATH...`, files and folders."""

    paths: tuple[str, ...]
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC  # in folders: only partitions of these
    engine: Engine | None = None  # wins over the setting; None: as it says, else as the command does
    deep_iteration: bool = False
    print_data_log: bool = False
    skip_record_metadata: bool = False
    max_bytes: int = 2**31 - 1
    verify_index_only: bool = False
    index_sanity_check: bool = False
    key_decoder: str | None = None  # names of udfs.decode.decoders
    value_decoder: str | None = None
    records: str = ""  # kind of records of Kafka's own topics: a name of logformat.messages.coordinator_records
    gaps: str | None = None  # fail, accept; wins over the setting gaps
    key: bytes | None = None  # only records with this key
    start_offset: int | None = None
    end_offset: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
    as_json: bool = False
    output: str | None = None  # an empty or absent folder: a text for each file


@dataclass(frozen=True)
class LookupOptions:
    """Options of `lookup (ARCHIVE | --store STORE)`, with one kind of question."""

    archive: str | None = None
    store: str | None = None
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    engine: Engine | None = None  # wins over the setting; None: as it says, else as the command does
    generation: int | None = None  # of the store; None: the current one
    partitions: tuple[str, ...] = ()  # names, <topic>-<partition>; none: all
    offsets: tuple[int, ...] = ()
    times: tuple[str, ...] = ()  # as typed
    gaps: str | None = None  # fail, accept; wins over the setting gaps
    isolation: str = "read_uncommitted"  # or read_committed: nothing from the last stable offset on
    queries: str | None = None  # a table of questions
    output: str | None = None  # a table for the answers
    sizing: bool = False
    at: str | None = None  # asks the table time_index
    until: str | None = None
    refresh: bool = True  # bring the table up to date first


@dataclass(frozen=True)
class ReportOptions:
    """Options of `report ARCHIVE... --output FILE`."""

    archive: str
    output: str  # the page
    now_ms: int
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    engine: Engine | None = None  # wins over the setting; None: as it says, else as the command does
    store: str | None = None  # show its generations in place of the segments that they cover, and its history
    cleanup_policy: str | None = None  # as of compact
    gaps: str | None = None  # fail, accept; wins over the setting gaps
    hide_keys: bool = False  # hashes of keys alone
    format_savings: bool = False  # convert every batch, and show what magic 3 would save
    more_archives: tuple[str, ...] = ()  # in the same page
    more_stores: tuple[str, ...] = ()  # each serves one of the archives

    @property
    def archives(self) -> tuple[str, ...]:
        """Every archive."""
        return (self.archive, *self.more_archives)

    @property
    def stores(self) -> tuple[str, ...]:
        """Every store."""
        return (*(() if self.store is None else (self.store,)), *self.more_stores)


@dataclass(frozen=True)
class AuditSource:
    """Source of an audit: an archive, or a generation of a store, whose archive may have moved."""

    archive: str | None = None
    store: str | None = None
    generation: int | None = None  # None: the current one


@dataclass(frozen=True, kw_only=True)
class AuditOptions:
    """Options of every kind of `audit`."""

    audits: str | None = None  # the store that holds the tables; None: the audited one
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    engine: Engine | None = None  # wins over the setting; None: as it says, else as the command does
    gaps: str | None = None  # fail, accept; wins over the setting gaps
    hide_keys: bool = False  # hashes of keys alone
    most: int = 20  # rows of a table in the report


@dataclass(frozen=True, kw_only=True)
class AuditKeysOptions(AuditOptions):
    """Options of `audit keys (ARCHIVE | --store STORE)`."""

    source: AuditSource
    n_partitions: tuple[tuple[str, int], ...] = ()  # of topics whose last partitions are not there


KeyFormat = Literal["text", "hex", "base64"]
KEY_FORMATS: Final[tuple[KeyFormat, ...]] = get_args(KeyFormat)


@dataclass(frozen=True, kw_only=True)
class AuditDeliveryOptions(AuditOptions):
    """Options of `audit delivery (ARCHIVE | --store STORE)`."""

    source: AuditSource
    groups: tuple[str, ...] = ()  # (): all
    offsets_archive: str | None = None  # where __consumer_offsets lies, if not in the source
    deliveries: str | None = None  # a table of deliveries by key instead
    key_format: KeyFormat = "text"  # how strings show keys there
    max_age_ms: int | None = None  # a key that waits longer is a finding


@dataclass(frozen=True, kw_only=True)
class AuditPairOptions(AuditOptions):
    """Options of audits of a source A and its copy B."""

    a: AuditSource
    b: AuditSource
    renames: tuple[str, ...] = ()  # REGEX=REPLACEMENT: names of B's topics, and A's names for them
    ignore_timestamps: bool = False  # copies have other timestamps


@dataclass(frozen=True, kw_only=True)
class AuditMirrorOptions(AuditPairOptions):
    """Options of `audit mirror A B`."""

    every_version: bool = False  # neither side is compacted


@dataclass(frozen=True, kw_only=True)
class AuditFailoverOptions(AuditPairOptions):
    """Options of `audit failover A B --group GROUP`."""

    group: str
    offsets_archive: str | None = None  # has A's __consumer_offsets; None: A has
    committed: str | None = None  # a file with the group's offsets instead
    plan: str | None = None  # a file to write: the offsets in B


def audit_side(text: str) -> AuditSource:
    """Return the source that A or B names: an archive, STORE@GENERATION or STORE@current."""
    store, at, generation = text.rpartition("@")
    if not store or not at or not (generation == "current" or generation.isdecimal()):
        return AuditSource(archive=text)
    return AuditSource(store=store, generation=None if generation == "current" else int(generation))


def check_audits(audits: str | None, *sides: AuditSource) -> None:
    """Raise UsageError if nothing says which store holds the tables."""
    if audits is None and all(side.store is None for side in sides):
        raise UsageError(message="an archive has no tables of audits: name a place for them with --audits STORE")


def audit_source(archive: str | None, store: str | None, generation: int | None, moved: str | None) -> AuditSource:
    """Return what is audited. UsageError unless exactly one of archive and store is given."""
    if (archive is None) == (store is None):
        raise UsageError(message="audit needs either ARCHIVE or --store STORE")
    if store is None and (generation is not None or moved is not None):
        raise UsageError(message="--generation and --archive work only with --store")
    return AuditSource(archive or moved, store, generation)


def read_archive(
    job: str, archive: str | None, store: str | None, generation: int | None, moved: str | None
) -> str | None:
    """Return where the archive is; None: where the store says. UsageError unless exactly one of archive and store is
    given.
    """
    if (archive is None) == (store is None):
        raise UsageError(message=f"{job} needs either ARCHIVE or --store STORE")
    if store is None and (generation is not None or moved is not None):
        raise UsageError(message="--generation and --archive work only with --store")
    return archive or moved


def check_lookup(given: Mapping[str, Any]) -> None:
    """Raise UsageError unless these options of `lookup`, by name, go together."""
    kinds = {
        "--offset or --time": bool(given["offsets"] or given["times"]),
        "--queries": given["queries"] is not None,
        "--sizing": given["sizing"],
        "--at": given["at"] is not None,
    }
    if sum(kinds.values()) != 1:
        raise UsageError(message=f"lookup needs one of {', '.join(kinds)}")
    if (given["queries"] is None) != (given["output"] is None):
        raise UsageError(message="--queries and --output need each other")
    if given["at"] is not None and given["store"] is None:
        raise UsageError(message="--at needs --store STORE, which holds the table")
    if given["at"] is None and (given["archive"] is None) == (given["store"] is None):
        raise UsageError(message="lookup needs either ARCHIVE or --store STORE")
    if given["generation"] is not None and (given["store"] is None or given["at"] is not None):
        raise UsageError(message="--generation works only with --store, and not with --at")
    if given["isolation"] == "read_committed" and (given["sizing"] or given["at"] is not None):
        raise UsageError(message="--isolation works only with --offset, --time and --queries")
    if given["at"] is None and (given["until"] is not None or not given["refresh"]):
        raise UsageError(message="--until and --no-refresh work only with --at")
