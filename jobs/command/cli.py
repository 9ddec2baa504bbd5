"""Command line: parses options, runs one job, prints its report. Nothing else prints.

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
from contextlib import nullcontext, suppress
from typing import Any, TextIO

import click

from lastkey.jobs import installation
from lastkey.jobs.command import failures
from lastkey.jobs.command.audit_commands import audit_group, made_options
from lastkey.jobs.command.config import load_config
from lastkey.jobs.command.ending import Ending, monitoring_options
from lastkey.jobs.command.erase_commands import add_erase
from lastkey.jobs.command.export_commands import add_export
from lastkey.jobs.command.failures import Failure
from lastkey.jobs.command.format_commands import add_convert
from lastkey.jobs.command.job_modules import imported
from lastkey.jobs.command.keep_commands import add_keeping
from lastkey.jobs.command.options import (
    InspectOptions,
    PackOptions,
    RebuildStateOptions,
    RollbackOptions,
    RunsOptions,
)
from lastkey.jobs.command.parse import check_text, parse_filter, parse_span, parse_time, parse_topics
from lastkey.jobs.command.policy_commands import add_policies
from lastkey.jobs.command.progress import LogAboveTheBar, Progress, shown_progress
from lastkey.jobs.command.read_commands import add_reading
from lastkey.jobs.command.reporting import Report
from lastkey.jobs.command.shared_options import (
    Jobs,
    compaction_options,
    engine_option,
    gaps_option,
    sealed_option,
    shared,
    talking,
)
from lastkey.jobs.command.spark_options import without_effect
from lastkey.jobs.command.stopping import EarlyEndError, signals_handled, terminate
from lastkey.jobs.errors import DONE, JobError, UsageError
from lastkey.logformat.control_characters import visible, visible_bytes
from lastkey.logformat.storage.locations import refuse_secrets

EXIT_CODES = """
Exit codes: 0 done, or nothing was due; 1 a bug in Lastkey; 2 wrong option, setting or path; 3 partitions set aside, or
problems found; 4 conflict with another run; 5 environment (Java, jars, disk full, bucket not usable); 6 time was over
(--max-runtime), the rest is first next time; 130, 143 interrupted; 141 stdout closed early.
"""

COMPLETE = "_LASTKEY_COMPLETE"
program = "spark-submit.sh"  # as help calls it; `lastkey` where that was typed
spark_options: Sequence[str] = ()  # names of those that the user gave: typed, in PYSPARK_SUBMIT_ARGS, in files

_OF_KEYS = ("--filter", "--key")  # options with a key, which may look like a URI


def _version(context: click.Context, option: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        click.echo(f"lastkey, version {installation.version()}")
        context.exit()


@click.group(
    cls=Jobs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120}, epilog=EXIT_CODES
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def lastkey() -> None:
    """Compact, verify and restore archived Apache Kafka logs on Spark.

    Options of Spark (--master, --conf, --driver-memory, ...) go before the job's name. ARCHIVE, STORE and DIR are
    paths or URIs.
    """


limit_option = click.option(
    "--max-bytes-per-second",
    type=click.IntRange(min=1),
    metavar="BYTES",
    help="Read and write at most so much, all tasks together.",
)


@lastkey.command()
@click.argument("archive")
@click.option("--store", metavar="STORE", required=True, help="Where state and new segments go.")
@compaction_options
@click.option("--force", is_flag=True, help="Compact every partition from its log start, due or not.")
@click.option(
    "--reset",
    metavar="GLOB",
    multiple=True,
    help="Start these topics over where a partition diverged or has a gap. Repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done; write nothing.")
@click.option("--wait", is_flag=True, help="Wait for another run that works on the same partitions.")
@click.option("--max-runtime", metavar="DURATION", help="Then stop, and commit what is finished: 90s, 30m, 1h30m.")
@limit_option
@click.option("--hmac-key", metavar="FILE", help="With --reset, after an erasure: the file that erase was given.")
@click.option("--all", "show_all", is_flag=True, help="Also list partitions that are not due, each with its reason.")
@engine_option("spark")
@monitoring_options
@shared
def compact(**given: Any) -> None:
    """Keep the last record of every key and drop the rest, as the broker's own cleaner does."""
    _call("compact", **given)


