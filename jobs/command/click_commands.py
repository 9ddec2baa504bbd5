"""Click commands made from declarations: options with their completion, help in groups, options given twice.

click silently takes the last value of a repeated option, so a command would do only a part of its task. Here an option
that may be repeated says so in its help, and repeating any other is an error. A switch may be repeated, but not
contradicted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from lastkey.jobs.command.declare import GROUPS, Value
from lastkey.jobs.command.functions import Command
from lastkey.jobs.errors import UsageError

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
    """Command of a job, made from its declaration. run: gets the command, the context, and the given values."""

    def __init__(
        self, name: str, command: Command, run: Callable[[Command, click.Context, dict[str, Any]], None]
    ) -> None:
        self.command, self.run = command, run
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
        self.run(self.command, ctx, {name: ctx.params[name] for name in typed if ctx.params[name] != ()})

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
