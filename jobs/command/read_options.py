"""Options of the jobs that hand on what is in an archive or a store: export, replay, inspect, lookup, report."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from lastkey.jobs.command.declare import Value, argument, declared, option
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
    MaybeNumber,
    MaybePlace,
    MaybeText,
    Place,
    Places,
    Text,
    Texts,
    choice,
    maybe,
    number,
    repeated,
    span,
    texts,
)
from lastkey.jobs.command.option_groups import (
    EXPORT_FORMATS,
    ISOLATIONS,
    ExportFormat,
    InspectedParts,
    Isolation,
    RecordKind,
    SourceOptions,
    Span,
    WithAutoEngine,
    WithCluster,
    WithDecoders,
    WithEngine,
    WithFolders,
    WithHiddenKeys,
    WithPlan,
)
from lastkey.jobs.command.parse import MAX_LONG, parse_time
from lastkey.jobs.errors import UsageError


@declared
class ExportOptions(SourceOptions, WithDecoders, WithEngine):
    """Options of `export (ARCHIVE | --store STORE) --format FORMAT --output DIR`."""

    output: Place = option(
        DIR,
        "A new or empty folder; each topic gets one in it.",
        group="Output",
        note="The file `_lastkey_export.json` in it records the options and whether the export is complete",
    )
    format: Value[ExportFormat, ExportFormat] = option(choice(EXPORT_FORMATS), "Output format.", group="Output")
    latest: Flag = option(
        FLAG,
        "With delta: the last record of each key, brought up to date.",
        default=False,
        note="By each run, instead of all records; see below",
    )
    isolation: Value[Isolation, Isolation] = option(
        choice(ISOLATIONS),
        "read_committed, or read_uncommitted: also records of aborted and open transactions.",
        metavar="LEVEL",
        default="read_committed",
        note="`read_committed` ends at the first open transaction; a note gives its offset",
    )


@declared
class ReplayOptions(SourceOptions, WithCluster, WithAutoEngine):
    """Options of `replay (ARCHIVE | --store STORE) --bootstrap-server HOST:PORT`."""

    bootstrap_server: Text = option(TEXT, "The cluster to write to.", metavar="HOST:PORT")
    renames: Texts = option(
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
        choice(ISOLATIONS),
        "read_committed, or read_uncommitted: also records of aborted and open transactions.",
        metavar="LEVEL",
        default="read_committed",
        rare=True,
        note="Replayed records are committed in either case",
    )


@declared
class InspectOptions(WithDecoders, WithAutoEngine):
    """Options of `inspect PATH...`, files and folders."""

    paths: Places = argument(FILES, "Files and folders.", default=None, kw_only=False, metavar="PATH")
    parts: Value[InspectedParts | None, InspectedParts | None] = option(
        maybe(choice(get_args(InspectedParts))),
        "Print records too, with keys and values, only these, or wrong index entries.",
        flag="--print",
        default=None,
        note="kafka-dump-log calls them `--deep-iteration`, `--print-data-log`, `--skip-record-metadata` and "
        "`--verify-index-only`. `mismatches` are index entries that contradict their log: exit code 3 if there are any",
    )
    decoder: Value[RecordKind | None, RecordKind | None] = option(
        maybe(choice(get_args(RecordKind))),
        "Decode records of one of Kafka's own topics, or MirrorMaker's.",
        default=None,
        metavar="NAME",
        rare=True,
        note="As JSON: `offsets` (`__consumer_offsets`), `transaction-log` (`__transaction_state`), "
        "`share-group-state`, `cluster-metadata`, `remote-log-metadata` (of tiered storage); and MirrorMaker 2's "
        "`mirror-checkpoints`, `mirror-offset-syncs`, `mirror-heartbeats`",
    )
    key: Value[str | bytes | None, bytes | None] = option(
        KEY, "Only records with this key; 0x6162 is bytes.", default=None, note="With their data, and their batches"
    )
    offsets: Value[str | None, Span] = option(
        span(int),
        "Only records in this range, without TO.",
        flag="--offset",
        default=None,
        note="You may leave out either end",
    )
    times: Value[str | None, Span] = option(
        span(parse_time),
        "Only records of this time: milliseconds since 1970, or ISO 8601.",
        flag="--time",
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

    def validate(self) -> None:
        """Raise UsageError without a path."""
        super().validate()
        if not self.paths:
            raise UsageError(message="inspect needs PATHS: files or folders")


@declared
class LookupOptions(WithFolders, WithAutoEngine):
    """Options of `lookup (ARCHIVE | --store STORE)`, with one kind of question."""

    archive: MaybePlace = argument(maybe(ARCHIVE), "Log directory, or a folder of them.", default=None, kw_only=False)
    store: MaybePlace = option(
        maybe(STORE), "Search a generation of this store; with --at: its table.", default=None, kw_only=False
    )
    generation: MaybeNumber = option(
        maybe(number(1)), "With --store: this generation.", default=None, shown="the current one"
    )
    partitions: Texts = option(
        texts("TOPIC-N", metavar="TOPIC-N"), "Search only this partition; repeatable.", flag="--partition", default=None
    )
    offsets: Value[int | Iterable[int] | None, tuple[int, ...]] = option(
        repeated(number(-MAX_LONG, MAX_LONG), "numbers"),
        "Show where a fetch from here begins; repeatable.",
        flag="--offset",
        default=None,
    )
    times: Texts = option(
        texts("TIME", adds=True, metavar="TIME"),
        "Show the first record from then on: ms since 1970, ISO 8601, earliest, latest, max-timestamp; repeatable.",
        flag="--time",
        default=None,
        note="As the consumer's `offsetsForTimes` does",
    )
    isolation: Value[Isolation, Isolation] = option(
        choice(ISOLATIONS),
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
        metavar="TIME|FROM..TO",
        note="In that minute, or in all from FROM up to TO, in all topics of ARCHIVE; without ARCHIVE: of the archive "
        "that the store serves",
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
        if self.at is None and not self.refresh:
            raise UsageError(message="--no-refresh works only with --at")


@declared
class ReportOptions(WithPlan, WithFolders, WithHiddenKeys, WithAutoEngine):
    """Options of `report ARCHIVE... --output FILE`."""

    archives: Places = argument(ARCHIVES, "Log directories, or folders of them.", kw_only=False)
    output: Place = option(
        FILE,
        "Write the page to this file; it needs no other.",
        kw_only=False,
        group="Output",
        note="Outside archive and store. Replaces an existing page once the new one is complete",
    )
    stores: Places = option(
        STORES,
        "Show its generations, and its history; repeatable.",
        flag="--store",
        default=None,
        note="Partitions with a generation as they are now: the generation, then the archive's records after it. "
        "With several archives, each store belongs to the archive that it serves",
    )

    @property
    def archive(self) -> str:
        """The first archive."""
        return self.archives[0]

    @property
    def store(self) -> str | None:
        """The first store."""
        return self.stores[0] if self.stores else None
