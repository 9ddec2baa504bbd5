"""`audit mirror A B`: comparison of a copy B with its original A, key by key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import pyarrow as pa

from lastkey.jobs.audit.audit import MOST
from lastkey.jobs.audit.pairs import PairAudit, spread, unread
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import Card, TextTable, count, counted, moment
from lastkey.jobs.command.store_options import AuditMirrorOptions
from lastkey.jobs.store.paths import AUDIT_PAIRS
from lastkey.jobs.topics import Key
from lastkey.udfs.audit.mirror import (
    COUNTS,
    DELETED,
    EQUAL,
    FINDING,
    FINDINGS,
    PARTITION_KINDS,
    UNKNOWN,
    MirrorQuestion,
)
from lastkey.udfs.audit.runs import ALL_PARTITIONS

_SAY: Final = {
    "missing": "keys that B does not have",
    "stale": "keys with an older version in B",
    "different": "keys whose last version in B is none of A's",
    "extra": "keys that A does not have",
    "ahead": "keys with newer versions in B, which A does not have",
    "order": "keys whose versions B has in another order",
    "missing_version": "keys with older versions that B does not have",
    "extra_version": "keys with older versions that A does not have",
    "missing_record": "groups of equal records without a key, fewer in B",
    "extra_record": "groups of equal records without a key, more in B",
    UNKNOWN: "keys whose state is unknown: their place could not be read",
}
_KINDS: Final = (EQUAL, DELETED, *FINDINGS)
PartitionRow = Annotated[dict[str, Any], PARTITION_KINDS]
FindingRow = Annotated[dict[str, Any], FINDING]
_MIRROR_SUMMARY: Final = pa.schema(
    [
        pa.field("keys", pa.struct([pa.field(kind, pa.int64(), nullable=False) for kind in _KINDS]), nullable=False),
        *(pa.field(name, pa.int64(), nullable=False) for name in COUNTS[1:]),
    ]
)


def _name(topic: str, partition: int) -> str:
    return topic if partition == ALL_PARTITIONS else f"{topic}-{partition}"


def _time(column: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "-" if row[column] is None else moment(row[column])


def _keys_by_kind(rows: Sequence[PartitionRow]) -> dict[str, int]:
    return {kind: sum(row["keys"] for row in rows if row["kind"] == kind) for kind in _KINDS}


def _sums(rows: Sequence[PartitionRow]) -> dict[str, int]:
    return {name: sum(row[name] for row in rows) for name in COUNTS[1:]}


@dataclass(kw_only=True)
class MirrorReport(AuditReport):
    """Report of `audit mirror`."""

    job = "audit mirror"
    facts = f"{AuditReport.facts} partitions first"
    result_tables = (
        TextTable(
            "places",
            "place:partition in_b:in_B a_versions:records b_versions:in_B missing_versions:not_in_B"
            f" extra_versions:not_in_A {' '.join(_KINDS)}",
            title="Partitions",
        ),
        TextTable(
            "first",
            "place:partition key kind:finding a_offset:offset_in_A a_time:time_in_A b_offset:offset_in_B"
            " b_time:time_in_B",
            {
                "place": lambda row: _name(row["topic"], row["partition"]),
                "key": lambda row: "(no key)" if row["without_key"] else row["key"],
                "kind": lambda row: row["kind"].replace("_", " "),
                "a_time": _time("a_timestamp_ms"),
                "b_time": _time("b_timestamp_ms"),
            },
            "First findings",
        ),
    )

    summary: Annotated[dict[str, Any], _MIRROR_SUMMARY] = field(default_factory=dict)
    partitions: list[PartitionRow] = field(default_factory=list)
    first: list[FindingRow] = field(default_factory=list)
    in_b: Mapping[str, str] = field(default_factory=dict)  # topic of A -> its name in B

    def places(self) -> list[dict[str, Any]]:
        """Return the rows of the table of partitions."""
        out = []
        for topic, partition in sorted({(row["topic"], row["partition"]) for row in self.partitions}):
            of = [row for row in self.partitions if (row["topic"], row["partition"]) == (topic, partition)]
            in_b = _name(self.in_b[topic], partition) if topic in self.in_b else ""
            out.append({"place": _name(topic, partition), "in_b": in_b, **_sums(of), **_keys_by_kind(of)})
        return out

    def cards(self) -> Iterable[Card]:
        """Return the figures above the tables."""
        keys = self.summary["keys"]
        yield Card("equal", counted(keys[EQUAL], "key"), "the last version is the same")
        yield Card("deleted", counted(keys[DELETED], "key"), "a tombstone on one side, nothing on the other")
        for kind in FINDINGS:
            if keys[kind]:
                yield Card(kind.replace("_", " "), count(keys[kind]), _SAY[kind])
        yield Card("versions", count(self.summary["a_versions"]), f"{self.summary['b_versions']:,} in B")


def run(options: AuditMirrorOptions, progress: Progress) -> MirrorReport:
    """Compare two copies."""
    return MirrorAudit(options, MirrorReport()).run(progress)


class MirrorAudit(PairAudit[AuditMirrorOptions, MirrorReport]):
    """Comparison of two copies."""

    def ask(self) -> None:
        """Fill the report, and write the results."""
        options, pair, report = self.options, self.pair, self.report
        apart = spread(pair, self.found.n_partitions)
        in_a, in_b = (_placed(keys, apart) for keys in unread(pair, self.found))
        parts = self.parts_by_unit(pair.sides, apart)
        flags = options.ignore_timestamps, options.every_version
        extra = {unit: [*flags, options.hide_keys, unit in in_a, unit in in_b] for unit in parts}
        question = MirrorQuestion(pair.result, (in_a, in_b), *flags, MOST)
        tables, _ = self.answer(AUDIT_PAIRS, question, parts, extra)
        report.partitions, report.in_b = tables["partitions"].to_pylist(), pair.in_b
        report.first = report.show_keys(tables["first"].to_pylist())
        keys = _keys_by_kind(report.partitions)
        keys[EQUAL] -= sum(r["keys"] for r in report.partitions if r["kind"] == EQUAL and r["without_key"])
        report.summary = {"keys": keys} | _sums(report.partitions)
        report.findings = sum(keys[kind] for kind in FINDINGS)
        report.notes += [f"{topic}: another number of partitions in B: compared as a whole" for topic in sorted(apart)]
        missing, extra_ones = (report.summary[name] for name in ("missing_versions", "extra_versions"))
        if (missing or extra_ones) and not options.every_version:
            report.notes.append(
                f"{missing:,} records only in A, {extra_ones:,} only in B: compaction of one side leaves such older "
                "versions of equal keys; if neither is compacted, --every-version shows them"
            )


def _placed(keys: Collection[Key], apart: Collection[str]) -> frozenset[Key]:
    return frozenset((topic, ALL_PARTITIONS if topic in apart else partition) for topic, partition in keys)