@lastkey.command()
@click.argument("archive", required=False)
@click.option("--store", metavar="STORE", help="Check a generation of this store instead of an archive.")
@click.option("--generation", type=click.IntRange(min=1), help="With --store.  [default: the current one]")
@click.option("--archive", "archive_moved", metavar="URI", help="With --store: where the archive is now.")
@gaps_option
@sealed_option("check")
@click.option("--all", "show_all", is_flag=True, help="Also list partitions without a problem, however many.")
@engine_option("auto")
@monitoring_options
@shared
def verify(**given: Any) -> None:
    """Check ARCHIVE, or a generation of STORE, and list every problem."""
    _call("verify", **given)


@lastkey.command()
@click.argument("archive")
@click.option("--check", is_flag=True, help="Show what is wrong; write nothing.")
@click.option("--output", metavar="DIR", help="Write the rebuilt files to this new or empty folder.")
@click.option("--in-place", is_flag=True, help="Replace wrong files in the archive, one by one; never a .log.")
@click.option("--partitions", metavar="N,N-M", help="Only partitions with these numbers.")
@click.option("--skip-crc", is_flag=True, help="Trust the logs: read only batch headers.")
@click.option("--exact", is_flag=True, help="With --in-place: also replace right files that differ from Kafka's bytes.")
@click.option("--all", "show_all", is_flag=True, help="Also list partitions whose files are the same, however many.")
@engine_option("spark")
@monitoring_options
@shared
def reindex(**given: Any) -> None:
    """Rebuild the index files of ARCHIVE from its logs, and show what was wrong with them."""
    _call("reindex", **given)


@lastkey.command()
@click.option("--store", metavar="STORE", required=True, help="The store to restore from.")
@click.option("--output", metavar="DIR", required=True, help="A new or empty folder, which becomes a log directory.")
@click.option("--generation", type=click.IntRange(min=1), help="Restore this one.  [default: the current one]")
@click.option("--as-of", metavar="TIME", help="Restore what was current then: ISO 8601 (UTC), or ms since 1970.")
@click.option("--archive", metavar="URI", help="Where the archive is now, if it has moved.")
@click.option("--full-clean", is_flag=True, help="First clean what a broker would clean again, in a run of compact.")
@limit_option
@monitoring_options
@shared
def restore(**given: Any) -> None:
    """Copy a generation into a log directory that a broker starts on."""
    _call("restore", **given)


@lastkey.command()
@click.option("--store", metavar="STORE", required=True, help="The store to look at.")
@click.option("--since", metavar="TIME", help="Only runs that started at this time or later.")
@click.option(
    "--format",
    type=click.Choice(["text", "openmetrics"]),
    default="text",
    show_default=True,
    help="openmetrics: metrics of the newest run of each job.",
)
@shared
def runs(since: str | None, **given: Any) -> None:
    """List what was done to STORE: every run, what came of it, and what it saved."""
    _run("runs", RunsOptions, since_ms=None if since is None else parse_time(since), **given)


@lastkey.command()
@click.option("--store", metavar="STORE", required=True, help="The store to change.")
@click.option("--generation", type=click.IntRange(min=1), required=True, help="Make this generation current.")
@click.option("--dry-run", is_flag=True, help="Show what would be done; write nothing.")
@shared
def rollback(**given: Any) -> None:
    """Make an older generation of STORE the current one."""
    _run("rollback", RollbackOptions, **given)


