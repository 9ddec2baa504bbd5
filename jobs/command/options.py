"""Options of the jobs that read or write an archive, and of the others that need no store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from lastkey.jobs.command.declare import Value, argument, declared, option
from lastkey.jobs.command.kinds import (
    ARCHIVE,
    ARCHIVES,
    DIR,
    DURATION,
    FILE,
    FILES,
    FLAG,
    PARTITIONS,
    SOME_TOPICS,
    STORE,
    TEXT,
    Flag,
    Globs,
    MaybeNumber,
    MaybePlace,
    MaybeText,
    Place,
    Places,
    choice,
    maybe,
    number,
)
from lastkey.jobs.command.option_groups import (
    ArchiveOrStore,
    CopyLayout,
    JobOptions,
    MessageFormat,
    NeededFormat,
    ReindexMode,
    SourceOptions,
    WithAutoEngine,
    WithCluster,
    WithEngine,
    WithFolders,
    WithPlan,
)
from lastkey.jobs.errors import UsageError
from lastkey.jobs.topics import TopicFilter


@declared
class CompactOptions(WithPlan, WithFolders, WithEngine):
    """Options of `compact ARCHIVE --store STORE`."""

    archive: Place = argument(ARCHIVE, "Log directory, or a folder of them; only read.", kw_only=False)
    store: Place = option(
        STORE,
        "Folder or bucket for state and new segments.",
        kw_only=False,
        note="A store serves one archive and must be outside of it",
    )
    sealed: Flag = option(
        FLAG, "The log is complete: clean the last segment too.", default=False, note="A torn tail is then damage"
    )
    force: Flag = option(
        FLAG,
        "Compact every partition from its log start, due or not.",
        default=False,
        note="Drops tombstones and markers past their horizon",
    )
    reset: Value[Globs | TopicFilter | None, TopicFilter | None] = option(
        SOME_TOPICS,
        "Start over where a partition diverged or has a gap. Repeatable.",
        default=(),
        note="From the archive alone, due or not; also if the run finds that a file of its generation is damaged or "
        "missing (`--force` reads all). The store keeps the generation before",
    )
    hmac_key: MaybePlace = option(
        maybe(FILE),
        "With --reset, after an erasure: the file that erase was given.",
        default=None,
        rare=True,
        note="[Erasure](/how-to/erase.md)",
    )
    dry_run: Flag = option(
        FLAG,
        "Show what would be done; write nothing.",
        default=False,
        group="Output",
        note="Exact for records and copied bytes; `~` marks sizes that compression decides. A dry run recompresses a "
        "sample: a small log as a whole, and about 1 MiB in 32 of a larger one. So sizes are neither too low nor "
        "too high, and mostly right to 0.1 %",
    )
    io_budget: MaybeNumber = option(
        maybe(number(0, metavar="BYTES")),
        "By yield: bytes that rewrites of older segments may read and write.",
        default=None,
        group="Engine",
        rare=True,
        note="They read, write and read back at most so much in this run, all partitions together; those with the "
        "largest dead share come first. Outside of it are new records, tombstones past their horizon, segments whose "
        "facts are lost, and partitions that are cleaned whole because their keys are lost. A partition's whole "
        "cleaning waits until the budget suffices. A note on stderr names each segment for which the budget is too "
        "small. Default: no limit",
    )
    max_runtime: Value[str | float | None, float | None] = option(
        maybe(DURATION),
        "Then stop, and commit what is finished: 90s, 30m, 1h30m.",
        default=None,
        group="Engine",
        note="Default: no limit",
    )
    wait: Flag = option(
        FLAG,
        "Wait for another run that works on the same partitions.",
        default=False,
        group="Engine",
        note="Without it: exit code 4 at once",
    )


@declared
class VerifyOptions(SourceOptions, WithAutoEngine):
    """Options of `verify ARCHIVE` or `verify --store STORE [--generation N]`."""

    sealed: Flag = option(FLAG, "The log is complete: check the last segment too.", default=False)


@declared
class ArchiveNeededOptions(WithFolders, WithAutoEngine):
    """Options of `archive-needed ARCHIVE --store STORE`."""

    archive: Place = argument(ARCHIVE, "Log directory, or a folder of them.", kw_only=False)
    store: Place = option(STORE, "The store that was made from the archive.", kw_only=False)
    skip_crc: Flag = option(FLAG, "Compare sizes alone; read none of the files.", default=False)
    format: Value[NeededFormat, NeededFormat] = option(
        choice(get_args(NeededFormat)),
        "paths: only the files that are not needed, one a line.",
        default="text",
        group="Output",
        note="Of `paths`, problems and notes go to stderr",
    )


@declared
class PackOptions(JobOptions):
    """Options of `pack OUTPUT`."""

    output: Place = argument(FILE, "The archive to write, such as lastkey.tar.gz.", kw_only=False)
    driver: Flag = option(
        FLAG,
        "Pack also what a driver needs that runs by the pack.",
        default=False,
        note="Delta: for YARN's cluster mode, and Spark's own spark-submit",
    )
    replace: Flag = option(
        FLAG,
        "Write OUTPUT even if there is a file of this name.",
        default=False,
        group="Output",
        note="It must be a pack; without the option that is an error (exit code 2)",
    )


@declared
class PoliciesOptions(WithCluster):
    """Options of `policies (FILE... | --bootstrap-server HOST:PORT)`."""

    sources: Places = argument(
        FILES,
        "kafka-configs' output, server.properties, or __cluster_metadata.",
        default=None,
        kw_only=False,
        metavar="FILE",
    )
    bootstrap_server: MaybeText = option(
        maybe(TEXT),
        "Ask this cluster; needs the package confluent-kafka.",
        default=None,
        metavar="HOST:PORT",
        note="Of the extra `cluster`",
    )
    retention: Flag = option(
        FLAG,
        "With retention.ms and retention.bytes, or without.",
        default=True,
        negative=True,
        shown="with",
        note="An archive may be there to outlive them",
    )
    output: MaybePlace = option(
        maybe(FILE), "Write to this file.", default=None, group="Output", shown="stdout", note="Whole or not at all"
    )
    replace: Flag = option(
        FLAG,
        "Write OUTPUT even if there is a file of this name.",
        default=False,
        group="Output",
        note="It must be one that `policies` wrote",
    )


@declared
class ConvertOptions(ArchiveOrStore, WithEngine):
    """Options of `convert (ARCHIVE | --store STORE) --to v3|v2 --output DIR`."""

    to: Value[MessageFormat, MessageFormat] = option(choice(get_args(MessageFormat)), "The message format to write.")
    output: Place = option(DIR, "A new or empty folder, or that of a run that was cut off.", group="Output")


@declared
class MergeOptions(WithFolders, WithEngine):
    """Options of `merge ARCHIVE... --output DIR`."""

    archives: Places = argument(ARCHIVES, "Log directories, or folders of them: a copy each; only read.", kw_only=False)
    output: Place = option(DIR, "A new or empty folder, which becomes a log directory.", kw_only=False, group="Output")
    layout: Value[CopyLayout, CopyLayout] = option(
        choice(get_args(CopyLayout)),
        "replicas: the folders right below ARCHIVE are a copy each.",
        default="copies",
        note="`copies`: each ARCHIVE is one. `replicas`: such as a folder of each broker",
    )
    dry_run: Flag = option(
        FLAG,
        "Show what would be taken from which copy; write nothing.",
        default=False,
        group="Output",
        note="Reads all copies",
    )


@declared
class ReindexOptions(WithFolders, WithEngine):
    """Options of `reindex ARCHIVE (--check | --output DIR | --in-place)`."""

    archive: Place = argument(ARCHIVE, "Log directory, or a folder of them.", kw_only=False)
    check: Flag = option(FLAG, "Show what is wrong; write nothing.", default=False, group="Output")
    output: MaybePlace = option(
        maybe(DIR),
        "Write the rebuilt files to this new or empty folder.",
        default=None,
        group="Output",
        note="Outside the archive, under the archive's folder names",
    )
    in_place: Flag = option(
        FLAG,
        "Replace wrong files in the archive, one by one; never a .log.",
        default=False,
        group="Output",
        note="Each by an atomic rename; local disks only. A folder that is a symbolic link below ARCHIVE is not "
        "changed (exit code 3)",
    )
    partitions: Value[str | Iterable[int | range] | None, tuple[range, ...] | None] = option(
        maybe(PARTITIONS),
        "Only partitions with these numbers.",
        flag="--partition",
        default=None,
        note="Such as `0,3-5`",
    )
    skip_crc: Flag = option(
        FLAG,
        "Trust the logs: read only batch headers.",
        default=False,
        note="An order of magnitude less to read on local disks",
    )

    @property
    def mode(self) -> ReindexMode:
        """Use that is made of the rebuilt files."""
        return "check" if self.check else "output" if self.output is not None else "in_place"

    def validate(self) -> None:
        """Raise UsageError unless one mode is chosen."""
        super().validate()
        if self.check + (self.output is not None) + self.in_place != 1:
            raise UsageError(message="reindex needs one of --check, --output DIR and --in-place")
