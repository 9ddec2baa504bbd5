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
from jobs.command.spark_options import OF_SPARK
from jobs.command.typed import MAX_LONG, nearest, parse_key, parse_numbers, parse_span, parse_time
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
Exit codes: 0 done, or nothing due; 1 unexpected; 2 usage or configuration; 3 partitions set aside, or problems found;
4 conflict with another run; 5 environment (Java, jars, disk full, a bucket that cannot be used); 130, 143 interrupted;
141 stdout closed early.
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

    Options of Spark (--master, --conf, --driver-memory, ...) go before the command's name. ARCHIVE, STORE and DIR are
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
        click.option("--json", "as_json", is_flag=True, help="The report, or the error, as one JSON object."),
        click.option("--config", metavar="FILE", help="Settings (TOML; see conf/cleaner.toml).  [default: Kafka's]"),
        click.option("--topics", metavar="GLOB", help="Only the topics that match."),
    ):
        command = option(command)
    return command


def _partitions(context: click.Context, option: click.Parameter, value: str | None) -> tuple[range, ...] | None:
    """`0,3-5` as ranges."""
    if value is None:
        return None
    try:
        return tuple(parse_numbers(part) for part in value.split(","))
    except ValueError as error:
        raise UsageError(message=f"--partitions: expected numbers and ranges such as 0,3-5, found {value!r}") from error


@lastkey.command()
@click.argument("archive")
@click.option(
    "--store", metavar="STORE", required=True, help="Where state and new segments go. One store, one archive."
)
@click.option("--cleanup-policy", type=click.Choice(["compact"]), help="Policy of the topics that --topics names.")
@click.option("--now", "now_ms", type=int, metavar="EPOCH_MS", help="The clock that decides lags and horizons.")
@click.option("--null-keys", type=click.Choice(NULL_KEYS), help="Records without a key.  [default: fail]")
@click.option("--gaps", type=click.Choice(GAPS), help="Offsets that are in no segment.  [default: fail]")
@click.option("--sealed", is_flag=True, help="Nothing is appended to this archive any more: no active segment.")
@click.option("--force", is_flag=True, help="Every partition, due or not, from its log start.")
@click.option("--reset", metavar="GLOB", help="Begin anew with partitions of these topics that diverged or have a gap.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; write nothing.")
@_shared
def compact(now_ms: int | None, **given: Any) -> None:
    """Keep the last record of every key of ARCHIVE, as the broker's own cleaner does."""
    if given["cleanup_policy"] and given["topics"] is None:
        raise UsageError(message="--cleanup-policy compact needs --topics GLOB: it says which topics it is meant for")
    _run("compact", CompactOptions, now_ms=check_now_ms(now_ms), **given)


@lastkey.command()
@click.argument("archive", required=False)
@click.option("--store", metavar="STORE", help="Verify a generation of this store instead of an archive.")
@click.option("--generation", type=click.IntRange(min=1), help="With --store.  [default: the current one]")
@click.option("--archive", "archive_moved", metavar="URI", help="With --store: where the archive is now.")
@click.option("--gaps", type=click.Choice(GAPS), help="Offsets that are in no segment.  [default: fail]")
@click.option("--sealed", is_flag=True, help="The archive has no active segment.")
@_shared
def verify(**given: Any) -> None:
    """Check ARCHIVE, or a generation of STORE, and list every problem."""
    if (given["archive"] is None) == (given["store"] is None):
        raise UsageError(message="verify needs ARCHIVE or --store STORE, one of both")
    if given["store"] is None and (given["generation"] is not None or given["archive_moved"] is not None):
        raise UsageError(message="--generation and --archive belong to --store")
    _run("verify", VerifyOptions, **given)


@lastkey.command()
@click.argument("archive")
@click.option("--check", is_flag=True, help="Say what is wrong; write nothing.")
@click.option("--output", metavar="DIR", help="An empty or absent folder: gets every rebuilt file, and nothing else.")
@click.option("--in-place", is_flag=True, help="Replace the files that are wrong, each at once; never a .log.")
@click.option("--partitions", metavar="N,N-M", callback=_partitions, help="Only partitions of these numbers.")
@click.option("--skip-crc", is_flag=True, help="Trust the logs: read batch headers alone.")
@click.option("--exact", is_flag=True, help="With --in-place: files too that are right, but not byte for byte Kafka's.")
@_shared
def reindex(check: bool, in_place: bool, **given: Any) -> None:
    """Rebuild the index files of ARCHIVE from its logs, and say what was wrong with them."""
    modes = {"check": check, "output": given["output"] is not None, "in_place": in_place}
    chosen = [mode for mode, asked in modes.items() if asked]
    if len(chosen) != 1:
        raise UsageError(message="reindex needs one of --check, --output DIR and --in-place")
    if given["exact"] and not in_place:
        raise UsageError(message="--exact belongs to --in-place")
    _run("reindex", ReindexOptions, mode=chosen[0], **given)


