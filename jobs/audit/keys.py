"""`audit keys`: what a log holds of each key, and the keys that are not where the default partitioner would put them.

A topic is answered as a whole: its number of partitions, and the partitions that hold a key, are in every row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from lastkey.jobs.audit.audit import MOST, Audit
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.sources import AuditedLogs
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import Card, TextTable, count, counted, moment, size
from lastkey.jobs.command.store_options import AuditKeysOptions
from lastkey.jobs.store.paths import AUDIT_KEYS
from lastkey.jobs.topics import Key
from lastkey.udfs.audit.entries import Cuts
from lastkey.udfs.audit.keys import FIRST, KEY, PARTITION_KEYS, KeysQuestion

_MISPLACED_SHARE = 0.5  # a larger share indicates another number of partitions or another partitioner
PartitionRow = Annotated[dict[str, Any], PARTITION_KEYS]
KeyRow = Annotated[dict[str, Any], KEY]
_KEY_COLUMNS: Final = (
    "partition key versions bytes last last_offset:offset time expected_partition:expected_in partitions"
)
_COMPUTED: Final[dict[str, Callable[[Any], object]]] = {
    "last": lambda row: "tombstone" if row["tombstone"] else size(row["last_bytes"]),
    "time": lambda row: moment(row["last_timestamp_ms"]),
}
_TITLES: Final = {
    "versions": "Keys with the most versions",
    "misplaced": "Keys that the default partitioner would put elsewhere",
    "several_partitions": "Keys in several partitions",
}


@dataclass(kw_only=True)
class KeysReport(AuditReport):
    """Report of `audit keys`."""

    job = "audit keys"
    facts = f"{AuditReport.facts} partitions keys"
    result_tables = (
        TextTable(
            "partitions",
            "partition keys tombstones versions most_versions:most_of_a_key bytes last_bytes:last misplaced"
            " elsewhere_too",
            title="Partitions",
        ),
        *(TextTable(f"keys.{which}", _KEY_COLUMNS, _COMPUTED, title) for which, title in _TITLES.items()),
    )

    summary: dict[str, int] = field(default_factory=dict)
    partitions: list[PartitionRow] = field(default_factory=list)
    keys: dict[str, list[KeyRow]] = field(default_factory=dict)  # first keys by FIRST

    def cards(self) -> Iterable[Card]:
        """Return the figures above the tables."""
        total = self.summary
        yield Card("keys", count(total["keys"]), counted(total["partitions"], "partition"))
        yield Card("tombstones", count(total["tombstones"]), "keys whose last record deletes them")
        mean = total["versions"] / max(total["keys"], 1)
        yield Card("versions", count(total["versions"]), f"{mean:.2f} for each key")
        yield Card("bytes", size(total["bytes"]), f"last versions: {size(total['last_bytes'])}; without batch headers")
        yield Card("misplaced", count(total["misplaced"]), "not where the default partitioner puts them")
        yield Card("in several partitions", count(total["elsewhere_too"]), "counted in each of them")


def run(options: AuditKeysOptions, progress: Progress) -> KeysReport:
    """Audit the keys of a source."""
    return KeysAudit(options, KeysReport()).run(progress)


class KeysAudit(Audit[AuditKeysOptions, KeysReport]):
    """Audit of the keys of a source."""

    def list_sources(self) -> list[AuditedLogs]:
        """Return the source, with the numbers of partitions that are given."""
        return [replace(one, counts=self.options.n_partitions) for one in super().list_sources()]

    def cuts(self) -> Callable[[Key], Cuts]:
        """Add up all versions of a key."""
        return lambda _: ()

    def ask(self) -> None:
        """Fill the report, and write the results."""
        (name,) = self.report.sources
        counts = {topic: n for (_, topic), n in self.found.n_partitions.items()}
        parts = self.parts_by_unit([(name, None)])
        reads = defaultdict[str, list[tuple[int, int, int]]](list)
        for (topic, _), of in sorted(parts.items()):
            reads[topic] += sorted((part.read.read_id, part.start_offset, part.end_offset) for _, part in of)
        extra = {(topic, n): [counts[topic], reads[topic]] for topic, n in parts}
        report, (tables, _) = self.report, self.answer(AUDIT_KEYS, KeysQuestion(name, counts, MOST), parts, extra)
        report.partitions = tables["partitions"].to_pylist()
        report.keys = {which: report.show_keys(tables[which].to_pylist()) for which in FIRST}
        names = (name for name in PARTITION_KEYS.names[2:] if name != "most_versions")
        report.summary = {name: sum(row[name] for row in report.partitions) for name in names}
        report.summary["partitions"] = len(report.partitions)
        if report.summary["misplaced"] > _MISPLACED_SHARE * report.summary["keys"]:
            report.notes.append(
                "most keys lie where the default partitioner would not put them: the topic has more partitions than "
                "are here (--partition-count TOPIC=N), or its producers choose partitions in another way (librdkafka "
                "does)"
            )
