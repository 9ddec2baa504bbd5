"""`audit failover A B --group G`: the offsets at which a group that read A continues in its copy B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from lastkey.jobs.audit.audit import Audit
from lastkey.jobs.audit.coordinators import committed_in, list_coordinators
from lastkey.jobs.audit.go_on import GoOn, go_on
from lastkey.jobs.audit.offset_files import encode_offsets, read_offsets
from lastkey.jobs.audit.pairs import Pair, run_pair
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.shown_keys import shown_key
from lastkey.jobs.audit.sources import AuditedLogs, list_source
from lastkey.jobs.command.audit_options import AuditFailoverOptions
from lastkey.jobs.command.kinds import AuditSource
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import Card, Table, count, counted, moment
from lastkey.jobs.command.whole_file import PLAN
from lastkey.jobs.errors import UnknownNameError, UsageError
from lastkey.jobs.report.write_page import checked_output, write_page
from lastkey.jobs.topics import Key, TopicFilter
from lastkey.udfs.audit.committed import Committed
from lastkey.udfs.audit.group_records import CONSUMER_OFFSETS
from lastkey.udfs.audit.mirror_checkpoints import CHECKPOINT_TOPICS, MirrorCheckpoint, read_checkpoints
from lastkey.udfs.data_source.pieces import SourcePartition


def run(options: AuditFailoverOptions, progress: Progress) -> AuditReport:
    """Find the offsets of B for a group."""
    given = None if options.committed is None else read_offsets(options.committed, options.group)
    archives = [options.a.archive, options.b.archive, options.offsets_archive]
    stores = [options.a.store, options.b.store, options.audits]
    # before Spark starts: it may be missing
    coordinators = None if given is not None else list_coordinators(options.a, options.offsets_archive)
    plan = None if options.output is None else checked_output(options.output, archives, stores, kind=PLAN)
    return run_pair("failover", options, partial(_ask, options, given, coordinators, plan), progress)


def _ask(
    options: AuditFailoverOptions,
    given: Mapping[Key, int] | None,
    coordinators: AuditedLogs | None,
    plan: str | None,
    audit: Audit,
    pair: Pair,
) -> None:
    committed = {key: offset for key, offset in (given or {}).items() if key[0] in pair.topics}
    if coordinators is not None:
        accepts = options.config.topic_settings(CONSUMER_OFFSETS).gaps == "accept"
        found = committed_in(audit.workers, coordinators, accept_gaps=accepts)
        committed = _committed(found, options.group, pair, audit.report)
    elif not committed:
        file, group = options.committed, options.group
        raise UsageError(message=f"--committed {file}: no offset of group {group} in topics that are compared")
    answers, lost = go_on(audit, pair, committed, options)
    _fill(audit.report, options, pair, answers, lost)
    _compare_checkpoints(audit, options, pair, answers)
    if plan is not None:
        write_page(plan, encode_offsets(answers, pair.in_b), PLAN)


def _compare_checkpoints(audit: Audit, options: AuditFailoverOptions, pair: Pair, answers: Sequence[GoOn]) -> None:
    """Report where MirrorMaker 2 lets the group continue in B, beside each answer: a second opinion."""
    read = partial(read_checkpoints, group=options.group)
    made = audit.workers.run(read, _checkpoint_logs(options.b), "audit: checkpoints of MirrorMaker 2")
    audit.report.other_problems += [problem for one in made for problem in one.problems]
    theirs = {(one.topic, one.partition): one for each in made for one in each.checkpoints}
    pairs = ((one, theirs.get((pair.in_b.get(one.topic, ""), one.partition))) for one in answers)
    rows = [_opinion(one, checkpoint) for one, checkpoint in pairs if checkpoint is not None]
    audit.report.details["mirror_maker"] = rows
    header = ("partition of B", "offset", "committed in A", "answer")
    shown = [
        [f"{row['b_topic']}-{row['partition']}", count(row["offset"]), count(row["committed"]), row["answer"]]
        for row in rows
    ]
    audit.report.tables.append(Table("Checkpoints of MirrorMaker 2", header, shown, (3,)))
    audit.report.notes += [
        f"{row['topic']}-{row['partition']}: MirrorMaker 2 continues at {row['offset']:,}, and skips "
        f"{counted(row['skipped'], 'offset')} of B from the answer on"
        for row in rows
        if row["answer"] == "skips"
    ]


def _checkpoint_logs(b: AuditSource) -> Sequence[SourcePartition]:
    """List MirrorMaker 2's topics of checkpoints in B."""
    try:
        return list_source(b, TopicFilter((CHECKPOINT_TOPICS,))).partitions
    except UnknownNameError:
        return ()


