"""Options of the jobs that hand on what is in an archive or a store: export, replay, inspect, lookup, report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from lastkey.jobs.command.declare import Value, argument, declared, option, values_of
from lastkey.jobs.command.kinds import (
    ARCHIVE,
    ARCHIVES,
    DIR,
    FILE,
    FILES,
    FLAG,
    KEY,
    STORE,
    STORES,
    TEXT,
    Flag,
    Globs,
    Location,
    MaybeNumber,
    MaybePlace,
    MaybeText,
    Place,
    Text,
    maybe,
    number,
    numbers,
    one_of,
    span,
    texts,
)
from lastkey.jobs.command.option_groups import (
    EXPORT_FORMATS,
    ISOLATIONS,
    ExportFormat,
    Isolation,
    SourceOptions,
    Span,
    WithAutoEngine,
    WithCluster,
    WithDecoders,
    WithEngine,
    WithGaps,
    WithHiddenKeys,
    WithPlan,
)
from lastkey.jobs.command.parse import MAX_LONG, parse_time
from lastkey.jobs.errors import UsageError


@declared
class ExportOptions(SourceOptions, WithDecoders, WithGaps, WithEngine):
    """Options of `export (ARCHIVE | --store STORE) --format FORMAT --output DIR`."""

    job: ClassVar[str] = "export"

    output: Place = option(
        DIR,
        "A new or empty folder; each topic gets one in it.",
        group="Output",
        note="The file `_lastkey_export.json` in it says what was asked for, and whether all of it is there",
    )
    format: Value[ExportFormat, ExportFormat] = option(one_of(EXPORT_FORMATS), "What to write.", group="Output")
    latest: Flag = option(
        FLAG,
        "With delta: the last record of each key, brought up to date.",
        default=False,
        note="By each run, instead of all records; see below",
    )
    isolation: Value[Isolation, Isolation] = option(
        one_of(ISOLATIONS),
        "read_committed, or read_uncommitted: also records of aborted and open transactions.",
        metavar="LEVEL",
        default="read_committed",
        note="`read_committed` ends at the first open transaction; a note says where",
    )


@declared
class ReplayOptions(SourceOptions, WithCluster, WithGaps, WithAutoEngine):
    """Options of `replay (ARCHIVE | --store STORE) --bootstrap-server HOST:PORT`."""

    job: ClassVar[str] = "replay"

    bootstrap_server: Text = option(TEXT, "The cluster to write to.", metavar="HOST:PORT")
    renames: Value[Globs | None, tuple[str, ...]] = option(
        texts("REGEX=REPLACEMENT", adds=True, metavar="REGEX=REPLACEMENT"),
        "Names of topics there; repeatable.",
        flag="--rename",
        default=None,
        note="`'(.*)=restored.\\1'`; the first that matches the whole name counts",
    )
    repartition: Flag = option(
        FLAG,
        "Let keys choose the partition, as a producer does.",
        default=False,
        note="Without it: the partition of the same number. Order is kept within each partition of the source",
    )
    append: Flag = option(FLAG, "Begin also where a partition already holds records.", default=False)
    group: MaybeText = option(
        maybe(TEXT),
        "The consumer group whose offsets are the progress.",
        default=None,
        metavar="NAME",
        shown="one of this source",
    )
    isolation: Value[Isolation, Isolation] = option(
        one_of(ISOLATIONS),
        "read_committed, or read_uncommitted: also records of aborted and open transactions.",
        metavar="LEVEL",
        default="read_committed",
        rare=True,
        note="What is replayed is committed in either case",
    )


@declared
class InspectOptions(WithDecoders, WithGaps, WithAutoEngine):
    """Options of `inspect PATH...`, files and folders."""

    job: ClassVar[str] = "inspect"

    paths: Value[Location | Iterable[Location] | None, tuple[str, ...]] = argument(
        FILES, "Files and folders.", default=None, kw_only=False, metavar="PATH"
    )
    files: Value[Location, str] = option(
        FILE,
        "More PATHS, separated by commas.",
        default="",
        metavar="LIST",
        rare=True,
        note="As kafka-dump-log takes them",
    )
    deep_iteration: Flag = option(FLAG, "Print records too, not only batches.", default=False)
    print_data_log: Flag = option(FLAG, "Print records with their keys and values.", default=False)
    skip_record_metadata: Flag = option(FLAG, "Print only keys and values of records.", default=False)
    max_bytes: Value[int, int] = option(
        number(1, metavar="BYTES"), "Read only so many bytes of each .log.", default=2**31 - 1, shown="", rare=True
    )
    verify_index_only: Flag = option(
        FLAG,
        "Print only index entries that contradict their log.",
        default=False,
        note="Exit code 3 if there are any",
    )
    index_sanity_check: Flag = option(FLAG, "Check in indexes only what a broker checks when it starts.", default=False)
    offsets_decoder: Flag = option(FLAG, "Records of __consumer_offsets.", default=False, rare=True, note="As JSON")
    transaction_log_decoder: Flag = option(
        FLAG, "Records of __transaction_state.", default=False, rare=True, note="As JSON"
    )
    share_group_state_decoder: Flag = option(
        FLAG, "Records of __share_group_state.", default=False, rare=True, note="As JSON"
    )
    cluster_metadata_decoder: Flag = option(
        FLAG, "Records of __cluster_metadata.", default=False, rare=True, note="As JSON"
    )
    remote_log_metadata_decoder: Flag = option(
        FLAG, "Records of __remote_log_metadata.", default=False, rare=True, note="Of tiered storage, as JSON"
    )
    key: Value[str | bytes | None, bytes | None] = option(
        KEY,
        "Only records with this key; 0x6162 is bytes.",
        flag="--filter",
        default=None,
        metavar="key=KEY",
        note="With their data, and their batches",
    )
    offsets: Value[str | None, Span] = option(
        span(int), "Only records in this range, without TO.", default=None, note="You may leave out either end"
    )
    times: Value[str | None, Span] = option(
        span(parse_time),
        "Only records of this time: milliseconds since 1970, or ISO 8601.",
        default=None,
        note="Such as `2026-11-21T14:05Z..`",
    )
    output: MaybePlace = option(
        maybe(DIR),
        "Write a text for each file to this new or empty folder, in parallel.",
        default=None,
        group="Output",
        note="`.txt` or `.jsonl`",
    )
    as_json: Flag = option(FLAG, "Write objects instead of text.", default=False, on_command_line=False)

    def __post_init__(self) -> None:
        if self.files:
            vars(self).update(paths=(*self.paths, *filter(None, self.files.split(","))), files="")
        super().__post_init__()

    @property
    def records(self) -> str:
        """Kind of records of Kafka's own topics: a name of logformat.messages.coordinator_records, or ""."""
        return next((flag[2:].removesuffix("-decoder") for flag in self._decoders()), "")

    def _decoders(self) -> list[str]:
        """Return the options of decoders that are given."""
        of_records = [v for v in values_of(type(self)) if v.kind.is_flag and v.name.endswith("_decoder")]
        return [value.flag for value in of_records if vars(self)[value.name]]

    def validate(self) -> None:
        """Raise UsageError without a path, or with two kinds of records."""
        super().validate()
        if not self.paths:
            raise UsageError(message="inspect needs PATHS: files or folders")
        if len(self._decoders()) > 1:
            raise UsageError(message=f"{' contradicts '.join(self._decoders())}: give only one of them")


