"""`audit failover A B --group G`: the offsets at which a group that read A continues in its copy B."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import pyarrow as pa

from lastkey.jobs.audit.audit import MOST
from lastkey.jobs.audit.coordinators import committed_in, list_coordinators
from lastkey.jobs.audit.pairs import PairAudit, first_unread, unread
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.sources import AuditedLogs, list_source
from lastkey.jobs.audit.translate_offsets import KnownLogs, TranslatedOffset, decide
from lastkey.jobs.command.kinds import AuditSource
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import Card, TextTable, count, counted, moment
from lastkey.jobs.command.store_options import AuditFailoverOptions
from lastkey.jobs.command.whole_file import PLAN, checked_output, write_page
from lastkey.jobs.errors import MissingPathError, UnknownNameError, UsageError
from lastkey.jobs.store.paths import AUDIT_PAIRS
from lastkey.jobs.topics import Key, TopicFilter
from lastkey.logformat.errors import LogFormatError
from lastkey.udfs.audit.answers import AnswerFile, Asked, write_rows
from lastkey.udfs.audit.committed import CHECKPOINT_TOPICS, MirrorCheckpoint, read_checkpoints
from lastkey.udfs.audit.failover import LOST_ROW, FailoverQuestion
from lastkey.udfs.audit.tables import PAIRS
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.storage import normal_uri, open_root, read_file

_SUMS = ("undelivered", "lost", "superseded", "read", "again", "not_of_a", "passed_over")
LostRow = Annotated[dict[str, Any], LOST_ROW]
_FAILOVER_SUMMARY = pa.schema(
    [
        pa.field("group", pa.string(), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in ("partitions", *_SUMS, "again_ms")),
        pa.field("ways", pa.struct([(way, pa.int64()) for way in ("identity", "time", "start")]), nullable=False),
    ]
)


@dataclass(frozen=True)
class CheckpointOpinion:
    """Checkpoint of MirrorMaker 2 beside an answer. `confirms`: no record from the answer on is skipped; `open`: the
    answer is not the copy of a record, but by time or the start of B.
    """

    topic: str
    partition: int
    b_topic: str
    offset: int
    committed: int  # in A
    skipped: int  # offsets of B from the answer on
    answer: Literal["open", "skips", "confirms"]


def _b_place(row: Any) -> str:
    return "-" if row.b_topic is None else f"{row.b_topic}-{row.partition}"


@dataclass(kw_only=True)
class FailoverReport(AuditReport):
    """Report of `audit failover`."""

    job = "audit failover"
    facts = f"{AuditReport.facts} partitions lost mirror_maker"
    result_tables = (
        TextTable(
            "partitions",
            "place:partition_of_B offset way:by committed:committed_in_A read again span:again_ms lost why:because",
            {"place": _b_place, "span": lambda row: count(row.again_ms)},
            "Offsets at which the group continues",
        ),
        TextTable(
            "lost",
            "partition:partition_of_A offset time key",
            {"time": lambda row: moment(row["timestamp_ms"])},
            "Lost records",
        ),
        TextTable(
            "mirror_maker",
            "place:partition_of_B offset committed:committed_in_A answer",
            {"place": _b_place},
            "Checkpoints of MirrorMaker 2",
        ),
    )

    summary: Annotated[dict[str, Any], _FAILOVER_SUMMARY] = field(default_factory=dict)
    partitions: list[TranslatedOffset] = field(default_factory=list)
    lost: list[LostRow] = field(default_factory=list)
    mirror_maker: list[CheckpointOpinion] = field(default_factory=list)

    def cards(self) -> Iterable[Card]:
        """Return the figures above the tables."""
        of = self.summary
        yield Card("group", of["group"], counted(of["partitions"], "partition"))
        yield Card("not delivered", count(of["undelivered"]), "records of A at or behind the committed offsets")
        yield Card("read again", count(of["again"]), f"records, of {of['again_ms']:,} ms at most in a partition")
        yield Card("lost", count(of["lost"]), "not delivered, and not in B")
        why = "not delivered, not in B, but newer versions of their keys are"
        yield Card("superseded", count(of["superseded"]), why)
        yield Card("not of A", count(of["not_of_a"]), "records of B alone, which the group will read")
        why = "records of B that A had and dropped, before the offsets"
        yield Card("passed over", count(of["passed_over"]), why)


def run(options: AuditFailoverOptions, progress: Progress) -> FailoverReport:
    """Find the offsets of B for a group."""
    return FailoverAudit(options, FailoverReport()).run(progress)


class FailoverAudit(PairAudit[AuditFailoverOptions, FailoverReport]):
    """Search for the offsets of B at which a group continues."""

    _coordinators: AuditedLogs | None = None
    _given: Mapping[Key, int] | None = None

    def __init__(self, options: AuditFailoverOptions, report: FailoverReport) -> None:
        """Raise before Spark starts if an input is missing, or the output is."""
        super().__init__(options, report)
        if options.committed is not None:
            self._given = read_offsets(options.committed, options.group)
        else:
            self._coordinators = list_coordinators(options.a, options.offsets_archive)
        archives = [options.a.archive, options.b.archive, options.offsets_archive]
        stores = [options.a.store, options.b.store, options.audits]
        self._plan = None if options.output is None else checked_output(options.output, archives, stores, kind=PLAN)

    def ask(self) -> None:
        """Fill the report, and write the results."""
        options, report = self.options, self.report
        answers = report.partitions = self._answers(self._committed())
        total = {name: sum(getattr(one, name) for one in answers) for name in _SUMS}
        report.summary = {
            "group": options.group, "partitions": len(answers), **total,
            "again_ms": max((one.again_ms for one in answers), default=0),
            "ways": {way: sum(one.way == way for one in answers) for way in ("identity", "time", "start")},
        }  # fmt: skip
        report.findings = total["lost"]
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
        self._compare_checkpoints()
        if self._plan is not None:
            write_page(self._plan, _encode_offsets(answers), PLAN)

    def _answers(self, committed: Mapping[Key, int]) -> list[TranslatedOffset]:
        """Return the offset for each partition of A that the group read; write them, and the lost records."""
        options, pair = self.options, self.pair
        in_a, in_b = unread(pair, self.found)
        topics = {topic for topic, _ in committed} or pair.topics
        parts = {unit: of for unit, of in self.parts_by_unit(pair.sides).items() if unit[0] in topics}
        b_unread = {unit: first_unread(part for side, part in parts.get(unit, ()) if side) for unit in in_b}
        known = KnownLogs(committed, in_a, b_unread, pair.in_b)
        extra = {
            unit: [committed.get(unit), unit in in_a, b_unread.get(unit), options.ignore_timestamps]
            for unit in sorted({*parts, *committed})
        }
        source = f"{pair.result}, group {options.group}"

        def decided(asked: Asked, fresh: Sequence[AnswerFile]) -> list[AnswerFile]:
            if not asked.fingerprints:
                return []
            answers = decide(self.workers, asked.sides.root, asked.sides.units, [one.more for one in fresh], known)
            rows = [one.to_row(source, options.group) for one in answers]
            return [write_rows(asked, pa.Table.from_pylist(rows, PAIRS))]

        with self.work_folder(AUDIT_PAIRS, "states") as folder:
            flags = options.ignore_timestamps, MOST, self.state.root.uri, folder
            question = FailoverQuestion(source, options.group, committed, *flags)
            tables, _ = self.answer(AUDIT_PAIRS, question, parts, extra, decided)
        self.report.lost = self.report.show_keys(tables["lost"].to_pylist())
        rows = tables["partitions"].sort_by([("topic", "ascending"), ("partition", "ascending")]).to_pylist()
        return [TranslatedOffset.from_row(row, known) for row in rows]

    def _committed(self) -> dict[Key, int]:
        """Return the group's offsets in A's topics that are compared; name what is not known of them."""
        options, report, group, topics = self.options, self.report, self.options.group, self.pair.topics
        if self._coordinators is None:
            given = {key: offset for key, offset in (self._given or {}).items() if key[0] in topics}
            if not given:
                file = options.committed
                raise UsageError(message=f"--committed {file}: no offset of group {group} in topics that are compared")
            return given
        found = committed_in(self.workers, self._coordinators, options.config)
        report.other_problems += [*found.problems, *found.unreadable((group,), topics)]
        unknown = found.unknown_because(group)
        every = [row for row in found.rows if row.topic in topics]
        rows = [row for row in every if row.group == group]
        if not rows and unknown is None:
            others = ", ".join(sorted({row.group for row in every})[:10]) or "none"
            raise UsageError(
                message=f"--group {group}: it committed no offset of A's topics; groups that did: {others}"
            )
        if unknown is not None:
            report.other_problems.append(f"what group {group} committed last is not known: {unknown}")
        if any(row.group_type == "share" for row in rows):
            report.notes.append(
                f"{group} is a share group: what it acknowledged behind its start offsets is read again"
            )
        return {(str(row.topic), row.partition): row.offset for row in rows if row.offset is not None}

    def _compare_checkpoints(self) -> None:
        """Report where MirrorMaker 2 lets the group continue in B, beside each answer: a second opinion."""
        report, read = self.report, partial(read_checkpoints, group=self.options.group)
        made = self.workers.run(read, _checkpoint_logs(self.options.b), "audit: checkpoints of MirrorMaker 2")
        report.other_problems += [problem for _, problems in made for problem in problems]
        theirs = {(one.topic, one.partition): one for checkpoints, _ in made for one in checkpoints}
        pairs = ((one, theirs.get((one.b_topic or "", one.partition))) for one in report.partitions)
        report.mirror_maker = [_opinion(one, checkpoint) for one, checkpoint in pairs if checkpoint is not None]
        report.notes += [
            f"{one.topic}-{one.partition}: MirrorMaker 2 continues at {one.offset:,}, and skips "
            f"{counted(one.skipped, 'offset')} of B from the answer on"
            for one in report.mirror_maker
            if one.answer == "skips"
        ]


def _checkpoint_logs(b: AuditSource) -> Sequence[SourcePartition]:
    """List MirrorMaker 2's topics of checkpoints in B."""
    try:
        return list_source(b, TopicFilter((CHECKPOINT_TOPICS,))).partitions
    except UnknownNameError:
        return ()


