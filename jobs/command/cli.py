"""Command line: parses options, runs one job, prints its report. Nothing else prints.

stdout holds the report, as text or, with --json, as one JSON object; everything else goes to stderr.
"""

from __future__ import annotations

import importlib
import itertools
import json
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, NoReturn, TextIO

import click

from lastkey.jobs import installation
from lastkey.jobs.command import failures
from lastkey.jobs.command.click_commands import CONTEXT, JobCommand, Jobs
from lastkey.jobs.command.declare import declared_values
from lastkey.jobs.command.ending import Ending
from lastkey.jobs.command.failures import Failure
from lastkey.jobs.command.functions import COMMANDS, Command, imported
from lastkey.jobs.command.parse import check_text
from lastkey.jobs.command.progress import LogAboveTheBar, Progress, shown_progress
from lastkey.jobs.command.read_options import InspectOptions
from lastkey.jobs.command.reporting import WIDTH, JobReport
from lastkey.jobs.command.spark_options import without_effect
from lastkey.jobs.command.stopping import EarlyEndError, signals_handled, terminate
from lastkey.jobs.errors import DONE, JobError
from lastkey.logformat.control_characters import visible, visible_bytes
from lastkey.logformat.storage.locations import refuse_secrets

EXIT_CODES = """
Exit codes: 0 done, or nothing was due; 1 a bug in Lastkey; 2 wrong option, setting or path; 3 uncleanable partitions,
or problems found; 4 conflict with another run; 5 environment (Java, jars, disk full, bucket not usable); 6 time was
over (--max-runtime), the rest is first next time; 130, 143 interrupted; 141 stdout closed early.
"""

COMPLETE = "_LASTKEY_COMPLETE"
_COLOURS = {"problem": "red", "error": "red", "note": "yellow"}
_LABEL = re.compile(r"^(problem|error|note):", re.MULTILINE)
program = "spark-submit.sh"  # as help calls it; `lastkey` where that was typed
spark_options: Sequence[str] = ()  # names of those that the user gave: typed, in PYSPARK_SUBMIT_ARGS, in files

_OF_KEYS = ("--key",)  # options with a key, which may look like a URI


