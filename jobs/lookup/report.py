"""Report of `lookup` for a few queries: a row for each partition and query."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lastkey.jobs.command.reporting import JobReport, labelled, moment, table
from lastkey.udfs.lookup.queries import Lookup


@dataclass(frozen=True)
class Query:
    """Query as the user typed it: an offset, or a time in ms (or one of SPECIAL_TIMES)."""

    offset: int | None = None
    time: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Looked:
    """Answers of one partition; a row of `found.answers` for each query."""

    found: Lookup
    queries: list[Query]

    def rows(self) -> list[dict[str, Any]]:
        """Return plain dicts: the query, then the answer."""
        out = []
        for query, answer in zip(self.queries, self.found.answers.to_pylist(), strict=True):
            asked: dict[str, Any] = {"topic": self.found.topic, "partition": self.found.partition}
            asked |= {"offset": query.offset} if query.offset is not None else {"time": query.text}
            out.append(asked | answer)
        return out


@dataclass
class LookupReport(JobReport):
    """Report of all answers."""

    uri: str
    side: str  # archive or store
    partitions: list[Looked] = field(default_factory=list)

    @property
    def problems(self) -> list[Any]:
        """Folders that cannot be listed, and partitions whose files are bad; an offset out of range is an answer."""
        return self.other_problems + [p.found.problem for p in self.partitions if p.found.problem is not None]

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        return {
            "job": "lookup",
            self.side: self.uri,
            "exit_code": self.exit_code,
            "partitions": [
                {
                    "topic": p.found.topic,
                    "partition": p.found.partition,
                    "log_start_offset": p.found.log_start_offset,
                    "log_end_offset": p.found.log_end_offset,
                    "answers": p.rows(),
                    "problem": str(p.found.problem) if p.found.problem else None,
                }
                for p in self.partitions
            ],
            "problems": [str(p) for p in self.problems],
            "notes": self.notes,
            "engine": self.work_json(),
            "seconds": self.seconds_json(),
        }

    def to_text(self) -> str:
        """Return the report for people."""
        header = ("partition", "query", "status", "offset", "timestamp", "segment", "position", "batch")
        rows = [_row(p, row) for p in self.partitions for row in p.rows()]
        out = [table(header, rows, left=(0, 1, 2, 5))] if rows else ["nothing was asked"]
        out += labelled("problem", self.problems)
        out += labelled("note", self.notes)
        out.append(self.last_lines())
        return "\n".join(out)


def _row(p: Looked, row: dict[str, Any]) -> tuple[str, ...]:
    status = row["status"]
    if status == "out_of_range":
        status = f"out of range: {p.found.log_start_offset:,} to {p.found.log_end_offset:,}"
    query = f"offset {row['offset']}" if "offset" in row else row["time"]
    batch = ""
    if row["batch_last_offset"] is not None:
        first = row["batch_base_offset"]
        batch = f"{'?' if first is None else first} to {row['batch_last_offset']}"
    return (
        f"{p.found.topic}-{p.found.partition}",
        query,
        status,
        _text(row["answer_offset"]),
        moment(row["answer_timestamp"]),
        row["segment"] or "",
        _text(row["position"]),
        batch,
    )


def _text(value: int | None) -> str:
    return "" if value is None else str(value)
