"""Command line: parses options, runs one job, prints its report. No other module prints.

stdout holds the report, as text or, with --json, as one JSON object; all other output is on stderr.
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
from typing import Any, Final, NoReturn, TextIO

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from lastkey.jobs import installation
from lastkey.jobs.command import failures
from lastkey.jobs.command.declare import GROUPS, Value, declared_values
from lastkey.jobs.command.ending import Ending
from lastkey.jobs.command.failures import Failure
from lastkey.jobs.command.functions import COMMANDS, Command, imported, run_job
from lastkey.jobs.command.parse import check_text
from lastkey.jobs.command.progress import LogAboveTheBar, Progress, shown_progress
from lastkey.jobs.command.read_options import InspectOptions
from lastkey.jobs.command.reporting import WIDTH, JobReport
from lastkey.jobs.command.spark_options import without_effect
from lastkey.jobs.command.stopping import EarlyEndError, signals_handled, terminate
from lastkey.jobs.errors import DONE, JobError, UsageError
from lastkey.logformat.control_characters import visible, visible_bytes
from lastkey.logformat.storage.locations import refuse_secrets

_ALL: Final = "lastkey.help_all"  # in a context's meta: the help lists rare options too
_NO_BREAK: Final = "\xa0"  # a space at which click does not break a line; get_help shows it as any other
CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 120}


class _Word(click.ParamType[Any]):
    """Type of a declared option's word, which the declaration reads and the job's options check."""

    name = "word"

    def __init__(self, value: Value[Any, Any]) -> None:
        self.value = value

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the word as a Python program would give it. Raise UsageError."""
        return self.value.kind.from_text(self.value, value) if isinstance(value, str) else value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the choices, or leave it to the shell, which knows files and folders."""
        kind = self.value.kind
        if kind.completes:
            return [CompletionItem(incomplete, type=kind.completes)]
        return [CompletionItem(choice) for choice in kind.choices if choice.startswith(incomplete)]


def parameter(value: Value[Any, Any]) -> click.Parameter:
    """Return click's parameter for a declared option."""
    if value.argument:
        several = -1 if value.kind.repeats else 1
        shown = value.metavar + ("..." if value.kind.repeats else "")
        metavar = shown if value.required else f"[{shown}]"
        return click.Argument([value.name], type=_Word(value), required=value.required, nargs=several, metavar=metavar)
    names = [f"{value.flag}/--no-{value.flag[2:]}" if value.negative else value.flag, value.name]
    shown = f" [default:{_NO_BREAK}{value.shown_default.replace(' ', _NO_BREAK)}]" if value.shown_default else ""
    if value.kind.is_flag:
        return click.Option(names, is_flag=True, default=None, help=value.help + shown)
    return click.Option(
        names,
        type=_Word(value),
        required=value.required,
        multiple=value.kind.repeats,
        metavar=value.metavar or None,
        help=value.help + shown,
    )


def _show_all(context: click.Context, option: click.Parameter, asked: bool) -> None:
    shown = context.command.get_help_option(context)
    if asked and shown is not None and shown.callback is not None:
        context.meta[_ALL] = True
        shown.callback(context, option, asked)


class JobCommand(click.Command):
    """Command of a job, made from its declaration."""

    def __init__(self, name: str, command: Command) -> None:
        self.command = command
        help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show every option.",
        )
        params = [*map(parameter, command.values), help_all]
        super().__init__(name, params=params, help=command.doc.partition("\n\n")[0], context_settings=CONTEXT)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does. Raise UsageError if an option that may not be repeated was given twice."""
        if not ctx.resilient_parsing:  # not for completions
            _check_given_once(ctx, self.get_params(ctx), args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Run the job with what was given; the declaration has the defaults."""
        typed = {name for name in ctx.params if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE}
        _run(self.command, ctx, {name: ctx.params[name] for name in typed if ctx.params[name] != ()})

    def get_help(self, ctx: click.Context) -> str:
        """Return the help."""
        return super().get_help(ctx).replace(_NO_BREAK, " ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write options by group: the usual ones, or all of them; those of every command are in the program's help."""
        shown = [value for value in self.command.values if not value.common]
        usual = [value for value in shown if ctx.meta.get(_ALL) or not value.rare]
        params = {param.name: param for param in self.params}
        for group in GROUPS:
            rows = [_row(value, params[value.name], ctx) for value in usual if value.group == group]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)
        more = len(shown) - len(usual)
        formatter.write_paragraph()
        if more:
            formatter.write_text(f"--help-all shows every option, {more} more.")
        common = ", ".join(value.flag for value in self.command.values if value.common)
        root = ctx.find_root()
        formatter.write_text(f"Every command also takes {common}: see {root.command_path} --help.")