def _version(context: click.Context, option: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        click.echo(f"lastkey, version {installation.version()}")
        context.exit()


@click.group(cls=Jobs, context_settings=CONTEXT, epilog=EXIT_CODES)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def lastkey() -> None:
    """Compact, verify and restore archived Apache Kafka logs on Spark.

    Options of Spark (--master, --conf, --driver-memory, ...) go before the job's name. ARCHIVE, STORE and DIR are
    paths or URIs.
    """


def _say(text: str, stream: TextIO) -> None:
    """Write whole lines. On a terminal make control characters visible, for names and keys come from the archive, and
    colour the labels of problems, errors and notes, unless the variable NO_COLOR is set.
    """
    if stream.isatty():
        text = visible(text)
        if not os.environ.get("NO_COLOR"):
            text = _LABEL.sub(lambda label: click.style(label[0], fg=_COLOURS[label[1]], bold=True), text)
    with failures.writing() if stream is sys.stdout else nullcontext():
        stream.write(text)
        stream.flush()


def _lines_to_stdout() -> Callable[[Any], object]:
    """Return a function that writes lines of `inspect`, as bytes, as `_say` does."""
    write = failures.written(sys.stdout.buffer.write)
    return (lambda lines: write(visible_bytes(lines))) if sys.stdout.isatty() else write


def _text(report: JobReport, *, as_json: bool) -> str:
    """Return a report as JSON, or as text that is wrapped for people alone: each line is one in a file or pipe."""
    return json.dumps(report.to_json(), indent=2) if as_json else report.to_text(WIDTH if sys.stdout.isatty() else 0)


def _show(
    run: Callable[[Progress], JobReport],
    *,
    as_json: bool,
    progress: bool | None,
    quiet: bool,
    verbose: bool,
    show_all: bool = False,
) -> None:
    """Print the report of a job, and end with its exit code."""
    click.get_current_context().ensure_object(Ending).check_metrics_file()
    shown = shown_progress(progress, quiet=quiet, verbose=verbose)
    try:
        report = run(shown)
    finally:
        shown.close()
    report.show_all = show_all
    report.notes += without_effect(spark_options, report.work)
    click.get_current_context().ensure_object(Ending).report = report
    text = _text(report, as_json=as_json)
    _say(f"{text}\n" if text else "", sys.stdout)
    _say("".join(f"{line}\n" for line in ([] if as_json else report.stderr_lines())), sys.stderr)
    raise click.exceptions.Exit(report.exit_code)


def _run(command: Command, context: click.Context, given: dict[str, Any]) -> None:
    """Run a declared job with the options that were typed, print its report, and end with its exit code."""
    printing: dict[str, Any] = {}
    for kind in command.printing:
        names = [value.name for value in declared_values(kind)]
        printing |= vars(kind(**{name: given.pop(name) for name in names if name in given}))
    options = command.options(**given)
    options.validate()
    ending = context.ensure_object(Ending)
    ending.context, ending.metrics_file, ending.notify = (
        context, printing.pop("metrics_file", None), printing.pop("notify", None)
    )  # fmt: skip
    if isinstance(options, InspectOptions):
        _inspect(replace(options, as_json=printing["as_json"]), **printing)
    _show(lambda progress: imported(command.options.job).run(options, progress), **printing)


def _inspect(options: InspectOptions, *, progress: bool | None, quiet: bool, verbose: bool, as_json: bool) -> NoReturn:
    """Print files as lines, while they are read, and end with the exit code."""
    shown = shown_progress(progress, quiet=quiet, verbose=verbose)
    try:
        report = imported("inspect").run(options, shown, _lines_to_stdout())
    finally:
        shown.close()
    failures.written(sys.stdout.buffer.flush)()
    notes = (f"note: {note}\n" for note in without_effect(spark_options, report.work))
    for lines in itertools.chain(report.messages, notes):
        _say(lines, sys.stderr)
    if options.output is not None:
        _say(f"{_text(report, as_json=as_json)}\n", sys.stdout)
    raise click.exceptions.Exit(report.exit_code)


@lastkey.group(cls=Jobs, context_settings=CONTEXT)
def audit() -> None:
    """Answer questions about keys: deliveries to groups, and places of keys.

    An audit reads new segments once, into the tables audit_* of a store (--audits); Spark answers from there.
    """


for _room in ("lastkey.jobs.api", "lastkey.jobs.api_store", "lastkey.jobs.api_audit"):  # each declares its commands
    importlib.import_module(_room)
lastkey.common = COMMANDS["compact"]
for _name, _command in COMMANDS.items():
    _group, _, _kind = _name.rpartition(" ")
    (audit if _group else lastkey).add_command(JobCommand(_kind, _command, _run))
for _each in (*lastkey.commands.values(), *audit.commands.values()):
    _each.short_help = (_each.help or "").partition("\n\n")[0].replace("\n", " ")  # else click cuts it


def main(arguments: Sequence[str]) -> int:
    """Run one command, and return its exit code. It alone handles signals, and writes to stdout."""
    signal.signal(signal.SIGTERM, terminate)
    with signals_handled():
        return _main(arguments)


def _main(arguments: Sequence[str]) -> int:
    ending = Ending()
    code = _run_command(arguments, ending)
    for note in ending.report_end(code):
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
        return _fail(failures.job_error_failure(error), as_json, ending)
    except click.NoSuchOption as error:
        return _fail(_no_such_option(error), as_json, ending)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        more = f" (see {context.command_path} --help)" if context else ""
        return _fail(failures.usage_failure(error.format_message(), more), as_json, ending)
    except (KeyboardInterrupt, click.Abort, EarlyEndError) as error:
        cause = error.__cause__ if isinstance(error, click.Abort) else None  # click replaces Ctrl-C's
        return _fail(failures.interruption_failure(cause or error), as_json, ending)
    except (BrokenPipeError, SystemExit):  # click raises the second for the first
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that the buffered rest of stdout is dropped
        return 128 + signal.SIGPIPE
    except Exception as error:  # the last resort, and the one place for it
        return _fail(failures.other_failure(error, arguments), as_json, ending)


def _no_such_option(error: click.NoSuchOption) -> Failure:
    context, jobs = error.ctx, lastkey.commands
    job = context.command.name if context is not None and context.command is not lastkey else None
    of_jobs = {opt for command in jobs.values() for option in command.params for opt in option.opts}
    misplaced = failures.misplaced(error.option_name, of_jobs, job, program)
    if misplaced is not None:
        return failures.job_error_failure(misplaced)
    return failures.usage_failure(error.format_message(), f" (see {program} {job} --help)")


def _check_words(arguments: Sequence[str]) -> None:
    """Raise PlaceError before any error, click's too, can repeat a secret."""
    for before, argument in itertools.pairwise(["", *arguments]):
        if before not in _OF_KEYS and not argument.startswith(tuple(f"{option}=" for option in _OF_KEYS)):
            refuse_secrets(argument)
    check_text(arguments)


def _fail(failure: Failure, as_json: bool, ending: Ending) -> int:
    ending.report, ending.error = failure.report, failure.line
    if failure.is_defect:
        _say(traceback.format_exc(), sys.stderr)
    if failure.report is not None and not as_json:
        _say(f"{_text(failure.report, as_json=False)}\n", sys.stdout)
    _say(f"error: {failure.line}\n", sys.stderr)
    if as_json:
        _say(f"{json.dumps(failure.to_json(), indent=2, default=str)}\n", sys.stdout)
    return failure.exit_code
