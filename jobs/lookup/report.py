"""Report of `lookup` for a few queries: a row for each partition and query."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NotRequired, TypedDict

from lastkey.jobs.command.reporting import JobReport, TextTable, moment
from lastkey.udfs.lookup.queries import Lookup


@dataclass(frozen=True)
class Query:
    """Query as the user typed it: an offset, or a time in ms (or one of SPECIAL_TIMES)."""

    offset: int | None = None
    time: int | None = None
    text: str = ""


class Answered(TypedDict):
    """Query, an offset or a time, and its answer: the columns of ANSWER."""

    topic: str
    partition: int
    offset: NotRequired[int]
    time: NotRequired[str]
    status: str
    answer_offset: int | None
    answer_timestamp: int | None
    leader_epoch: int | None
    segment: str | None
    position: int | None
    batch_size: int | None
    batch_base_offset: int | None
    batch_last_offset: int | None


@dataclass(frozen=True)
class Looked:
    """Answers of one partition; a row of `lookup.answers` for each query."""

    facts: ClassVar[str] = (
        "topic=lookup.topic partition=lookup.partition log_start_offset=lookup.log_start_offset "
        "log_end_offset=lookup.log_end_offset answers problem=lookup.problem"
    )
    lookup: Lookup
    queries: list[Query]

    @property
    def answers(self) -> list[Answered]:
        """Each query, then its answer."""
        out = []
        for query, answer in zip(self.queries, self.lookup.answers.to_pylist(), strict=True):
            asked: dict[str, Any] = {"topic": self.lookup.topic, "partition": self.lookup.partition}
            asked |= {"offset": query.offset} if query.offset is not None else {"time": query.text}
            out.append(asked | answer)
        return out


@dataclass
class LookupReport(JobReport):
    """Report of all answers."""

    job = "lookup"
    done = "{rows:answer} of {partitions:partition}"
    facts = "archive store partitions"
    text_tables = (
        TextTable(
            "rows",
            "partition query status answer_offset:offset timestamp segment position batch",
            {
                "query": lambda row: f"offset {row['offset']}" if "offset" in row else row["time"],
                "status": lambda row: row["status"].replace("_", " "),
                "timestamp": lambda row: moment(row["answer_timestamp"]),
                "segment": lambda row: row["segment"] or "",
                "position": lambda row: "" if row["position"] is None else str(row["position"]),
                "batch": lambda row: _batch(row["batch_base_offset"], row["batch_last_offset"]),
            },
        ),
    )

    archive: str | None = None
    store: str | None = None
    partitions: list[Looked] = field(default_factory=list)

    @property
    def rows(self) -> list[Answered]:
        """Answers of all partitions."""
        return [row for p in self.partitions for row in p.answers]

    @property
    def problems(self) -> list[Any]:
        """Folders that cannot be listed, and partitions whose files are bad; an offset out of range is an answer."""
        return self.other_problems + [p.lookup.problem for p in self.partitions if p.lookup.problem is not None]

    def _lines(self) -> Iterable[str]:
        for p in self.partitions:
            if any(row["status"] == "out_of_range" for row in p.answers):
                offsets = f"{p.lookup.log_start_offset:,} to {p.lookup.log_end_offset:,}"
                yield f"out of range: {p.lookup.topic}-{p.lookup.partition} has {offsets}"


def _batch(first: int | None, last: int | None) -> str:
    return "" if last is None else f"{'?' if first is None else first} to {last}"
