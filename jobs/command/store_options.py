"""Options of the jobs that work on a store, and of audits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, get_args

from lastkey.jobs.command.declare import Value, ValueKind, argument, declared, option
from lastkey.jobs.command.kinds import (
    COUNTS,
    DIR,
    FILE,
    FLAG,
    KEYS,
    SIDE,
    SOME_TOPICS,
    STORE,
    TEXT,
    TIME,
    URI,
    AuditSource,
    Flag,
    Globs,
    Location,
    MaybeNumber,
    MaybePlace,
    Place,
    Text,
    Texts,
    TopicCount,
    choice,
    maybe,
    number,
    real,
    texts,
)
from lastkey.jobs.command.option_groups import (
    RunsFormat,
    SourceOptions,
    TopicOptions,
    WithEngine,
    WithHiddenKeys,
    WithKeyFormat,
)
from lastkey.jobs.errors import UsageError
from lastkey.jobs.store.keep import Keep, parse_keep
from lastkey.jobs.topics import TopicFilter


def _keep(option: Value[Any, Any], value: object) -> Keep:
    if isinstance(value, Keep):
        return value
    try:
        return parse_keep(texts("N, Nd or Nw", adds=True).check(option, value))
    except ValueError as error:
        raise option.wrong("N, Nd or Nw, each once", repr(str(error))) from None


KEEP: Final[ValueKind[Globs | Keep | None, Keep]] = ValueKind(_keep, "N|Nd|Nw", repeats=True)


@declared
class VacuumOptions(TopicOptions):
    """Options of `vacuum --store STORE`."""

    store: Place = option(STORE, "The store to clean up.", kw_only=False)
    grace_hours: Value[float, float] = option(
        real(0, metavar="HOURS"),
        "Spare younger files.",
        default=168.0,
        shown="168",
        note="Also generations that were replaced less long ago, by the wall clock or that of the store (its disk, its "
        "server), whichever shows the earlier time",
    )
    keep: Value[Globs | Keep | None, Keep] = option(
        KEEP,
        "Keep the N newest of a partition, one of each of N days (Nd) or weeks (Nw); repeatable.",
        default=None,
        note="Such as `--keep 3,7d,4w`: whatever their age; days and weeks (from Monday on, UTC) that have one",
    )
    give_up: Value[Globs | TopicFilter | None, TopicFilter | None] = option(
        SOME_TOPICS,
        "Of these topics, also delete what no later generation has read. Repeatable.",
        default=(),
        note="After the grace period: generations with offsets that the current one's chain never read",
    )
    erased: Flag = option(
        FLAG,
        "Delete what may hold erased keys at once: older generations, audits.",
        default=False,
        note="After an [erasure](/how-to/erase.md), whatever their age and the options above; also what dead runs left",
    )
    dry_run: Flag = option(
        FLAG,
        "List what would be deleted; delete nothing.",
        default=False,
        group="Output",
        note="Lists the files, and the reason why each generation is kept or deleted",
    )


@declared
class RestoreOptions(TopicOptions):
    """Options of `restore --store STORE --output DIR`."""

    store: Place = option(STORE, "The store to restore from.", kw_only=False)
    output: Place = option(DIR, "A new or empty folder, which becomes a log directory.", kw_only=False, group="Output")
    generation: MaybeNumber = option(
        maybe(number(1)), "Restore this one.", default=None, shown="the current one", note="Of every partition"
    )
    as_of: Value[int | str | None, int | None] = option(
        maybe(TIME),
        "Restore what was current then: ISO 8601 (UTC), or ms since 1970.",
        default=None,
        note="A partition without a generation then is left out, with a note",
    )
    archive: MaybePlace = option(maybe(URI), "Present place of the archive, if it has moved.", default=None)
    topic_ids: MaybePlace = option(
        maybe(FILE),
        "Topic ids of the target cluster: text of kafka-topics --describe, or topic=id lines.",
        default=None,
        note="Written into each `partition.metadata`, in place of the archive's",
    )
    full_clean: Flag = option(
        FLAG,
        "First clean what a broker would clean again, in a run of compact.",
        default=False,
        note="Not with `--generation` or `--as-of`",
    )

    def validate(self) -> None:
        """Raise UsageError for two ways to name a generation."""
        super().validate()
        if self.generation is not None and self.as_of is not None:
            raise UsageError(message="--generation and --as-of both name a generation: give only one of them")
        if self.full_clean and (self.generation is not None or self.as_of is not None):
            named = "--generation" if self.as_of is None else "--as-of"
            raise UsageError(message=f"--full-clean makes a new generation of the current one: leave out {named}")


@declared
class RunsOptions(TopicOptions):
    """Options of `runs --store STORE`."""

    store: Place = option(STORE, "The store to look at.", kw_only=False)
    since_ms: Value[int | str | None, int | None] = option(
        maybe(TIME),
        "Only runs that started at this time or later.",
        flag="--since",
        default=None,
        note="Milliseconds since 1970, or ISO 8601 (UTC if it names no zone)",
    )
    format: Value[RunsFormat, RunsFormat] = option(
        choice(get_args(RunsFormat)),
        "openmetrics: metrics of the newest run of each job but audits.",
        default="text",
        group="Output",
        note="[Metrics](/reference/metrics.md)",
    )


@declared
class RollbackOptions(TopicOptions):
    """Options of `rollback --store STORE --generation N`."""

    store: Place = option(STORE, "The store to change.", kw_only=False)
    generation: Value[int, int] = option(number(1), "Make this generation current.", kw_only=False)
    dry_run: Flag = option(FLAG, "Show what would be done; write nothing.", default=False, group="Output")


@declared
class RebuildStateOptions(TopicOptions):
    """Options of `rebuild-state --store STORE`. `topics` must be every topic: the others' state would be lost."""

    store: Place = option(
        STORE,
        "The store that has lost its tables.",
        kw_only=False,
        note="Its `state/` is gone, or you moved it away because it cannot be read",
    )
    choose: Texts = option(
        texts("TOPIC-N=RUN_ID", adds=True, metavar="TOPIC-N=RUN_ID"),
        "The run that counts; none: leave it out. Repeatable.",
        default=None,
        note="Where the manifests do not settle it",
    )
    dry_run: Flag = option(
        FLAG, "Show what would be restored, even if there are tables.", default=False, group="Output"
    )


