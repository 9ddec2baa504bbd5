"""The command line: options in, one job, its report out. The only place that prints.

stdout holds the report, as text or, with --json, as one JSON object; everything else goes to stderr.
"""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import FrameType
from typing import Any, TextIO, TypeVar

import click

from jobs import installation
from jobs.command import endings
from jobs.command.config import GAPS, NULL_KEYS, check_now_ms, load_config
from jobs.command.endings import Ending, TerminatedError
from jobs.command.options import (
    CompactOptions,
    InspectOptions,
    LookupOptions,
    RebuildStateOptions,
    ReindexOptions,
    ReportOptions,
    RestoreOptions,
    RollbackOptions,
    RunsOptions,
    VacuumOptions,
    VerifyOptions,
)
from jobs.command.progress import Bar, Lines, Progress, Silent, above_the_bar
from jobs.command.reporting import Report
from jobs.command.typed import MAX_LONG, check_text, parse_filter, parse_partitions, parse_span, parse_time
from jobs.errors import DONE, JobError, UsageError
from logformat.control_characters import visible, visible_bytes
from logformat.errors import UnsafeFolderError
from logformat.locations import SecretInUriError, refuse_secrets
from udfs.storage import UnknownRootError

# command -> module with run(options, progress) -> Report; imported when the command runs, so that help is fast
JOBS = {
    "compact": "jobs.compact.job",
    "verify": "jobs.verify.job",
    "reindex": "jobs.reindex.job",
    "inspect": "jobs.inspect_log",
    "lookup": "jobs.lookup.job",
    "restore": "jobs.restore.job",
    "rollback": "jobs.rollback",
    "runs": "jobs.runs",
    "rebuild-state": "jobs.rebuild_state",
    "vacuum": "jobs.vacuum",
    "report": "jobs.report.job",
}


EXIT_CODES = """
Exit codes: 0 done, or nothing was due; 1 a bug in Lastkey; 2 wrong option, setting or path; 3 partitions set aside, or
problems found; 4 conflict with another run; 5 environment (Java, jars, disk full, bucket not usable); 130, 143
interrupted; 141 stdout closed early.
"""

TALKS = "LASTKEY_TALKS"  # set for Spark's workers: say what takes long
COMPLETE = "_LASTKEY_COMPLETE"
program = "spark-submit.sh"  # as help calls it; `lastkey` where that was typed

_OFFSET = click.IntRange(-MAX_LONG, MAX_LONG)
Command = TypeVar("Command", bound=Callable[..., Any])