@lastkey.command("rebuild-state")
@click.option("--store", metavar="STORE", required=True, help="The store that has lost its tables.")
@click.option("--choose", metavar="TOPIC-N=RUN_ID", multiple=True, help="Which run counts; none: leave it out.")
@click.option("--dry-run", is_flag=True, help="Show what would be restored, even if there are tables.")
@shared
def rebuild_state(**given: Any) -> None:
    """Restore the lost tables of STORE (its folder state) from the manifests of its generations."""
    _run("rebuild-state", RebuildStateOptions, **given)


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
@gaps_option
@click.option("--output", metavar="DIR", help="Write a text for each file to this new or empty folder, in parallel.")
@engine_option("auto")
@shared
def inspect(
    paths: tuple[str, ...],
    files: str,
    offsets: str | None,
    times: str | None,
    config: str | None,
    topics: tuple[str, ...],
    exclude: tuple[str, ...],
    topics_from: tuple[str, ...],
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
        topics=parse_topics(topics, exclude, topics_from),
        start_offset=start,
        end_offset=end,
        start_ms=start_ms,
        end_ms=end_ms,
        as_json=as_json,
        **given,
    )
    shown = shown_progress(progress, quiet=quiet, verbose=verbose)
    try:
        report = imported("inspect").run(options, shown, _lines_to_stdout())
    finally:
        shown.close()
    failures.written(sys.stdout.buffer.flush)()
    notes = (f"note: {note}\n" for note in without_effect(spark_options, report.work))
    for lines in itertools.chain(report.said, notes):
        _say(lines, sys.stderr)
    if options.output is not None:
        _say(f"{json.dumps(report.to_json(), indent=2) if as_json else report.to_text()}\n", sys.stdout)
    raise click.exceptions.Exit(report.exit_code)


@lastkey.command()
@click.argument("output")
@click.option("--driver", is_flag=True, help="Pack also what a driver needs that runs by the pack.")
@click.option("--replace", is_flag=True, help="Write OUTPUT even if there is a file of this name.")
@talking
def pack(output: str, driver: bool, replace: bool, **given: Any) -> None:
    """Pack what a cluster's executors need into OUTPUT, for Spark's --archives OUTPUT#lastkey."""
    _show(lambda progress, _: imported("pack").run(PackOptions(output, driver, replace), progress), **given)


def _say(text: str, stream: TextIO) -> None:
    """Write whole lines. Make control characters visible on a terminal, for names and keys come from the archive."""
    with failures.writing() if stream is sys.stdout else nullcontext():
        stream.write(visible(text) if stream.isatty() else text)
        stream.flush()


def _lines_to_stdout() -> Callable[[Any], object]:
    """Return a function that writes lines of `inspect`, as bytes, as `_say` does."""
    write = failures.written(sys.stdout.buffer.write)
    return (lambda lines: write(visible_bytes(lines))) if sys.stdout.isatty() else write


def _call(job: str, *, config: str | None, **given: Any) -> None:
    """Run a job through the function that Python programs call, with the options that it shares with them."""
    given["config"] = load_config(config)
    given |= {name: given[name] or None for name in ("topics", "topics_from")}  # click's word for "not given" is ()
    api = importlib.import_module("lastkey.jobs.api")
    _show(lambda progress, options: getattr(api, job)(**options, progress=progress), **given)


def _run(
    job: str,
    kind: type[Any],
    *,
    config: str | None,
    as_json: bool,
    progress: bool | None,
    quiet: bool,
    verbose: bool,
    show_all: bool = False,
    **given: Any,
) -> None:
    """Run a job that only the command line has."""
    options = made_options(kind, load_config(config), **given)
    _show(
        lambda progress, _: imported(job).run(options, progress),
        as_json=as_json,
        progress=progress,
        quiet=quiet,
        verbose=verbose,
        show_all=show_all,
    )


def _show(
    run: Callable[[Progress, dict[str, Any]], Report],
    *,
    as_json: bool,
    progress: bool | None,
    quiet: bool,
    verbose: bool,
    show_all: bool = False,
    **options: Any,
) -> None:
    """Print the report of a job, and end with its exit code."""
    click.get_current_context().ensure_object(Ending).check_metrics_file()
    shown = shown_progress(progress, quiet=quiet, verbose=verbose)
    try:
        report = run(shown, options)
    finally:
        shown.close()
    report.show_all = show_all
    report.notes += without_effect(spark_options, report.work)
    click.get_current_context().ensure_object(Ending).report = report
    text = json.dumps(report.to_json(), indent=2) if as_json else report.to_text()
    _say(f"{text}\n" if text else "", sys.stdout)
    _say("".join(f"{line}\n" for line in ([] if as_json else report.aside())), sys.stderr)
    raise click.exceptions.Exit(report.exit_code)


