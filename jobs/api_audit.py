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
    """Show what ARCHIVE, or a generation of STORE, holds of each key.

    For each key of each partition: last offset and time, tombstone or value, number of versions, bytes of all versions
    and of the last; keys that the default partitioner (murmur2) would have put into another partition; and keys in
    several partitions. The table `audit_keys` has a row for each key.

    Kafka's own topics (`__*`) are left out without `--topics`. The exit code is 3 if a place could not be read, or if
    the audit has findings. [Audits](/reference/audits.md) explains the tables. Audits need Spark: `--engine threads`
    fails.
    """
    raise NotImplementedError


@command(AuditDeliveryOptions)
def audit_delivery() -> AuditReport:
    """Show the versions of each key of ARCHIVE, or of a generation of STORE, that groups received, and their lag.

    For each group and key: the delivered offset; whether the last update was delivered; the lag in versions, offsets
    and time; for each group and topic the percentiles of these lags, and the keys that have waited longest; and the
    figures of earlier audits of the same source. Offsets that groups have committed come from `__consumer_offsets` and
    `__share_group_state` in the source, or from a table of deliveries by key. The table `audit_deliveries` has a row
    for each key and group ([Deliveries](/reference/audits.md#deliveries)).
    """
    raise NotImplementedError


@command(AuditMirrorOptions)
def audit_mirror() -> AuditReport:
    """Compare B with A, whose copy it is, key by key.

    B may be MirrorMaker's copy, a restored log directory or a generation. A and B are archives, or `STORE@GENERATION`
    or `STORE@current`. The audit finds keys that are missing, stale, different, extra, ahead or in another order in B,
    and the same of records without a key; offsets may differ ([Mirrors](/reference/audits.md#mirrors)). The table
    `audit_pairs` has a row for each finding. A topic of A that B lacks is missing; topics that only B has are named and
    not compared. Topics that MirrorMaker and Connect keep for themselves (`*.internal`, `*-internal`) are left out,
    unless `--topics` names them.
    """
    raise NotImplementedError


@command(AuditFailoverOptions)
def audit_failover() -> AuditReport:
    """Find the offsets of B at which a group that read A loses nothing.

    For each partition: the offset of B at which the group continues, the records that it then reads again, in records
    and milliseconds, and the records that are lost because the mirror has no copy of them (exit code 3). A and B are
    named as for `audit mirror`. The table `audit_pairs` has a row for each partition, and for each lost record
    ([Failing over](/reference/audits.md#failing-over)).

    If B holds topics of MirrorMaker 2, `*.checkpoints.internal`, `mirror_maker` compares its last checkpoint of the
    group with each answer: `confirms`; `skips`, with the number of offsets of B from the answer on that a consumer
    would skip (records of others, or lost ones); or `open`, if the answer is by time or the start of B.
    """
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