@lastkey.command()
@click.option("--store", metavar="STORE", required=True, help="The store to restore from.")
@click.option("--output", metavar="DIR", required=True, help="An empty or absent folder: becomes a log directory.")
@click.option("--generation", type=click.IntRange(min=1), help="Of every partition.  [default: the current one]")
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
@click.option("--generation", type=click.IntRange(min=1), required=True, help="Becomes current where a later one is.")
@click.option("--dry-run", is_flag=True, help="Say what would be done; write nothing.")
@_shared
def rollback(**given: Any) -> None:
    """Make an older generation of STORE the current one."""
    _run("rollback", RollbackOptions, **given)


@lastkey.command("rebuild-state")
@click.option("--store", metavar="STORE", required=True, help="The store that has lost its tables.")
@click.option("--choose", metavar="TOPIC-N=RUN_ID", multiple=True, help="Which run counts; none: leave it out.")
@click.option("--dry-run", is_flag=True, help="Say what would be made, whether tables are there or not.")
@_shared
def rebuild_state(**given: Any) -> None:
    """Make the tables of STORE again, lost with state/, from the manifests in its generations' folders."""
    _run("rebuild-state", RebuildStateOptions, **given)


@lastkey.command()
@click.option("--store", metavar="STORE", required=True, help="The store to clean up.")
@click.option(
    "--grace-hours", type=click.FloatRange(min=0), default=168.0, show_default=True, help="Age that is spared."
)
@click.option("--before-reset", metavar="GLOB", help="Of these topics, what was before a --reset is not kept either.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted; delete nothing.")
@_shared
def vacuum(**given: Any) -> None:
    """Delete files of STORE that no current generation needs, after a grace."""
    _run("vacuum", VacuumOptions, **given)


