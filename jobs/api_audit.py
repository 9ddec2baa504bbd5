"""`lastkey.audit(kind, ...)`: the commands of `audit` as one function.

import lastkey

report = lastkey.audit("keys", "archive", audits="work/audits", topics="orders")
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from lastkey.jobs.command.audit_options import (
    AuditDeliveryOptions,
    AuditFailoverOptions,
    AuditKeysOptions,
    AuditMirrorOptions,
)
from lastkey.jobs.command.config import Settings
from lastkey.jobs.command.functions import COMMANDS, command
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.errors import UsageError

if TYPE_CHECKING:
    from lastkey.jobs.audit.report import AuditReport


@command(AuditKeysOptions)
def audit_keys() -> AuditReport:
    """Show what ARCHIVE, or a generation of STORE, holds of each key."""
    raise NotImplementedError


@command(AuditDeliveryOptions)
def audit_delivery() -> AuditReport:
    """Show what groups have been delivered of each key of ARCHIVE, or of a generation of STORE, and their lag."""
    raise NotImplementedError


@command(AuditMirrorOptions)
def audit_mirror() -> AuditReport:
    """Compare B with A, whose copy it is, key by key."""
    raise NotImplementedError


@command(AuditFailoverOptions)
def audit_failover() -> AuditReport:
    """Find the offsets of B at which a group that read A loses nothing."""
    raise NotImplementedError


def audit(
    kind: str,
    *places: str | os.PathLike[str],
    config: Settings | None = None,
    progress: Progress | bool = False,
    **options: object,
) -> AuditReport:
    """Run an audit and return its report, which displays itself in a notebook.

    kind: "keys", "delivery", "mirror" or "failover". places: the command's arguments, such as the archive. options: the
    command's long options with underscores; one that may be repeated takes several values, a switch True; None leaves
    it out. config: settings, as of `compact`; progress: True shows a bar on stderr.

    Raises a JobError if the job stops, and TypeError for an argument of another type. What is found is in the report.
    """
    kinds = {name.removeprefix("audit "): found for name, found in COMMANDS.items() if name.startswith("audit ")}
    if kind not in kinds:
        raise UsageError(message=f"audit: expected {' or '.join(kinds)}, found {kind!r}")
    names = {value.flag[2:].replace("-", "_"): value.name for value in kinds[kind].values if not value.argument}
    given = {names.get(name, name): value for name, value in options.items() if value is not None}
    report = kinds[kind].function(*places, config=config, progress=progress, **given)
    return cast("AuditReport", report)
