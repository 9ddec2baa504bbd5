"""Public functions that are commands: `command` makes one from the declaration of its options.

A job's module is imported when the job runs: help, and errors in options, come without Spark.
"""

from __future__ import annotations

import importlib
import inspect
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar, cast

from lastkey.jobs.command.declare import Value, declared_values
from lastkey.jobs.command.failures import raises_job_errors
from lastkey.jobs.command.option_groups import JobOptions, Printing
from lastkey.jobs.command.progress import Bar, Progress, Silent
from lastkey.jobs.command.stopping import at_once

P = ParamSpec("P")
R = TypeVar("R")
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]*\)")  # link in Markdown, which pages show
# command -> module with run(options, progress) -> Report
JOBS = {
    "compact": "lastkey.jobs.compact.job",
    "policies": "lastkey.jobs.policies.job",
    "verify": "lastkey.jobs.verify.job",
    "archive-needed": "lastkey.jobs.archive_needed.job",
    "reindex": "lastkey.jobs.reindex.job",
    "convert": "lastkey.jobs.convert.job",
    "merge": "lastkey.jobs.merge.job",
    "replay": "lastkey.jobs.replay",
    "export": "lastkey.jobs.export.job",
    "inspect": "lastkey.jobs.inspect_log",
    "lookup": "lastkey.jobs.lookup.job",
    "restore": "lastkey.jobs.restore.job",
    "rollback": "lastkey.jobs.rollback",
    "erase": "lastkey.jobs.erase.job",
    "runs": "lastkey.jobs.runs",
    "rebuild-state": "lastkey.jobs.rebuild_state",
    "vacuum": "lastkey.jobs.vacuum",
    "report": "lastkey.jobs.report.job",
    "audit keys": "lastkey.jobs.audit.keys",
    "audit delivery": "lastkey.jobs.audit.delivery",
    "audit mirror": "lastkey.jobs.audit.mirror_job",
    "audit failover": "lastkey.jobs.audit.failover_job",
    "pack": "lastkey.jobs.pack",
}


def imported(job: str) -> Any:
    """Import a job's module. In the command line's process Ctrl-C then ends the process."""
    with at_once():
        return importlib.import_module(JOBS[job])


def run_job(job: str, options: JobOptions, progress: Progress) -> Any:
    """Return the report of a job, with its total of seconds. `compact` sets the total itself, because the error of an
    early end holds its report.
    """
    module, began = imported(job), time.perf_counter()
    report = module.run(options, progress)
    if "total" not in report.seconds:
        report.seconds["total"] = time.perf_counter() - began
    return report


@dataclass(frozen=True)
class Command:
    """Command: what it does, its options, and those of the command line alone, which control its output."""

    options: type[JobOptions]
    printing: tuple[type, ...]
    doc: str
    function: Callable[..., Any]

    @property
    def values(self) -> list[Value[Any, Any]]:
        """Options and arguments of the command line."""
        found = [value for kind in (self.options, *self.printing) for value in declared_values(kind)]
        return [value for value in found if value.on_command_line]


COMMANDS: Final[dict[str, Command]] = {}  # by name, in the order of the help


def command(options: Callable[P, JobOptions], *printing: type) -> Callable[[Callable[[], R]], Callable[P, R]]:
    """Make a function that runs a job from one that has its name, its documentation and the type of its report. Its
    name is that of the command, too.

    options: the class of the job's options, which are the function's parameters. printing: declarations that the
    command line has in addition to those of every command.
    """
    kind = cast("type[JobOptions]", options)

    def made(stub: Callable[[], R]) -> Callable[P, R]:
        job = kind.job = stub.__name__.replace("audit_", "audit ").replace("_", "-")
        signature = inspect.signature(kind).replace(return_annotation=inspect.signature(stub).return_annotation)

        def run(*args: P.args, **given: P.kwargs) -> R:
            try:
                signature.bind(*args, **given)
            except TypeError as error:
                raise TypeError(f"{stub.__name__}() {error}") from None
            asked = options(*args, **given)
            asked.validate()
            if not isinstance(asked.progress, bool):
                return cast("R", run_job(job, asked, asked.progress))
            with closing(Bar() if asked.progress else Silent()) as shown:
                return cast("R", run_job(job, asked, shown))

        doc = inspect.cleandoc(stub.__doc__ or "")
        run.__name__, run.__qualname__, run.__module__ = stub.__name__, stub.__name__, stub.__module__
        plain = _LINK.sub(r"\1", doc)  # the text of links alone
        run.__doc__ = f"{plain}\n\nParameters:\n{_parameters(kind)}"
        run.__signature__ = signature  # type: ignore[attr-defined]  # what inspect looks for
        function = raises_job_errors(run)
        COMMANDS[job] = Command(kind, (*printing, Printing), doc, function)
        return function

    return made


def _parameters(kind: type[JobOptions]) -> str:
    """Return a line for each parameter, with its default."""
    shown = [
        f"    {value.name}: {value.help}" + (f" Default: {value.shown_default}." if value.shown_default else "")
        for value in declared_values(kind)
    ]
    return "\n".join(shown)