@declared
class LookupOptions(WithGaps, WithAutoEngine):
    """Options of `lookup (ARCHIVE | --store STORE)`, with one kind of question."""

    job: ClassVar[str] = "lookup"

    archive: MaybePlace = argument(maybe(ARCHIVE), "Log directory, or a folder of them.", default=None, kw_only=False)
    store: MaybePlace = option(
        maybe(STORE), "Search a generation of this store; with --at: its table.", default=None, kw_only=False
    )
    generation: MaybeNumber = option(
        maybe(number(1)), "With --store: this generation.", default=None, shown="the current one"
    )
    partitions: Value[Globs | None, tuple[str, ...]] = option(
        texts("TOPIC-N", metavar="TOPIC-N"), "Search only this partition; repeatable.", flag="--partition", default=None
    )
    offsets: Value[int | Iterable[int] | None, tuple[int, ...]] = option(
        numbers(-MAX_LONG, MAX_LONG),
        "Show where a fetch from here begins; repeatable.",
        flag="--offset",
        default=None,
    )
    times: Value[Globs | None, tuple[str, ...]] = option(
        texts("TIME", adds=True, metavar="TIME"),
        "Show the first record from then on: ms since 1970, ISO 8601, earliest, latest, max-timestamp; repeatable.",
        flag="--time",
        default=None,
        note="As the consumer's `offsetsForTimes` does",
    )
    isolation: Value[Isolation, Isolation] = option(
        one_of(ISOLATIONS),
        "read_uncommitted, or read_committed: stop at the first open transaction, as a consumer does.",
        metavar="LEVEL",
        default="read_uncommitted",
        rare=True,
        note="Reads all batch headers",
    )
    queries: MaybePlace = option(
        maybe(FILE),
        "A table of queries: parquet, csv or json lines.",
        default=None,
        note="With the columns `topic`, `partition`, and `offset` or `timestamp`",
    )
    output: MaybePlace = option(
        maybe(FILE),
        "With --queries: write the answers to this file.",
        default=None,
        group="Output",
        note="The same rows, followed by the answers",
    )
    sizing: Flag = option(
        FLAG,
        "Show what indexes cost in bytes, at several densities.",
        default=False,
        note="As they are, and with an entry for each 4 KiB, batch, minute or second",
    )
    at: MaybeText = option(
        maybe(TEXT),
        "With --store: show what happened then, from the table time_index.",
        default=None,
        metavar="TIME",
        note="In that minute, in all topics of ARCHIVE; without ARCHIVE: of the archive that the store serves",
    )
    until: MaybeText = option(
        maybe(TEXT), "With --at: up to this time.", default=None, metavar="TIME", shown="the minute of --at"
    )
    refresh: Flag = option(
        FLAG, "With --at: read new segments into the table first.", default=True, negative=True, shown="", rare=True
    )

    def validate(self) -> None:
        """Raise UsageError unless these options go together."""
        super().validate()
        kinds = {
            "--offset or --time": bool(self.offsets or self.times),
            "--queries": self.queries is not None,
            "--sizing": self.sizing,
            "--at": self.at is not None,
        }
        if sum(kinds.values()) != 1:
            raise UsageError(message=f"lookup needs one of {', '.join(kinds)}")
        if (self.queries is None) != (self.output is None):
            raise UsageError(message="--queries and --output need each other")
        if self.at is not None and self.store is None:
            raise UsageError(message="--at needs --store STORE, which holds the table")
        if self.at is None and (self.archive is None) == (self.store is None):
            raise UsageError(message="lookup needs either ARCHIVE or --store STORE")
        if self.generation is not None and (self.store is None or self.at is not None):
            raise UsageError(message="--generation works only with --store, and not with --at")
        if self.isolation == "read_committed" and (self.sizing or self.at is not None):
            raise UsageError(message="--isolation works only with --offset, --time and --queries")
        if self.at is None and (self.until is not None or not self.refresh):
            raise UsageError(message="--until and --no-refresh work only with --at")