@declared
class EraseOptions(WithKeyFormat, WithEngine):
    """Options of `erase --store STORE`."""

    store: Place = option(
        STORE, "The store to erase from.", kw_only=False, note="The archive is the one that it was made of"
    )
    hmac_key: Place = option(
        FILE,
        "Your key, by which the store names erased keys.",
        kw_only=False,
        note="A file of 16 bytes or more that you keep apart. It is read once, so it may be a pipe",
    )
    keys: MaybePlace = option(
        maybe(FILE), "Erase the keys in this file, one a line.", default=None, note="Without a byte order mark"
    )
    key: Texts = option(KEYS, "Erase this key too; repeatable.", default=None)
    by: Text = option(TEXT, "Requester: a text for the run's row in cleaner_runs.", default="")
    no_archive: Flag = option(FLAG, "The archive no longer exists: process the store alone.", default=False)
    check: Flag = option(
        FLAG,
        "Erase nothing: show where the keys still are.",
        default=False,
        group="Output",
        note="Also for keys that were never erased; adds a row. See [Erase a key](/how-to/erase.md)",
    )
    dry_run: Flag = option(
        FLAG, "Show what would be erased; write nothing.", default=False, group="Output", note="Counts by partition"
    )
    proof: MaybePlace = option(
        maybe(FILE),
        "Write a proof to this new file, as JSON.",
        default=None,
        group="Output",
        note="[Of the search](/how-to/erase.md#the-proof), to a disk. Only its owner can read it",
    )
    wait: Flag = option(FLAG, "Wait for another run that works on the same partitions.", default=False, group="Engine")


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
        """Raise UsageError if no option names the store that holds the tables."""
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

    n_partitions: Value[str | TopicCount | Iterable[str | TopicCount] | None, tuple[TopicCount, ...]] = option(
        COUNTS,
        "Partitions of a topic whose last ones are not in ARCHIVE; repeatable.",
        flag="--partition-count",
        default=None,
        rare=True,
    )


@declared
class AuditDeliveryOptions(WithKeyFormat, AuditSourceOptions):
    """Options of `audit delivery (ARCHIVE | --store STORE)`."""

    groups: Texts = option(
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
        "`key`, `offset`, and `partition` and `group` if it has them. `--key-format` is the form of keys in strings; a "
        "binary column holds the bytes of keys",
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
    renames: Texts = option(
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

    every_version: Flag = option(
        FLAG,
        "Neither side is compacted: each version must be in both.",
        default=False,
        note="Older versions that one side lacks are findings too",
    )


@declared
class AuditFailoverOptions(AuditPairOptions):
    """Options of `audit failover A B --group GROUP`."""

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
