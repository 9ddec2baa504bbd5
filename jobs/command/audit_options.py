"""Options of audits."""

from __future__ import annotations

from typing import ClassVar

from lastkey.jobs.command.declare import Value, argument, declared, option
from lastkey.jobs.command.kinds import (
    COUNTS,
    FILE,
    FLAG,
    SIDE,
    STORE,
    TEXT,
    URI,
    AuditSource,
    Flag,
    Globs,
    Location,
    MaybeNumber,
    MaybePlace,
    Text,
    maybe,
    number,
    texts,
)
from lastkey.jobs.command.option_groups import (
    SourceOptions,
    WithEngine,
    WithHiddenKeys,
    WithKeyFormat,
)
from lastkey.jobs.errors import UsageError


@declared
class AuditOptions(WithHiddenKeys, WithEngine):
    """Options of every kind of `audit`."""

    audits: MaybePlace = option(
        maybe(STORE),
        "The store whose tables audit_* hold what was read.",
        default=None,
        shown="the audited store",
        note="And the results. It may be any place outside the archive",
    )

    @property
    def sources(self) -> tuple[AuditSource, ...]:
        """Return the audited archives and stores."""
        return ()

    def validate(self) -> None:
        """Raise UsageError if nothing says which store holds the tables."""
        super().validate()
        if self.audits is None and all(source.store is None for source in self.sources):
            raise UsageError(message="an archive has no tables of audits: name a place for them with --audits STORE")


@declared
class AuditSourceOptions(SourceOptions, AuditOptions):
    """Options of audits of one archive or store."""

    @property
    def source(self) -> AuditSource:
        """Source that is audited."""
        return AuditSource(self.archive_place, self.store, self.generation)

    @property
    def sources(self) -> tuple[AuditSource, ...]:
        """Return the audited archives and stores."""
        return (self.source,)


@declared
class AuditKeysOptions(AuditSourceOptions):
    """Options of `audit keys (ARCHIVE | --store STORE)`."""

    job: ClassVar[str] = "audit keys"

    n_partitions: Value[Globs | tuple[tuple[str, int], ...] | None, tuple[tuple[str, int], ...]] = option(
        COUNTS,
        "Partitions of a topic whose last ones are not in ARCHIVE; repeatable.",
        flag="--partition-count",
        default=None,
        rare=True,
    )


@declared
class AuditDeliveryOptions(WithKeyFormat, AuditSourceOptions):
    """Options of `audit delivery (ARCHIVE | --store STORE)`."""

    job: ClassVar[str] = "audit delivery"

    groups: Value[Globs | None, tuple[str, ...]] = option(
        texts("group", metavar="GROUP"), "Only this group; repeatable.", flag="--group", default=None
    )
    offsets_archive: MaybePlace = option(
        maybe(URI), "Archive that holds __consumer_offsets.", default=None, shown="in ARCHIVE or STORE"
    )
    deliveries: MaybePlace = option(
        maybe(FILE),
        "A table of deliveries by key instead: .parquet, .csv, or Delta.",
        default=None,
        metavar="TABLE",
        note="A Delta table, or a file or folder with that ending (csv with a header), with the columns `topic`, "
        "`key`, `offset`, and `partition` and `group` if it has them. `--key-format` says how strings show keys there; "
        "a binary column is taken as it is",
    )
    max_age_ms: MaybeNumber = option(
        maybe(number(0, metavar="MS")),
        "Exit code 3 if an update waits longer than this.",
        flag="--max-age",
        default=None,
        note="Without it a lag changes no exit code",
    )


@declared
class AuditPairOptions(AuditOptions):
    """Options of audits of a source A and its copy B."""

    a: Value[Location | AuditSource, AuditSource] = argument(
        SIDE, "Archive, STORE@GENERATION or STORE@current.", kw_only=False, metavar="A"
    )
    b: Value[Location | AuditSource, AuditSource] = argument(
        SIDE, "Its copy, of the same form.", kw_only=False, metavar="B"
    )
    renames: Value[Globs | None, tuple[str, ...]] = option(
        texts("REGEX=REPLACEMENT", adds=True, metavar="REGEX=REPLACEMENT"),
        "Topics of B that REGEX matches are A's REPLACEMENT; repeatable.",
        flag="--rename",
        default=None,
        note="For example `'A\\.(.*)=\\1'`: whole names, and the first that matches counts. B's other topics are then "
        "left out. `--topics` means A's names",
    )
    ignore_timestamps: Flag = option(
        FLAG, "Copies have timestamps of their own.", default=False, note="`LogAppendTime` in B"
    )

    @property
    def sources(self) -> tuple[AuditSource, ...]:
        """Return the audited archives and stores."""
        return (self.a, self.b)


@declared
class AuditMirrorOptions(AuditPairOptions):
    """Options of `audit mirror A B`."""

    job: ClassVar[str] = "audit mirror"

    every_version: Flag = option(
        FLAG,
        "Neither side is compacted: each version must be in both.",
        default=False,
        note="Older versions that one side lacks are findings too",
    )


@declared
class AuditFailoverOptions(AuditPairOptions):
    """Options of `audit failover A B --group GROUP`."""

    job: ClassVar[str] = "audit failover"

    group: Text = option(TEXT, "The group that read A.", metavar="GROUP")
    offsets_archive: MaybePlace = option(maybe(URI), "Has A's __consumer_offsets.", default=None, shown="A")
    committed: MaybePlace = option(
        maybe(FILE),
        "The group's offsets instead, as kafka-consumer-groups exports.",
        default=None,
        note="Lines `topic,partition,offset`, as `kafka-consumer-groups --reset-offsets --export` writes them",
    )
    output: MaybePlace = option(
        maybe(FILE),
        "Write the offsets of B to this file, for kafka-consumer-groups.",
        default=None,
        group="Output",
        note="For `kafka-consumer-groups --reset-offsets --from-file FILE --execute`",
    )

    def validate(self) -> None:
        """Raise UsageError for two sources of offsets."""
        super().validate()
        if self.committed is not None and self.offsets_archive is not None:
            raise UsageError(message="--committed contradicts --offsets-archive: give only one of them")