def _version(context: click.Context, option: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        click.echo(f"lastkey, version {installation.version()}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}, epilog=EXIT_CODES)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def lastkey() -> None:
    """Compact, verify and restore archived Apache Kafka logs on Spark.

    Options of Spark (--master, --conf, --driver-memory, ...) go before the job's name. ARCHIVE, STORE and DIR are
    paths or URIs.
    """


def _shared(command: Command) -> Command:
    """The options of every job."""
    for option in (
        click.option("--verbose", is_flag=True, help="Say on stderr what is being done, also where no terminal is."),
        click.option("--quiet", is_flag=True, help="Write nothing to stderr but errors and warnings."),
        click.option(
            "--progress/--no-progress",
            default=None,
            help="A progress bar on stderr, or nothing.  [default: a bar on a terminal, else a line a minute]",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the report, or the error, as one JSON object."),
        click.option(
            "--config",
            metavar="FILE",
            help=f"Read settings from this TOML file (see {installation.SETTINGS}).  [default: Kafka's]",
        ),
        click.option("--topics", metavar="GLOB", help="Take only the topics that match."),
    ):
        command = option(command)
    return command


@lastkey.command()
@click.argument("archive")
@click.option("--store", metavar="STORE", required=True, help="Where state and new segments go.")
@click.option("--cleanup-policy", type=click.Choice(["compact"]), help="Policy of the topics that --topics matches.")
@click.option("--now", "now_ms", type=int, metavar="EPOCH_MS", help="Clock for lags and horizons.  [default: now]")
@click.option("--null-keys", type=click.Choice(NULL_KEYS), help="What to do with null keys.  [default: fail]")
@click.option("--gaps", type=click.Choice(GAPS), help="What to do about offsets in no segment.  [default: fail]")
@click.option("--sealed", is_flag=True, help="Nothing appends to this archive any more: clean the last segment too.")
@click.option("--force", is_flag=True, help="Compact every partition from its log start, due or not.")
@click.option("--reset", metavar="GLOB", help="Start these topics over where a partition diverged or has a gap.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; write nothing.")
@_shared
def compact(now_ms: int | None, **given: Any) -> None:
    """Keep the last record of every key and drop the rest, as the broker's own cleaner does."""
    if given["cleanup_policy"] and given["topics"] is None:
        raise UsageError(message="--cleanup-policy compact needs --topics GLOB, which names the topics it applies to")
    _run("compact", CompactOptions, now_ms=check_now_ms(now_ms), **given)


@lastkey.command()
@click.argument("archive", required=False)
@click.option("--store", metavar="STORE", help="Check a generation of this store instead of an archive.")
@click.option("--generation", type=click.IntRange(min=1), help="With --store.  [default: the current one]")
@click.option("--archive", "archive_moved", metavar="URI", help="With --store: where the archive is now.")
@click.option("--gaps", type=click.Choice(GAPS), help="What to do about offsets in no segment.  [default: fail]")
@click.option("--sealed", is_flag=True, help="Nothing appends to this archive any more: check the last segment too.")
@_shared
def verify(**given: Any) -> None:
    """Check ARCHIVE, or a generation of STORE, and list every problem."""
    if (given["archive"] is None) == (given["store"] is None):
        raise UsageError(message="verify needs either ARCHIVE or --store STORE")
    if given["store"] is None and (given["generation"] is not None or given["archive_moved"] is not None):
        raise UsageError(message="--generation and --archive work only with --store")
    _run("verify", VerifyOptions, **given)


@lastkey.command()
@click.argument("archive")
@click.option("--check", is_flag=True, help="Show what is wrong; write nothing.")
@click.option("--output", metavar="DIR", help="Write the rebuilt files to this new or empty folder.")
@click.option("--in-place", is_flag=True, help="Replace wrong files in the archive, one by one; never a .log.")
@click.option(
    "--partitions",
    metavar="N,N-M",
    callback=lambda _context, _option, text: parse_partitions(text),
    help="Only partitions with these numbers.",
)
@click.option("--skip-crc", is_flag=True, help="Trust the logs: read only batch headers.")
@click.option("--exact", is_flag=True, help="With --in-place: also replace right files that differ from Kafka's bytes.")
@_shared
def reindex(check: bool, in_place: bool, **given: Any) -> None:
    """Rebuild the index files of ARCHIVE from its logs, and show what was wrong with them."""
    modes = {"check": check, "output": given["output"] is not None, "in_place": in_place}
    chosen = [mode for mode, asked in modes.items() if asked]
    if len(chosen) != 1:
        raise UsageError(message="reindex needs one of --check, --output DIR and --in-place")
    if given["exact"] and not in_place:
        raise UsageError(message="--exact works only with --in-place")
    _run("reindex", ReindexOptions, mode=chosen[0], **given)


@lastkey.command()
@click.option("--store", metavar="STORE", required=True, help="The store to restore from.")
@click.option("--output", metavar="DIR", required=True, help="A new or empty folder, which becomes a log directory.")
@click.option("--generation", type=click.IntRange(min=1), help="Restore this one.  [default: the current one]")
@click.option("--archive", metavar="URI", help="Where the archive is now, if it has moved.")
@_shared
def restore(**given: Any) -> None:
    """Copy a generation into a log directory that a broker starts on."""
    _run("restore", RestoreOptions, **given)


@lastkey.command()
@click.option("--store", metavar="STORE", required=True, help="The store to look at.")
@_shared
def runs(**given: Any) -> None:
    """List the compactions that STORE has seen, and what each one saved."""
    _run("runs", RunsOptions, **given)


@lastkey.command()
@click.option("--store", metavar="STORE", required=True, help="The store to change.")
@click.option("--generation", type=click.IntRange(min=1), required=True, help="Make this generation current.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; write nothing.")
@_shared
def rollback(**given: Any) -> None:
    """Make an older generation of STORE the current one."""
    _run("rollback", RollbackOptions, **given)


@lastkey.command("rebuild-state")
@click.option("--store", metavar="STORE", required=True, help="The store that has lost its tables.")
@click.option("--choose", metavar="TOPIC-N=RUN_ID", multiple=True, help="Which run counts; none: leave it out.")
@click.option("--dry-run", is_flag=True, help="Show what would be restored, even if there are tables.")
@_shared
def rebuild_state(**given: Any) -> None:
    """Restore the lost tables of STORE (its folder state) from the manifests of its generations."""
    _run("rebuild-state", RebuildStateOptions, **given)


@lastkey.command()
@click.option("--store", metavar="STORE", required=True, help="The store to clean up.")
@click.option(
    "--grace-hours", type=click.FloatRange(min=0), default=168.0, show_default=True, help="Spare younger files."
)
@click.option("--before-reset", metavar="GLOB", help="For these topics, also give up what was there before a --reset.")
@click.option("--dry-run", is_flag=True, help="List what would be deleted; delete nothing.")
@_shared
def vacuum(**given: Any) -> None:
    """Delete files of STORE that no generation needs any more, after a grace period."""
    _run("vacuum", VacuumOptions, **given)


@lastkey.command()
@click.argument("archive", required=False)
@click.option("--store", metavar="STORE", help="Search a generation of this store; with --at: its table.")
@click.option("--generation", type=click.IntRange(min=1), help="With --store.  [default: the current one]")
@click.option(
    "--partition", "partitions", metavar="TOPIC-N", multiple=True, help="Search only this one; may be repeated."
)
@click.option(
    "--offset",
    "offsets",
    type=_OFFSET,
    multiple=True,
    help="Show where a fetch from here begins; repeatable.",
)
@click.option(
    "--time",
    "times",
    metavar="TIME",
    multiple=True,
    help="Show the first record from then on; repeatable.",
)
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    help="read_committed: stop at the first open transaction, as a consumer does.",
)
@click.option("--queries", metavar="FILE", help="A table of queries: parquet, csv or json lines.")
@click.option("--output", metavar="FILE", help="With --queries: write the answers to this file.")
@click.option("--sizing", is_flag=True, help="Show what indexes cost in bytes, at several densities.")
@click.option("--at", metavar="TIME", help="With --store: show what happened then, from the table time_index.")
@click.option("--until", metavar="TIME", help="With --at: up to this time.  [default: the minute of --at]")
@click.option("--refresh/--no-refresh", default=True, help="With --at: read new segments into the table first.")
@_shared
def lookup(**given: Any) -> None:
    """Find offsets by time, and positions by offset, in ARCHIVE or a generation of STORE, without a broker.

    TIME is milliseconds since 1970, ISO 8601 (UTC if it names no zone), earliest, latest or max-timestamp.
    """
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
    _run("lookup", LookupOptions, **given)


@lastkey.command("report")
@click.argument("archive")
@click.option("--output", metavar="FILE", required=True, help="Write the page to this file; it needs no other.")
@click.option("--store", metavar="STORE", help="Show what its generations hold now, and its history.")
@click.option("--cleanup-policy", type=click.Choice(["compact"]), help="Policy of the topics that --topics matches.")
@click.option("--now", "now_ms", type=int, metavar="EPOCH_MS", help="Clock for lags and horizons.  [default: now]")
@click.option("--hide-keys", is_flag=True, help="Show hashes of hot keys instead of the keys.")
@_shared
def archive_report(now_ms: int | None, **given: Any) -> None:
    """Make a page that shows what is in ARCHIVE and what a compaction would save."""
    if given["cleanup_policy"] and given["topics"] is None:
        raise UsageError(message="--cleanup-policy compact needs --topics GLOB, which names the topics it applies to")
    _run("report", ReportOptions, now_ms=check_now_ms(now_ms), **given)


@lastkey.command()
@click.argument("paths", nargs=-1)
@click.option("--files", metavar="LIST", default="", help="More PATHS, separated by commas.")
@click.option("--deep-iteration", is_flag=True, help="Print records too, not only batches.")
@click.option("--print-data-log", is_flag=True, help="Print records with their keys and values.")
@click.option("--skip-record-metadata", is_flag=True, help="Print only keys and values of records.")
@click.option(
    "--max-bytes", type=click.IntRange(min=1), default=2**31 - 1, help="Read only so many bytes of each .log."
)
@click.option("--verify-index-only", is_flag=True, help="Print only index entries that contradict their log.")
@click.option("--index-sanity-check", is_flag=True, help="Check in indexes only what a broker checks when it starts.")
@click.option("--key-decoder", metavar="NAME", help="How to show keys: string, long, json, hex, ...  [default: string]")
@click.option("--value-decoder", metavar="NAME", help="How to show values.  [default: string]")
@click.option("--offsets-decoder", "records", flag_value="offsets", default="", help="Records of __consumer_offsets.")
@click.option("--transaction-log-decoder", "records", flag_value="transaction-log", help="Of __transaction_state.")
@click.option("--share-group-state-decoder", "records", flag_value="share-group-state", help="Of __share_group_state.")
@click.option("--cluster-metadata-decoder", "records", flag_value="cluster-metadata", help="Of __cluster_metadata.")
@click.option("--remote-log-metadata-decoder", "records", flag_value="remote-log-metadata", help="Of tiered storage.")
@click.option(
    "--filter",
    "key",
    metavar="key=KEY",
    callback=lambda _context, _option, text: parse_filter(text),
    help="Only records with this key; 0x6162 is bytes.",
)
@click.option("--offsets", metavar="FROM..TO", help="Only records in this range, without TO.")
@click.option("--times", metavar="FROM..TO", help="Only records of this time: milliseconds since 1970, or ISO 8601.")
@click.option("--output", metavar="DIR", help="Write a text for each file to this new or empty folder, in parallel.")
@_shared
def inspect(
    paths: tuple[str, ...],
    files: str,
    offsets: str | None,
    times: str | None,
    config: str | None,
    as_json: bool,
    progress: bool | None,
    quiet: bool,
    verbose: bool,
    **given: Any,
) -> None:
    """Print log files, indexes and snapshots as kafka-dump-log does. PATHS are files and folders."""
    paths = (*paths, *filter(None, files.split(",")))
    if not paths:
        raise UsageError(message="inspect needs PATHS: files or folders")
    start, end = (None, None) if offsets is None else parse_span("--offsets", offsets, int)
    start_ms, end_ms = (None, None) if times is None else parse_span("--times", times, parse_time)
    options = InspectOptions(
        paths,
        config=load_config(config),
        start_offset=start,
        end_offset=end,
        start_ms=start_ms,
        end_ms=end_ms,
        as_json=as_json,
        **given,
    )
    shown = _progress(progress, quiet=quiet, verbose=verbose)
    try:
        report = importlib.import_module(JOBS["inspect"]).run(options, shown, _lines_to_stdout())
    finally:
        shown.close()
    endings.written(sys.stdout.buffer.flush)()
    for lines in report.said:
        _say(lines, sys.stderr)
    if options.output is not None:
        _say(f"{json.dumps(report.to_json(), indent=2) if as_json else report.to_text()}\n", sys.stdout)
    raise click.exceptions.Exit(report.exit_code)


def _say(text: str, stream: TextIO) -> None:
    """Whole lines. On a terminal control characters are made visible, for names and keys come from the archive."""
    with endings.writing() if stream is sys.stdout else nullcontext():
        stream.write(visible(text) if stream.isatty() else text)
        stream.flush()


class _Log(logging.Handler):
    """The log on stderr, as `_say` writes text; a progress bar stays below it."""

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{self.format(record)}\n"
        above_the_bar(visible(text) if sys.stderr.isatty() else text)


def _lines_to_stdout() -> Callable[[Any], object]:
    """What writes lines of `inspect`, as bytes, as `_say` does."""
    write = endings.written(sys.stdout.buffer.write)
    return (lambda lines: write(visible_bytes(lines))) if sys.stdout.isatty() else write


def _progress(asked: bool | None, *, quiet: bool, verbose: bool) -> Progress:
    """What shows the job's progress; and from now on the log says as much as is asked for."""
    if quiet and (verbose or asked):
        raise UsageError(message="--quiet contradicts --verbose and --progress")
    talks = verbose or (sys.stderr.isatty() and not quiet)
    logging.getLogger("lastkey").setLevel(logging.INFO if talks else logging.WARNING)
    os.environ[TALKS] = "1" if talks else ""  # to the processes that Spark starts
    if quiet or asked is False:
        return Silent()
    return Bar() if asked or sys.stderr.isatty() else Lines()


def _run(
    job: str,
    kind: type[Any],
    *,
    config: str | None,
    as_json: bool,
    progress: bool | None,
    quiet: bool,
    verbose: bool,
    **given: Any,
) -> None:
    options = kind(config=load_config(config), **given)
    shown = _progress(progress, quiet=quiet, verbose=verbose)
    try:
        report: Report = importlib.import_module(JOBS[job]).run(options, shown)
    finally:
        shown.close()
    _say(f"{json.dumps(report.to_json(), indent=2) if as_json else report.to_text()}\n", sys.stdout)
    raise click.exceptions.Exit(report.exit_code)


for _command in lastkey.commands.values():
    _command.short_help = (_command.help or "").partition("\n\n")[0].replace("\n", " ")  # else click cuts it


def main(arguments: Sequence[str]) -> int:
    """Run one command; the exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(_Log(logging.WARNING))  # tracebacks of defects too
    as_json = "--json" in arguments
    if os.environ.get(COMPLETE):  # a shell asks for completions; click answers and ends
        return lastkey.main(list(arguments), prog_name=program, complete_var=COMPLETE, standalone_mode=False) or DONE
    try:
        _check_words(arguments)
        code = lastkey.main(list(arguments), prog_name=program, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except JobError as error:
        return _fail(endings.of_job_error(error), as_json)
    except (UnknownRootError, SecretInUriError, UnsafeFolderError) as error:
        return _fail(endings.of_usage(str(error)), as_json)
    except click.NoSuchOption as error:
        return _fail(_no_such_option(error), as_json)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        more = f" (see {context.command_path} --help)" if context else ""
        return _fail(endings.of_usage(error.format_message(), more), as_json)
    except (KeyboardInterrupt, click.Abort, TerminatedError) as error:
        return _fail(endings.of_interruption(error), as_json)
    except (BrokenPipeError, SystemExit):  # the second is how click says the first
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still held for stdout is nobody's
        return 128 + signal.SIGPIPE
    except Exception as error:  # the last resort, and the one place for it
        return _fail(endings.of_other(error, arguments), as_json)


def _no_such_option(error: click.NoSuchOption) -> Ending:
    context, jobs = error.ctx, lastkey.commands
    job = context.command.name if context is not None and context.command is not lastkey else None
    of_jobs = {opt for command in jobs.values() for option in command.params for opt in option.opts}
    said = endings.misplaced(error.option_name, of_jobs, job, program)
    return (
        endings.of_usage(said) if said else endings.of_usage(error.format_message(), f" (see {program} {job} --help)")
    )


def _check_words(arguments: Sequence[str]) -> None:
    """Before anything, click's own errors too, can repeat a secret. A key that is looked for may look like a URI."""
    for before, argument in itertools.pairwise(["", *arguments]):
        if before != "--filter" and not argument.startswith("--filter="):
            refuse_secrets(argument)
    check_text(arguments)


def _fail(ending: Ending, as_json: bool) -> int:
    if ending.is_defect:
        _say(traceback.format_exc(), sys.stderr)
    _say(f"error: {ending.line}\n", sys.stderr)
    if as_json:
        _say(f"{json.dumps({'error': ending.fields}, indent=2, default=str)}\n", sys.stdout)
    return ending.exit_code


def _terminate(signum: int, frame: FrameType | None) -> None:
    session = sys.modules.get("jobs.spark.session")
    if session is not None:  # as pyspark does for Ctrl-C: else the tasks that run are waited for
        session.cancel_jobs()
    raise TerminatedError
