"""Options of several jobs, or of every one, and the rule for an option that is given twice.

click silently takes the last value, so a command would do half of its task without a word. Here an option that may be
repeated says so in its help, and repeating any other is an error. A switch may be repeated, but not contradicted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from lastkey.jobs import installation
from lastkey.jobs.command.config import ENGINES, GAPS, NULL_KEYS, Engine
from lastkey.jobs.command.options import KEY_FORMATS
from lastkey.jobs.command.parse import parse_globs
from lastkey.jobs.errors import UsageError
from lastkey.jobs.topics import TopicFilter

Command = TypeVar("Command", bound=Callable[..., Any])


class _JobCommand(click.Command):
    """Command of a job."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse as click does. Raise UsageError if an option that may not be repeated was given twice."""
        if not ctx.resilient_parsing:  # of completions
            _check_given_once(ctx, self.get_params(ctx), args)
        return super().parse_args(ctx, args)


class Jobs(click.Group):
    """Group of the jobs by name."""

    command_class = _JobCommand


def globs_option(name: str, *, help: str) -> Callable[[Command], Command]:  # noqa: A002 - click's name
    """Return an option that names topics as --topics does; if it is not given, the command gets None."""

    def parsed(_context: click.Context, _option: click.Parameter, given: Sequence[str]) -> TopicFilter | None:
        return TopicFilter(parse_globs(name, given)) if given else None

    return click.option(name, metavar="GLOB", multiple=True, callback=parsed, help=f"{help} Repeatable.")


gaps_option = click.option(
    "--gaps", type=click.Choice(GAPS), help="What to do about offsets in no segment.  [default: fail]"
)


def planning_options(command: Command) -> Command:
    """Add the options of the jobs that plan a compaction."""
    clock = "Clock for lags and horizons.  [default: now]"
    policy = "Policy of the topics that --topics matches."
    command = click.option("--now", "now_ms", type=int, metavar="EPOCH_MS", help=clock)(command)
    return click.option("--cleanup-policy", type=click.Choice(["compact"]), help=policy)(command)


def sealed_option(verb: str) -> Callable[[Command], Command]:
    """Return the option that ends an archive; verb: what the job does to its segments."""
    return click.option(
        "--sealed", is_flag=True, help=f"Nothing appends to this archive any more: {verb} the last segment too."
    )


def compaction_options(command: Command) -> Command:
    """Add the options that decide what a compaction does, and which segments one by yield chooses."""
    share = "By yield: rewrite only segments of which this share is dead.  [default: the setting]"
    budget = "By yield: bytes that rewrites of older segments may read and write.  [default: no limit]"
    nulls = "What to do with null keys.  [default: fail]"
    options = (
        click.option("--io-budget", type=click.IntRange(min=0), metavar="BYTES", help=budget),
        click.option("--min-yield", type=click.FloatRange(0, 1), metavar="SHARE", help=share),
        sealed_option("clean"),
        gaps_option,
        click.option("--null-keys", type=click.Choice(NULL_KEYS), help=nulls),
        planning_options,
    )
    return functools.reduce(lambda made, option: option(made), options, command)


def engine_option(default: Engine) -> Callable[[Command], Command]:
    """Return the option that says who does the work."""
    what = {"spark": "Spark", "auto": "Spark on a cluster or for many bytes, else threads"}[default]
    return click.option(
        "--engine",
        type=click.Choice(ENGINES),
        help=f"Who does the work: Spark, or threads of one process.  [default: {what}]",
    )


def audited_options(command: Command) -> Command:
    """Add what an audit of one archive or store takes."""
    options = (
        click.option("--archive", "archive_moved", metavar="URI", help="With --store: where the archive is now."),
        click.option("--generation", type=click.IntRange(min=1), help="With --store.  [default: the current one]"),
        click.option("--store", metavar="STORE", help="Audit a generation of this store instead of an archive."),
        click.argument("archive", required=False),
    )
    return functools.reduce(lambda made, option: option(made), options, command)


def audit_options(command: Command) -> Command:
    """Add the options of every kind of audit."""
    where = "The store whose tables audit_* hold what was read.  [default: STORE]"
    options = (
        engine_option("spark"),
        click.option(
            "--most", type=click.IntRange(min=0), default=20, show_default=True, help="Rows of a table of the report."
        ),
        click.option("--hide-keys", is_flag=True, help="Keep and show only hashes of keys."),
        gaps_option,
        click.option("--audits", metavar="STORE", help=where),
    )
    return functools.reduce(lambda made, option: option(made), options, shared(command))


def talking(command: Command) -> Command:
    """Add the options of every command: what it says, and how."""
    options = (
        click.option("--verbose", is_flag=True, help="Say on stderr what is being done, and how long each step took."),
        click.option("--quiet", is_flag=True, help="Write nothing to stderr but errors and warnings."),
        click.option(
            "--progress/--no-progress",
            default=None,
            help="A progress bar on stderr, or nothing.  [default: a bar on a terminal, else a line a minute]",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the report, or the error, as one JSON object."),
    )
    return functools.reduce(lambda made, option: option(made), options, command)


def shared(command: Command) -> Command:
    """Add the options of every job."""
    options = (
        click.option(
            "--config",
            type=click.Path(),  # shells complete its name
            metavar="FILE",
            help=f"Read settings from this TOML file (see {installation.SETTINGS}).  [default: Kafka's]",
        ),
        click.option(
            "--topics-from",
            type=click.Path(),
            metavar="FILE",
            multiple=True,
            help="Take the topics that this file names too, a GLOB a line.",
        ),
        click.option(
            "--exclude",
            metavar="GLOB",
            multiple=True,
            help="Leave out the topics that match. A,B: several; repeatable.",
        ),
        click.option(
            "--topics", metavar="GLOB", multiple=True, help="Take only the topics that match. A,B: several; repeatable."
        ),
    )
    return functools.reduce(lambda made, option: option(made), options, talking(command))


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


command_config_option = click.option(
    "--command-config", metavar="FILE", help="Properties of the connection, as Kafka's tools take them."
)
key_format_option = click.option(
    "--key-format", type=click.Choice(KEY_FORMATS), default="text", show_default=True, help="How keys are written."
)


proof_option = click.option("--proof", metavar="FILE", help="Write a proof to this new file, as JSON.")