@lastkey.command()
@click.argument("archive", required=False)
@click.option("--store", metavar="STORE", help="A generation of this store instead of an archive; with --at its table.")
@click.option("--generation", type=click.IntRange(min=1), help="With --store.  [default: the current one]")
@click.option("--partition", "partitions", metavar="TOPIC-N", multiple=True, help="Only this one; may be repeated.")
@click.option(
    "--offset", "offsets", type=_OFFSET, multiple=True, help="Where a fetch from this offset begins; repeatable."
)
@click.option("--time", "times", metavar="TIME", multiple=True, help="The first record from then on; repeatable.")
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    help="read_committed: nothing from the first open transaction on, as for a consumer.",
)
@click.option("--queries", metavar="FILE", help="A table of questions: parquet, csv or json lines.")
@click.option("--output", metavar="FILE", help="With --queries: where the answers go; parquet, csv or json.")
@click.option("--sizing", is_flag=True, help="What indexes cost in bytes: each 4 KiB, minute, second, batch.")
@click.option("--at", metavar="TIME", help="With --store: what happened then, from the table time_index.")
@click.option("--until", metavar="TIME", help="With --at: up to then.  [default: the minute of --at]")
@click.option("--refresh/--no-refresh", default=True, help="With --at: bring the table up to date first.")
@_shared
def lookup(**given: Any) -> None:
    """Find offsets by time, and positions by offset, in ARCHIVE or a generation of STORE, without a broker.

    TIME: milliseconds since 1970, ISO 8601 (UTC where it has no zone), earliest, latest, max-timestamp.
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
        raise UsageError(message="--queries and --output belong together")
    if given["at"] is not None and given["store"] is None:
        raise UsageError(message="--at needs --store STORE, which holds the table")
    if given["at"] is None and (given["archive"] is None) == (given["store"] is None):
        raise UsageError(message="lookup needs ARCHIVE or --store STORE, one of both")
    if given["isolation"] == "read_committed" and (given["sizing"] or given["at"] is not None):
        raise UsageError(message="--isolation belongs to --offset, --time and --queries")
    if given["at"] is None and (given["until"] is not None or not given["refresh"]):
        raise UsageError(message="--until and --no-refresh belong to --at")
    _run("lookup", LookupOptions, **given)


@lastkey.command("report")
@click.argument("archive")
@click.option("--output", metavar="FILE", required=True, help="The page: one HTML file that needs nothing else.")
@click.option("--store", metavar="STORE", help="What its generations hold now, and its history.")
@click.option("--cleanup-policy", type=click.Choice(["compact"]), help="Policy of the topics that --topics names.")
@click.option("--now", "now_ms", type=int, metavar="EPOCH_MS", help="The clock that decides ages, lags and horizons.")
@click.option("--hide-keys", is_flag=True, help="Show only hashes of keys.")
@_shared
def archive_report(now_ms: int | None, **given: Any) -> None:
    """Show what is in ARCHIVE, and what a compaction would save, as a page for a browser."""
    if given["cleanup_policy"] and given["topics"] is None:
        raise UsageError(message="--cleanup-policy compact needs --topics GLOB: it says which topics it is meant for")
    _run("report", ReportOptions, now_ms=check_now_ms(now_ms), **given)


def _key(context: click.Context, option: click.Parameter, value: str | None) -> bytes | None:
    """`key=TEXT` or `key=0x6162` as bytes."""
    if value is None:
        return None
    name, equals, key = value.partition("=")
    if name != "key" or not equals:
        raise UsageError(message=f"--filter: expected key=TEXT or key=0xHEX, found {value!r}")
    return parse_key(key)


@lastkey.command()
@click.argument("paths", nargs=-1)
@click.option("--files", metavar="LIST", default="", help="PATHS with commas between them, as kafka-dump-log has it.")
@click.option("--deep-iteration", is_flag=True, help="Records too, not batches alone.")
@click.option("--print-data-log", is_flag=True, help="Records with their keys and values.")
@click.option("--skip-record-metadata", is_flag=True, help="Of records the keys and values alone.")
@click.option("--max-bytes", type=click.IntRange(min=1), default=2**31 - 1, help="Only so many bytes of each .log.")
@click.option("--verify-index-only", is_flag=True, help="Indexes: say what contradicts the log, nothing else.")
@click.option("--index-sanity-check", is_flag=True, help="Indexes: only what a broker checks when it starts.")
@click.option("--key-decoder", metavar="NAME", help="Of keys: string, int, long, hex, ...  [default: string]")
@click.option("--value-decoder", metavar="NAME", help="Of values: string, json, long, hex, ...  [default: string]")
@click.option("--offsets-decoder", "records", flag_value="offsets", default="", help="Records of __consumer_offsets.")
@click.option("--transaction-log-decoder", "records", flag_value="transaction-log", help="Of __transaction_state.")
@click.option("--share-group-state-decoder", "records", flag_value="share-group-state", help="Of __share_group_state.")
@click.option("--cluster-metadata-decoder", "records", flag_value="cluster-metadata", help="Of __cluster_metadata.")
@click.option("--remote-log-metadata-decoder", "records", flag_value="remote-log-metadata", help="Of tiered storage.")
@click.option(
    "--filter", "key", metavar="key=KEY", callback=_key, help="Only records with this key; 0x6162: its bytes."
)
@click.option("--offsets", metavar="FROM..TO", help="Only records in this range of offsets; TO is not in it.")
@click.option("--times", metavar="FROM..TO", help="Only records of this time: epoch ms, or ISO 8601.")
@click.option("--output", metavar="DIR", help="An empty or absent folder: a text for each file, made in parallel.")
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
    """Show what is in log files, indexes and snapshots, as kafka-dump-log does. PATHS: files and folders."""
    paths = (*paths, *filter(None, files.split(",")))
    if not paths:
        raise UsageError(message="expected PATHS: files and folders")
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
    sys.stdout.buffer.flush()
    for lines in report.said:
        _say(lines, sys.stderr)
    if options.output is not None:
        _say(f"{json.dumps(report.to_json(), indent=2) if as_json else report.to_text()}\n", sys.stdout)
    raise click.exceptions.Exit(report.exit_code)


def _say(text: str, stream: TextIO) -> None:
    """Whole lines. On a terminal control characters are made visible, for names and keys come from the archive."""
    stream.write(visible(text) if stream.isatty() else text)
    stream.flush()


class _Log(logging.Handler):
    """The log on stderr, as `_say` writes text; a progress bar stays below it."""

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{self.format(record)}\n"
        above_the_bar(visible(text) if sys.stderr.isatty() else text)


def _lines_to_stdout() -> Callable[[Any], object]:
    """What writes lines of `inspect`, as bytes, as `_say` does."""
    write = sys.stdout.buffer.write
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
        _refuse_secrets(arguments)
        code = lastkey.main(list(arguments), prog_name=program, standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except JobError as error:
        return _fail(endings.of_job_error(error), as_json)
    except (UnknownRootError, SecretInUriError, UnsafeFolderError) as error:
        return _fail(endings.of_usage(str(error)), as_json)
    except click.NoSuchOption as error:
        return _fail(endings.of_usage(*_no_such_option(error)), as_json)
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


def _no_such_option(error: click.NoSuchOption) -> tuple[str, str]:
    """The message, and where help is: options of Spark stand before the job's name, those of a job behind it."""
    name, group = error.option_name, error.ctx is None or error.ctx.command is lastkey
    of_jobs = {opt for command in lastkey.commands.values() for option in command.params for opt in option.opts}
    if not group and name in OF_SPARK:
        job = error.ctx.command.name if error.ctx else "JOB"
        return f"{name} is an option of Spark: it goes before the job's name ({program} {name} ... {job} ...)", ""
    if group and name in of_jobs:
        return f"{name} is an option of a job: it goes behind the job's name ({program} JOB {name} ...)", ""
    if group:
        message = (
            f"no such option before the job's name: {name}{nearest(name, [*sorted(OF_SPARK), '--help', '--version'])}"
        )
        return message, ""
    return error.format_message(), f" (see {error.ctx.command_path} --help)" if error.ctx else ""


def _refuse_secrets(arguments: Sequence[str]) -> None:
    """Before anything, click's own errors too, can repeat a URI. A key that is looked for may be one."""
    for before, argument in itertools.pairwise(["", *arguments]):
        if before != "--filter" and not argument.startswith("--filter="):
            refuse_secrets(argument)


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
