"""`lastkey.audit(kind, ...)`: the commands of `audit` as one function, by their own parser.

import lastkey

report = lastkey.audit("keys", "archive", audits="work/audits", topics="orders")
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Final

from lastkey.jobs.api import Settings, settings_of
from lastkey.jobs.command.audit_commands import audit_call
from lastkey.jobs.command.failures import raises_job_errors
from lastkey.jobs.command.parse import check_location, wrong_type
from lastkey.jobs.command.progress import Bar, Progress, Silent
from lastkey.jobs.errors import UsageError

if TYPE_CHECKING:
    from lastkey.jobs.audit.report import AuditReport

# Without a value these change nothing; others then take all
_ADD: Final = ("--exclude", "--partition-count", "--rename")


@raises_job_errors
def audit(
    kind: str,
    *places: str | os.PathLike[str],
    config: Settings | None = None,
    progress: Progress | bool = False,
    **options: object,
) -> AuditReport:
    """Run an audit and return its report, which displays itself in a notebook.

    kind: "keys", "delivery", "mirror" or "failover". places: the command's
    arguments, such as the archive. options: the command's long options with underscores; one that may be repeated takes
    several values, a switch True; None leaves it out, an empty list is refused. config: settings, as of `compact`;
    progress: True shows a bar on stderr.

    Raises a JobError if the job stops, and TypeError for an argument of another type. What is found is in the report.
    """
    argv = [kind, *(check_location("places", place) for place in places)]
    for name, value in options.items():
        argv += _words(f"--{name.replace('_', '-')}", value)
    call = audit_call(argv, settings_of(config))
    if not isinstance(progress, bool):
        return call(progress)  # type: ignore[no-any-return]
    with closing(Bar() if progress else Silent()) as shown:
        return call(shown)  # type: ignore[no-any-return]


def _words(option: str, value: object) -> list[str]:
    """Return an option as the command line has it."""
    if value is None or value is False:
        return []
    if value is True:
        return [option]
    if isinstance(value, str | int | float | os.PathLike):
        return [option, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        words = [word for one in value for word in _words(option, one)]
        if not words and option not in _ADD:
            raise UsageError(message=f"{option}: expected at least one value, found none; leave it out to take all")
        return words
    raise wrong_type(option, "text, a number, True, or several of them", value)