def _opinion(one: TranslatedOffset, theirs: MirrorCheckpoint) -> CheckpointOpinion:
    skipped = 0 if one.offset is None else max(theirs.offset - one.offset, 0)
    is_open = one.offset is None or (skipped > 0 and one.way != "identity")
    answer: Literal["open", "skips", "confirms"] = "open" if is_open else "skips" if skipped else "confirms"
    return CheckpointOpinion(
        one.topic, one.partition, theirs.topic, theirs.offset, theirs.upstream_offset, skipped, answer
    )


# -- files of offsets


def read_offsets(file: str, group: str) -> dict[Key, int]:
    """Return a group's offsets by topic and partition from a file as `kafka-consumer-groups --reset-offsets --dry-run
    --export` writes it: `topic,partition,offset`, with the group as first column if there are several groups. Raise
    UsageError that names a malformed line.
    """
    uri = normal_uri(file)
    folder, _, name = uri.rpartition("/")
    try:
        text = read_file(open_root(folder or "/"), name).decode()
    except LogFormatError as error:
        raise MissingPathError(path=uri, expected="a file of offsets", found=error.found) from error
    except UnicodeDecodeError as error:
        raise UsageError(message=f"{uri}: expected UTF-8, found {error}") from None
    found: dict[Key, int] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row:
            continue
        *of, topic, partition, offset = row if len(row) in (3, 4) else ["", "", ""]
        if not topic or not partition.isdecimal() or not offset.isdecimal():
            expected = "[group,]topic,partition,offset"
            raise UsageError(message=f"{uri}: line {number}: expected {expected}, found {','.join(row)!r}")
        if of and of[0] != group:
            continue
        if (topic, int(partition)) in found:
            raise UsageError(message=f"{uri}: line {number}: {topic}-{partition} appears twice")
        found[topic, int(partition)] = int(offset)
    return found


def _encode_offsets(answers: Sequence[TranslatedOffset]) -> bytes:
    """Return the file that sets a group's offsets in B, by `--reset-offsets --from-file FILE --execute`."""
    out = io.StringIO()
    rows = ((one.b_topic, one.partition, one.offset) for one in answers if one.offset is not None)
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()