def _row(value: Value[Any, Any], param: click.Parameter, ctx: click.Context) -> tuple[str, str]:
    if isinstance(param, click.Argument):
        return param.make_metavar(ctx), value.help
    names, text = param.get_help_record(ctx) or ("", "")
    return names, text


class Jobs(click.Group):
    """Group of the jobs by name. common: a command whose common options the help lists."""

    common: Command | None = None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options of the program, those of every command, and the commands."""
        super().format_options(ctx, formatter)
        if self.common is not None:
            found = [value for value in self.common.values if value.common]
            with formatter.section("Options of every command, behind its name"):
                formatter.write_dl([_row(value, parameter(value), ctx) for value in found])

    def get_help(self, ctx: click.Context) -> str:
        """Return the help."""
        return super().get_help(ctx).replace(_NO_BREAK, " ")


class _EveryValue:
    """Wrapper of a parser of click's that makes it keep all values; for a switch the word that was typed."""

    def __init__(self, parser: Any) -> None:
        self.parser = parser

    def add_argument(self, **given: Any) -> None:
        """Add an argument as it is."""
        self.parser.add_argument(**given)

    def add_option(self, *, opts: Sequence[str], action: str, **given: Any) -> None:
        """Add an option."""
        if action.endswith("_const"):
            given["const"] = opts[0]
        self.parser.add_option(opts=opts, action=action.replace("store", "append"), **given)


def _check_given_once(ctx: click.Context, params: Sequence[click.Parameter], args: Sequence[str]) -> None:
    parser: Any = click.Command(None, add_help_option=False).make_parser(ctx)
    for param in params:
        param.add_to_parser(_EveryValue(parser), ctx)  # type: ignore[arg-type]
    given, _, _ = parser.parse_args(args=list(args))
    for option in params:
        values = given.get(option.name)
        if not isinstance(option, click.Option) or option.multiple or not values:
            continue
        if option.is_flag and len(set(values)) > 1:
            raise UsageError(message=f"{' contradicts '.join(dict.fromkeys(values))}: give only one of them")
        if not option.is_flag and len(values) > 1:
            raise UsageError(message=f"{option.opts[0]}: expected at most one, found {' and '.join(map(repr, values))}")


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
    """Write whole lines. On a terminal make control characters visible, because names and keys come from the archive.
    Also colour the labels of problems, errors and notes there, unless the variable NO_COLOR is set.
    """
    if stream.isatty():
        text = visible(text)
        if not os.environ.get("NO_COLOR"):
            text = _LABEL.sub(lambda label: click.style(label[0], fg=_COLOURS[label[1]], bold=True), text)
    with failures.writing() if stream is sys.stdout else nullcontext():
        stream.write(text)
        stream.flush()


def _write_lines(lines: Any) -> None:
    """Write lines of `inspect`, as bytes, as `_say` does."""
    with failures.writing():
        sys.stdout.buffer.write(visible_bytes(lines) if sys.stdout.isatty() else lines)


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
    _show(lambda progress: run_job(command.options.job, options, progress), **printing)


def _inspect(options: InspectOptions, *, progress: bool | None, quiet: bool, verbose: bool, as_json: bool) -> NoReturn:
    """Print files as lines, while they are read, and end with the exit code."""
    shown = shown_progress(progress, quiet=quiet, verbose=verbose)
    try:
        report = imported("inspect").run(options, shown, _write_lines)
    finally:
        shown.close()
    with failures.writing():
        sys.stdout.buffer.flush()
    notes = (f"note: {note}\n" for note in without_effect(spark_options, report.work))
    for lines in itertools.chain(report.messages, notes):
        _say(lines, sys.stderr)
    if options.output is not None:
        _say(f"{_text(report, as_json=as_json)}\n", sys.stdout)
    raise click.exceptions.Exit(report.exit_code)


@lastkey.group(cls=Jobs, context_settings=CONTEXT)
def audit() -> None:
    """Answer questions about keys: deliveries to groups, and places of keys.

    An audit reads new segments once, into the tables audit_* of a store (--audits), and answers from there.
    """


for _room in ("lastkey.jobs.api", "lastkey.jobs.api_store"):  # each declares its commands
    importlib.import_module(_room)
lastkey.common = COMMANDS["compact"]
for _name, _command in COMMANDS.items():
    _group, _, _kind = _name.rpartition(" ")
    (audit if _group else lastkey).add_command(JobCommand(_kind, _command))
for _each in (*lastkey.commands.values(), *audit.commands.values()):
    _each.short_help = (_each.help or "").partition("\n\n")[0].replace("\n", " ")  # else click cuts it


def main(arguments: Sequence[str]) -> int:
    """Run one command, and return its exit code. It alone handles signals, and writes to stdout."""
    signal.signal(signal.SIGTERM, terminate)
    ending = Ending()
    with signals_handled():
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
    except Exception as error:  # every other exception is a defect, reported only here
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
