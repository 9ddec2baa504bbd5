"""Options that several jobs have, declared once: bases of the classes of options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal, get_args

from lastkey.jobs import installation
from lastkey.jobs.command.config import OVERRIDES, SETTINGS, Config, Settings, check_now_ms
from lastkey.jobs.command.declare import Value, argument, declared, option
from lastkey.jobs.command.kinds import (
    ARCHIVE,
    ENGINE,
    FILE,
    FILES,
    FLAG,
    FOLDERS,
    GLOBS,
    NOT_GIVEN,
    NOW,
    PROGRESS,
    STORE,
    TEXT,
    TOPICS,
    URI,
    URL,
    Engine,
    Flag,
    Globs,
    MaybeNumber,
    MaybePlace,
    MaybeText,
    Places,
    choice,
    maybe,
    number,
)
from lastkey.jobs.command.parse import parse_topics
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.errors import UsageError
from lastkey.jobs.topics import FOLDER_KINDS, TopicFilter

Compact = Literal["compact"]
CopyLayout = Literal["copies", "replicas"]
ExportFormat = Literal["ndjson", "parquet", "delta"]
EXPORT_FORMATS: Final[tuple[ExportFormat, ...]] = get_args(ExportFormat)
Isolation = Literal["read_committed", "read_uncommitted"]
ISOLATIONS: Final[tuple[Isolation, ...]] = get_args(Isolation)
InspectedParts = Literal["records", "data", "values", "mismatches"]
KeyFormat = Literal["text", "hex", "base64"]
KEY_FORMATS: Final[tuple[KeyFormat, ...]] = get_args(KeyFormat)
MessageFormat = Literal["v2", "v3"]
ReindexMode = Literal["check", "output", "in_place"]
NeededFormat = Literal["text", "paths"]
RecordKind = Literal[
    "offsets",
    "transaction-log",
    "share-group-state",
    "cluster-metadata",
    "remote-log-metadata",
    "mirror-checkpoints",
    "mirror-offset-syncs",
    "mirror-heartbeats",
]
RunsFormat = Literal["text", "openmetrics"]
Span = tuple[int | None, int | None]  # from the first on, below the second
_DECODERS: Final = (
    "`string`, `json`, `boolean`, `short`, `int`, `long`, `float`, `double`, `uuid`, `hex`, `base64`, `schema_id`, "
    "`schema_guid`, `payload`. Default: `string`; of `export` to other formats than `ndjson`: bytes"
)
_FROM_NOTE: Final = "A name or glob a line; `#` begins a comment, empty lines do not count. May be repeated"


@declared
class JobOptions:
    """Base of the options of every job."""

    job: ClassVar[str] = ""  # name of its command, which the function has

    progress: Value[Progress | bool, Progress | bool] = option(
        PROGRESS, "True shows a bar on stderr.", default=False, on_command_line=False
    )

    def __post_init__(self) -> None:
        """Bring options into the form that jobs read."""

    def validate(self) -> None:
        """Raise UsageError for options that do not go together. Called for all options from a user."""


@declared
class TopicOptions(JobOptions):
    """Options of every job that reads logs or a store."""

    topics: Value[Globs | TopicFilter | None, TopicFilter] = option(
        TOPICS,
        "Take only the topics that match. A,B: several; repeatable.",
        default=None,
        common=True,
        note="Names and globs: `users,orders-*`",
    )
    exclude: Value[Globs, tuple[str, ...]] = option(
        GLOBS,
        "Leave out the topics that match. A,B: several; repeatable.",
        default=(),
        common=True,
        note="Wins over `--topics` and `--topics-from`",
    )
    topics_from: Places = option(
        FILES, "Take the topics that this file names too, a GLOB a line.", default=None, common=True, note=_FROM_NOTE
    )
    config: Value[Settings | None, Config] = option(
        SETTINGS,
        f"Read settings from this TOML file (see {installation.SETTINGS}).",
        default=None,
        common=True,
        shown="Kafka's",
        note="[Settings](/reference/settings.md) explains them",
    )
    overrides: Value[Globs | Mapping[str, Any] | None, Mapping[str, Any]] = option(
        OVERRIDES,
        "Override a setting, for every topic of this run; repeatable.",
        flag="--set",
        default=None,
        common=True,
        note="Such as `--set gaps=accept`. Wins over `--config`",
    )

    def __post_init__(self) -> None:
        topics = parse_topics(self.topics.include, (*self.topics.exclude, *self.exclude), self.topics_from)
        topics = replace(topics, marks=self.topics.marks)
        vars(self).update(topics=topics, exclude=(), topics_from=NOT_GIVEN)  # the filter holds all three
        if self.overrides:
            vars(self).update(config=self.config.overridden(self.overrides), overrides={})
        super().__post_init__()


def _engine(shown: str) -> Value[Engine | None, Engine | None]:
    """Declare the option of jobs whose default engine is this one."""
    return option(
        maybe(ENGINE),
        "Execution engine: Spark, or threads of one process.",
        default=None,
        group="Engine",
        shown=shown,
        note="See [Spark or threads](/reference/command-line.md#spark-or-threads)",
    )


@declared
class WithEngine(TopicOptions):
    """Option of jobs that Spark does by default."""

    engine: Value[Engine | None, Engine | None] = _engine("spark")


@declared
class WithAutoEngine(WithEngine):
    """Option of jobs that threads do by default, unless the master is a cluster or there are many bytes to read."""

    engine: Value[Engine | None, Engine | None] = _engine("auto")


@declared
class WithFolders(TopicOptions):
    """Option of jobs that list an archive."""

    folders: Value[Globs, tuple[str, ...]] = option(
        FOLDERS,
        "Also read folders that a broker marked: stray, future, deleted.",
        default=(),
        rare=True,
        note="As the partition of their name without id and mark. Several with commas between them. A partition with "
        "two folders is a problem that names both. The checkpoints beside such a folder do not count",
    )

    def __post_init__(self) -> None:
        """Keep the marks of the folders in the filter of topics, by which archives are listed."""
        super().__post_init__()
        marks = (*self.topics.marks, *(FOLDER_KINDS[kind] for kind in self.folders))
        vars(self).update(topics=replace(self.topics, marks=tuple(dict.fromkeys(marks))), folders=())


@declared
class WithPlan(TopicOptions):
    """Options of jobs that plan a compaction."""

    now_ms: Value[int | None, int] = option(
        NOW,
        "Clock for lags and delete horizons.",
        flag="--now",
        default=None,
        shown="now",
        rare=True,
        note="The same input, file times, settings and `--now` give the same bytes",
    )
    cleanup_policy: Value[Compact | None, Compact | None] = option(
        maybe(choice(get_args(Compact))),
        "Policy of the topics that --topics matches.",
        default=None,
        note="Requires `--topics` or `--topics-from`. Fails if a selected topic has another policy in the settings",
    )

    def validate(self) -> None:
        """Raise UsageError for a policy without topics, BAD_NOW for a clock in seconds."""
        super().validate()
        check_now_ms(self.now_ms)
        if self.cleanup_policy and not self.topics.include:
            raise UsageError(
                message="--cleanup-policy compact needs --topics or --topics-from, which name the topics it applies to"
            )


@declared
class ArchiveOrStore(WithFolders):
    """Source of a job that reads an archive, or a store."""

    archive: MaybePlace = argument(maybe(ARCHIVE), "Log directory, or a folder of them.", default=None, kw_only=False)
    store: MaybePlace = option(maybe(STORE), "Read a generation of this store instead of ARCHIVE.", default=None)

    def validate(self) -> None:
        """Raise UsageError unless exactly one of archive and store is given."""
        if (self.archive is None) == (self.store is None):
            raise UsageError(message=f"{self.job} needs either ARCHIVE or --store STORE")
        super().validate()


@declared
class SourceOptions(ArchiveOrStore):
    """Source of a job that reads an archive, or a generation of a store."""

    generation: MaybeNumber = option(
        maybe(number(1)), "With --store: this generation.", default=None, shown="the current one"
    )
    archive_moved: MaybePlace = option(
        maybe(URI), "With --store: where the archive is, if it has moved.", flag="--archive", default=None
    )

    @property
    def archive_place(self) -> str | None:
        """Place of the archive; None: the place that the store records."""
        return self.archive or self.archive_moved

    def validate(self) -> None:
        """Raise UsageError for options of a store without one."""
        super().validate()
        if self.store is None and (self.generation is not None or self.archive_moved is not None):
            raise UsageError(message="--generation and --archive work only with --store")


@declared
class Printing:
    """Options of the command line alone, of every command: what it prints, and how."""

    as_json: Flag = option(
        FLAG, "Print the report, or the error, as one JSON object.", flag="--json", default=False, common=True
    )
    progress: Value[bool | None, bool | None] = option(
        maybe(FLAG),
        "A progress bar on stderr, or nothing.",
        default=None,
        negative=True,
        common=True,
        shown="a bar on a terminal, else a line a minute",
        note="It counts bytes while they are read; on a cluster a task counts when it has ended, and the job of a "
        "large partition as a whole",
    )
    quiet: Flag = option(FLAG, "Write nothing to stderr but errors and warnings.", default=False, common=True)
    verbose: Flag = option(
        FLAG,
        "Say on stderr what is being done, and how long each step took.",
        default=False,
        common=True,
        note="On a cluster: phases only",
    )


@declared
class Listing:
    """Option of commands whose text leaves out partitions that need no attention."""

    show_all: Flag = option(
        FLAG,
        "List everything, also what needs no attention.",
        flag="--all",
        default=False,
        group="Output",
        note="Without it the text for more than 20 partitions lists only those that need attention; `--json` has all",
    )


@declared
class Monitoring:
    """Options of commands that notify monitoring at their end. Python functions lack them: a program has the report."""

    metrics_file: MaybePlace = option(
        maybe(FILE),
        "At the end write metrics to this file, for node_exporter.",
        default=None,
        group="Output",
        rare=True,
        note="[Metrics](/reference/metrics.md)",
    )
    notify: Value[str | None, str | None] = option(
        maybe(URL),
        "At the end post a summary, as JSON, to this http(s) URL.",
        default=None,
        group="Output",
        rare=True,
        note="[Metrics](/reference/metrics.md)",
    )


@declared
class WithCluster(TopicOptions):
    """Option of jobs that speak to a live cluster."""

    command_config: MaybePlace = option(
        maybe(FILE),
        "Properties of the connection, as Kafka's tools take them.",
        default=None,
        note="[Connections](/reference/commands/policies.md#details)",
    )


@declared
class WithDecoders(TopicOptions):
    """Options of jobs that decode keys and values."""

    key_decoder: MaybeText = option(
        maybe(TEXT), "Type of keys: string, long, json, hex, ...", default=None, metavar="NAME", note=_DECODERS
    )
    value_decoder: MaybeText = option(
        maybe(TEXT), "Type of values.", default=None, metavar="NAME", note="The same for values"
    )


@declared
class WithHiddenKeys(TopicOptions):
    """Option of jobs that show keys."""

    hide_keys: Flag = option(
        FLAG,
        "Keep and show only hashes of keys.",
        default=False,
        group="Output",
        note="Of 16 bytes, where keys must stay private",
    )


@declared
class WithKeyFormat(TopicOptions):
    """Option of jobs that read keys from text."""

    key_format: Value[KeyFormat, KeyFormat] = option(
        choice(KEY_FORMATS), "How keys are written.", default="text", note="`text`: the bytes themselves"
    )