def _opinion(one: GoOn, checkpoint: MirrorCheckpoint) -> dict[str, Any]:
    """Return a row about a checkpoint and an answer. `confirms`: nothing from the answer on is skipped; `open`: the
    answer is not the copy of a record, but by time or the start of B.
    """
    skipped = 0 if one.offset is None else max(checkpoint.offset - one.offset, 0)
    is_open = one.offset is None or (skipped > 0 and one.way != "identity")
    return {
        "topic": one.topic,
        "partition": one.partition,
        "b_topic": checkpoint.topic,
        "offset": checkpoint.offset,
        "committed": checkpoint.upstream_offset,
        "skipped": skipped,
        "answer": "open" if is_open else "skips" if skipped else "confirms",
    }


def _committed(found: Committed, group: str, pair: Pair, report: AuditReport) -> dict[Key, int]:
    """Return the group's offsets in A's topics that are compared; name what is not known of them."""
    report.other_problems += [*found.problems, *found.unreadable((group,), pair.topics)]
    unknown = found.unknown_because(group)
    rows = [row for row in found.rows.to_pylist() if row["group"] == group and row["topic"] in pair.topics]
    if not rows and unknown is None:
        others = ", ".join(sorted({r["group"] for r in found.rows.to_pylist() if r["topic"] in pair.topics})[:10])
        raise UsageError(
            message=f"--group {group}: it committed no offset of A's topics; groups that did: {others or 'none'}"
        )
    if unknown is not None:
        report.other_problems.append(f"what group {group} committed last is not known: {unknown}")
    if any(row["group_type"] == "share" for row in rows):
        report.notes.append(f"{group} is a share group: what it acknowledged behind its start offsets is read again")
    return {
        (row["topic"], row["partition"]): row["committed_offset"] for row in rows if row["committed_offset"] is not None
    }


def _fill(
    report: AuditReport,
    options: AuditFailoverOptions,
    pair: Pair,
    answers: Sequence[GoOn],
    lost: Sequence[dict[str, Any]],
) -> None:
    total = {
        name: sum(getattr(one, name) for one in answers)
        for name in ("undelivered", "lost", "superseded", "read", "again", "not_of_a", "passed_over")
    }
    ways = {way: sum(one.way == way for one in answers) for way in ("identity", "time", "start")}
    again_ms = max((one.again_ms for one in answers), default=0)
    report.findings = total["lost"]
    report.summary = {"group": options.group, "partitions": len(answers), **total, "again_ms": again_ms, "ways": ways}
    shown = [row | {"key": shown_key(row["key"], options.hide_keys)} for row in lost]
    report.details = {
        "partitions": [asdict(one) | {"b_topic": pair.in_b.get(one.topic)} for one in answers],
        "lost": shown,
        "keys_hidden": options.hide_keys,
    }
    report.cards = [
        Card("group", options.group, counted(len(answers), "partition")),
        Card("not delivered", count(total["undelivered"]), "records of A at or behind the committed offsets"),
        Card("read again", count(total["again"]), f"records, of {again_ms:,} ms at most in a partition"),
        Card("lost", count(total["lost"]), "not delivered, and not in B"),
        Card("superseded", count(total["superseded"]), "not delivered, not in B, but newer versions of their keys are"),
        Card("not of A", count(total["not_of_a"]), "records of B alone, which the group will read"),
        Card("passed over", count(total["passed_over"]), "records of B that A had and dropped, before the offsets"),
    ]
    report.tables = [
        Table(
            "Offsets at which the group continues",
            ("partition of B", "offset", "by", "committed in A", "read", "again", "again ms", "lost", "because"),
            [_row(pair, one) for one in answers],
            (2, 8),
        ),
        Table(
            "Lost records",
            ("partition of A", "offset", "time", "key"),
            [_lost_row(row) for row in shown],
            (2, 3),
        ),
    ]
    report.notes += [
        f"{one.topic}-{one.partition}: A could not be read in whole: records that were not delivered may be lost, "
        "without a name"
        for one in answers
        if one.a_unread
    ]
    report.notes += [
        f"{one.topic}-{one.partition}: by time: what B got from others before that time is skipped"
        for one in answers
        if one.way == "time"
    ]


def _lost_row(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['topic']}-{row['partition']}", count(row["offset"]), moment(row["timestamp_ms"]), row["key"]]


def _row(pair: Pair, one: GoOn) -> list[str]:
    topic = pair.in_b.get(one.topic)
    figures = (one.read, one.again, one.again_ms, one.lost)
    return [
        "-" if topic is None else f"{topic}-{one.partition}",
        count(one.offset),
        one.way,
        count(one.committed),
        *map(count, figures),
        one.why,
    ]