@declared
class ReportOptions(WithPlan, WithHiddenKeys, WithGaps, WithAutoEngine):
    """Options of `report ARCHIVE... --output FILE`."""

    job: ClassVar[str] = "report"

    archives: Value[Location | Iterable[Location], tuple[str, ...]] = argument(
        ARCHIVES, "Log directories, or folders of them.", kw_only=False
    )
    output: Place = option(
        FILE,
        "Write the page to this file; it needs no other.",
        kw_only=False,
        group="Output",
        note="Outside archive and store. Replaces an existing page once the new one is complete",
    )
    stores: Value[Location | Iterable[Location] | None, tuple[str, ...]] = option(
        STORES,
        "Show its generations, and its history; repeatable.",
        flag="--store",
        default=None,
        note="Partitions with a generation as they are now: the generation, then what the archive holds after it. Of "
        "several archives each store goes with the archive that it serves. Of runs "
        "[by yield](../udfs/yields/YIELDS.md): dead records expected and dropped, bytes read and written, and the "
        "segments by age",
    )
    format_savings: Flag = option(
        FLAG,
        "Also measure what `convert --to v3` would save; takes longer.",
        default=False,
        note="What each change of [magic 3](../logformat/FORMAT.md#magic-3) saves, in bytes a record, by codec and "
        "batch size",
    )

    @property
    def archive(self) -> str:
        """The first archive."""
        return self.archives[0]

    @property
    def store(self) -> str | None:
        """The first store."""
        return self.stores[0] if self.stores else None
