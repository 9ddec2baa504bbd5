"""Jobs as Python functions. Each is a command too, so an option means the same in both.

    import lastkey

    report = lastkey.compact("archive", "store", topics="orders-*", cleanup_policy="compact")
    print(report.to_text(), report.exit_code)

The parameters are the declarations in `command.options`. The body of a function here never runs: `command` makes the
function that does. Problems with data are in the report, and the other partitions go on. An error that stops a job is
raised as a JobError with the command line's words, an argument of another type as a TypeError. API.md beside this file
is for users.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lastkey.jobs.command.functions import command
from lastkey.jobs.command.option_groups import Listing, Monitoring
from lastkey.jobs.command.options import (
    ArchiveNeededOptions,
    CompactOptions,
    ConvertOptions,
    MergeOptions,
    PackOptions,
    PoliciesOptions,
    ReindexOptions,
    VerifyOptions,
)
from lastkey.jobs.command.read_options import ExportOptions, InspectOptions, LookupOptions, ReplayOptions, ReportOptions
from lastkey.jobs.command.store_options import (
    EraseOptions,
    RebuildStateOptions,
    RestoreOptions,
    RollbackOptions,
    RunsOptions,
    VacuumOptions,
)

if TYPE_CHECKING:
    from lastkey.jobs.archive_needed.report import ArchiveNeededReport
    from lastkey.jobs.command.reporting import JobReport
    from lastkey.jobs.compact.report import CompactReport
    from lastkey.jobs.convert.report import ConvertReport
    from lastkey.jobs.erase.report import EraseReport
    from lastkey.jobs.export.report import ExportReport
    from lastkey.jobs.merge.report import MergeReport
    from lastkey.jobs.pack import PackReport
    from lastkey.jobs.policies.job import PoliciesReport
    from lastkey.jobs.rebuild_state import RebuildReport
    from lastkey.jobs.reindex.report import ReindexReport
    from lastkey.jobs.replay import ReplayReport
    from lastkey.jobs.restore.report import RestoreReport
    from lastkey.jobs.rollback import RollbackReport
    from lastkey.jobs.runs import RunsReport
    from lastkey.jobs.vacuum import VacuumReport
    from lastkey.jobs.verify.report import VerifyReport


@command(CompactOptions, Listing, Monitoring)
def compact() -> CompactReport:
    """Keep the last record of every key and drop the rest, as the broker's own cleaner does.

    Each partition is committed as a new generation of the store. Uncleanable partitions are in the report, with
    exit code 3; with exit code 4 another run committed first. Raises a JobError (UsageError, RunningError,
    MachineError, ...) if the job stops.
    """
    raise NotImplementedError


@command(VerifyOptions, Listing, Monitoring)
def verify() -> VerifyReport:
    """Check ARCHIVE, or a generation of STORE, and list every problem.

    Every byte is read. Problems are in the report, with exit code 3. Raises a JobError if the job stops.
    """
    raise NotImplementedError


@command(ArchiveNeededOptions, Listing)
def archive_needed() -> ArchiveNeededReport:
    """Show which segments of ARCHIVE are still needed beside STORE, and why; the others may be deleted."""
    raise NotImplementedError


@command(ReindexOptions, Listing, Monitoring)
def reindex() -> ReindexReport:
    """Rebuild the index files of ARCHIVE from its logs, and show what was wrong with them.

    Wrong files are in the report, with exit code 3 if any stays wrong. Raises a JobError if the job stops
    (kind LOG_DIRECTORY_IN_USE: a broker holds the archive).
    """
    raise NotImplementedError


@command(ConvertOptions, Listing)
def convert() -> ConvertReport:
    """Write ARCHIVE, or a generation of STORE, again in another message format, without loss.

    The source is only read. Raises a JobError if the job stops (kinds NOT_EMPTY; CONVERT_FULL: the disk is full).
    """
    raise NotImplementedError


@command(MergeOptions, Listing)
def merge() -> MergeReport:
    """Write the most complete log of several copies of a log directory, batch by batch.

    The archives are only read. Raises a JobError if the job stops (kinds NOT_EMPTY; MERGE_FULL: the disk is full).
    """
    raise NotImplementedError


@command(ExportOptions)
def export() -> ExportReport:
    """Write the records of ARCHIVE, or of a generation of STORE, as JSON lines, Parquet or Delta."""
    raise NotImplementedError


@command(ReplayOptions)
def replay() -> ReplayReport:
    """Write the records of ARCHIVE, or of a generation of STORE, into topics of a live cluster, each once."""
    raise NotImplementedError


@command(RestoreOptions, Monitoring)
def restore() -> RestoreReport:
    """Copy a generation into a log directory that a broker starts on.

    A full clean takes the settings of `config` or, for topics without any, of their last run. Raises a JobError if the
    job stops (kinds MISSING_FILE: a file of the generation is gone; NOT_EMPTY; NOT_CLEANED: the full clean found
    a problem).
    """
    raise NotImplementedError


@command(RunsOptions)
def runs() -> RunsReport:
    """List what was done to STORE: every run, what came of it, and what it saved."""
    raise NotImplementedError


@command(RollbackOptions)
def rollback() -> RollbackReport:
    """Make an older generation of STORE the current one."""
    raise NotImplementedError


@command(RebuildStateOptions)
def rebuild_state() -> RebuildReport:
    """Restore the lost tables of STORE (its folder state) from the manifests of its generations."""
    raise NotImplementedError


@command(EraseOptions, Listing, Monitoring)
def erase() -> EraseReport:
    """Erase every record of some keys from STORE for good, and show where these keys still are.

    `result` of the report is gone, older (what `vacuum --erased` deletes), held or unknown. Uncleanable
    partitions are in it, with exit code 3. Raises a JobError if the job stops.
    """
    raise NotImplementedError


@command(VacuumOptions, Listing, Monitoring)
def vacuum() -> VacuumReport:
    """Delete files of STORE that no generation needs any more, after a grace period."""
    raise NotImplementedError


@command(PoliciesOptions)
def policies() -> PoliciesReport:
    """Write the policies of a cluster's topics as settings for --config."""
    raise NotImplementedError


@command(PackOptions)
def pack() -> PackReport:
    """Pack what a cluster's executors need into OUTPUT, for Spark's --archives OUTPUT#lastkey."""
    raise NotImplementedError


@command(InspectOptions)
def inspect() -> JobReport:
    """Print log files, indexes and snapshots as kafka-dump-log does."""
    raise NotImplementedError


@command(LookupOptions)
def lookup() -> JobReport:
    """Find offsets by time, and positions by offset, in ARCHIVE or a generation of STORE, without a broker.

    A time is milliseconds since 1970, ISO 8601 (UTC if it names no zone), earliest, latest or max-timestamp.
    """
    raise NotImplementedError


@command(ReportOptions)
def report() -> JobReport:
    """Make a page that shows what is in each ARCHIVE and what a compaction would save."""
    raise NotImplementedError