_audit = audit_group(_run)
lastkey.add_command(_audit)
add_convert(lastkey, _run)
add_reading(lastkey, _run)
add_keeping(lastkey, _run)
add_erase(lastkey, _run)
add_policies(lastkey, _run)
add_export(lastkey, _run)
for _command in (*lastkey.commands.values(), *_audit.commands.values()):
    _command.short_help = (_command.help or "").partition("\n\n")[0].replace("\n", " ")  # else click cuts it


def main(arguments: Sequence[str]) -> int:
    """Run one command, and return its exit code. It alone handles signals, and writes to stdout."""
    signal.signal(signal.SIGTERM, terminate)
    with signals_handled():
        return _main(arguments)


def _main(arguments: Sequence[str]) -> int:
    ending = Ending()
    code = _run_command(arguments, ending)
    for note in ending.tell(code):
        with suppress(OSError):  # stderr may be closed
            _say(f"note: {note}\n", sys.stderr)
    return code


def _run_command(arguments: Sequence[str], ending: Ending) -> int:
    """Run one command, and return its exit code. `ending` gets its report or its error."""
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(LogAboveTheBar())  # tracebacks of defects too; loggers have levels, it has none
    as_json = "--json" in arguments
    if os.environ.get(COMPLETE):  # a shell asks for completions; click answers and ends
        return lastkey.main(list(arguments), prog_name=program, complete_var=COMPLETE, standalone_mode=False) or DONE
    try:
        _check_words(arguments)
        code = lastkey.main(list(arguments), prog_name=program, standalone_mode=False, obj=ending)
        sys.stdout.flush()
        return code if isinstance(code, int) else DONE
    except JobError as error:
        return _fail(failures.of_job_error(error), as_json, ending)
    except click.NoSuchOption as error:
        return _fail(_no_such_option(error), as_json, ending)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        more = f" (see {context.command_path} --help)" if context else ""
        return _fail(failures.of_usage(error.format_message(), more), as_json, ending)
    except (KeyboardInterrupt, click.Abort, EarlyEndError) as error:
        cause = error.__cause__ if isinstance(error, click.Abort) else None  # click replaces Ctrl-C's
        return _fail(failures.of_interruption(cause or error), as_json, ending)
    except (BrokenPipeError, SystemExit):  # click raises the second for the first
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that nobody gets what stdout still buffers
        return 128 + signal.SIGPIPE
    except Exception as error:  # the last resort, and the one place for it
        return _fail(failures.of_other(error, arguments), as_json, ending)


def _no_such_option(error: click.NoSuchOption) -> Failure:
    context, jobs = error.ctx, lastkey.commands
    job = context.command.name if context is not None and context.command is not lastkey else None
    of_jobs = {opt for command in jobs.values() for option in command.params for opt in option.opts}
    misplaced = failures.misplaced(error.option_name, of_jobs, job, program)
    if misplaced is not None:
        return failures.of_job_error(misplaced)
    return failures.of_usage(error.format_message(), f" (see {program} {job} --help)")


def _check_words(arguments: Sequence[str]) -> None:
    """Raise SecretInUriError before any error, click's too, can repeat a secret."""
    for before, argument in itertools.pairwise(["", *arguments]):
        if before not in _OF_KEYS and not argument.startswith(tuple(f"{option}=" for option in _OF_KEYS)):
            refuse_secrets(argument)
    check_text(arguments)


def _fail(failure: Failure, as_json: bool, ending: Ending) -> int:
    ending.report, ending.error = failure.report, failure.line
    if failure.is_defect:
        _say(traceback.format_exc(), sys.stderr)
    if failure.report is not None and not as_json:
        _say(f"{failure.report.to_text()}\n", sys.stdout)
    _say(f"error: {failure.line}\n", sys.stderr)
    if as_json:
        _say(f"{json.dumps(failure.to_json(), indent=2, default=str)}\n", sys.stdout)
    return failure.exit_code
