"""`audit keys`: what a log holds of each key, and the keys that lie where the default partitioner would not put them.

Tasks merge the rows of `audit_records` by key, in two stages (udfs.audit.key_entries), and write the files of
`audit_keys`; one commit makes them visible. No row goes through the JVM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, Final

import pyarrow as pa

from lastkey.jobs.audit.audit import MOST, Audit, run_audit, source_of
from lastkey.jobs.audit.records import ReadRange
from lastkey.jobs.audit.report import AuditReport
from lastkey.jobs.audit.shown_keys import shown_key
from lastkey.jobs.audit.sources import Source
from lastkey.jobs.command.audit_options import AuditKeysOptions
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import count, counted, moment, size
from lastkey.jobs.report.parts import Card, Table
from lastkey.jobs.store.audits import audit_secret, commit_results, results_folder
from lastkey.jobs.store.commit_file import DataFile
from lastkey.jobs.store.paths import AUDIT_KEYS, AUDIT_RECORDS, table_folder
from lastkey.jobs.topics import Key
from lastkey.udfs.audit.key_entries import AUDIT_KEYS as KEYS
from lastkey.udfs.audit.key_entries import (
    FIRST,
    KeysTask,
    Runs,
    RunTask,
    bin_ranges,
    first_keys,
    write_keys,
    write_runs,
)
from lastkey.udfs.groups import groups
from lastkey.udfs.storage import delete_folder, exists, flush_folder, make_folder

_RUN_RECORDS: Final = 4_000_000  # of the files that one task merges
_MISPLACED_SHARE = 0.5  # above it the number of partitions, or the partitioner, is another one


def run(options: AuditKeysOptions, progress: Progress) -> AuditReport:
    """Audit the keys of a source."""

    def listed_by(_: AuditReport) -> list[Source]:
        return [replace(source_of(options.source, options), counts=options.n_partitions)]

    return run_audit("keys", options, [options.source], partial(_ask, options), progress, listed_by)


def _ask(options: AuditKeysOptions, audit: Audit) -> None:
    (name,) = audit.report.sources
    root, workers, table = audit.state.root, audit.workers, table_folder(AUDIT_KEYS)
    folder = f"{table}/{results_folder(name)}"
    runs_folder, most_bytes = f"{folder}/runs", options.config.job.task_memory_bytes // 4
    counts = {topic: n for (_, topic), n in audit.found.n_partitions.items()}
    try:
        tasks = _run_tasks(audit, runs_folder, most_bytes)
        written = workers.run(write_runs, [task for _, task in tasks], "audit: keys of files")
        runs: dict[str, Runs] = {}
        for (topic, _), one in zip(tasks, written, strict=True):
            runs.setdefault(topic, Runs()).add(one)
        merges = [
            KeysTask(root.uri, of_topic.paths, *bins, folder, name, topic, counts[topic], MOST)
            for topic, of_topic in runs.items()
            for bins in bin_ranges(of_topic, workers.cores, most_bytes)
        ]
        files = workers.run(write_keys, merges, "audit: keys")
    finally:
        if exists(root, runs_folder):
            delete_folder(root, runs_folder)
    flush_folder(make_folder(root, folder), folder)
    added = [DataFile.counted(file.path.removeprefix(f"{table}/"), file.size, file.rows) for file in files]
    commit_results(audit.state, AUDIT_KEYS, name, KEYS, added)
    by_place: dict[Key, dict[str, int]] = {}
    for task, file in zip(merges, files, strict=True):
        for partition, row in file.by_partition.items():
            known = by_place.setdefault((task.topic, partition), dict.fromkeys(row, 0))
            most = max(known["most_versions"], row["most_versions"])
            by_place[task.topic, partition] = {n: known[n] + row[n] for n in row} | {"most_versions": most}
    by_partition = [{"topic": t, "partition": n, **by_place[t, n]} for t, n in sorted(by_place)]
    worst = {
        which: first_keys(pa.Table.from_pylist([row for file in files for row in file.first[which]], KEYS), which,
                          MOST)
        for which in FIRST
    }  # fmt: skip
    _fill(audit.report, options, by_partition, worst)


def _run_tasks(audit: Audit, folder: str, most_bytes: int) -> list[tuple[str, RunTask]]:
    """Return the tasks of the first stage, each with its topic."""
    secret, files = audit_secret(audit.state), dict[tuple[str, str], list[ReadRange]]()
    for part in audit.found.parts:
        if part.read.records:
            files.setdefault((part.read.topic, part.read.file), []).append(part)
    tasks = []
    for topic, group in groupby(sorted(files), lambda key: key[0]):
        for keys in groups(group, lambda key: sum(part.read.records for part in files[key]), _RUN_RECORDS):
            visible = {
                f"{table_folder(AUDIT_RECORDS)}/{path}": [
                    (part.read.read_id, part.start_offset, part.end_offset) for part in files[topic, path]
                ]
                for _, path in keys
            }
            tasks.append((topic, RunTask(audit.state.root.uri, visible, folder, secret, most_bytes)))
    return tasks


def _fill(
    report: AuditReport,
    options: AuditKeysOptions,
    by_partition: list[dict[str, Any]],
    worst: dict[str, list[dict[str, Any]]],
) -> None:
    names = ("keys", "tombstones", "versions", "bytes", "last_bytes", "misplaced", "elsewhere_too")
    total = {name: sum(row[name] for row in by_partition) for name in names}
    report.summary = total | {"partitions": len(by_partition)}
    hidden = options.hide_keys
    told = {name: [row | {"key": shown_key(row["key"], hidden)} for row in rows] for name, rows in worst.items()}
    report.details = {"partitions": by_partition, "keys": told, "keys_hidden": hidden}
    report.cards = [
        Card("keys", count(total["keys"]), counted(len(by_partition), "partition")),
        Card("tombstones", count(total["tombstones"]), "keys whose last record deletes them"),
        Card("versions", count(total["versions"]), f"{total['versions'] / max(total['keys'], 1):.2f} for each key"),
        Card("bytes", size(total["bytes"]), f"last versions: {size(total['last_bytes'])}; without batch headers"),
        Card("misplaced", count(total["misplaced"]), "not where the default partitioner puts them"),
        Card("in several partitions", count(total["elsewhere_too"]), "counted in each of them"),
    ]
    header = (
        "partition",
        "keys",
        "tombstones",
        "versions",
        "most of a key",
        "bytes",
        "last",
        "misplaced",
        "elsewhere too",
    )
    report.tables = [
        Table("Partitions", header, [_partition_row(row) for row in by_partition]),
        _of_keys("Keys with the most versions", told["versions"]),
        _of_keys("Keys that the default partitioner would put elsewhere", told["misplaced"]),
        _of_keys("Keys in several partitions", told["several_partitions"]),
    ]
    if total["keys"] and total["misplaced"] / total["keys"] > _MISPLACED_SHARE:
        report.notes.append(
            "most keys lie where the default partitioner would not put them: the topic has more partitions than are "
            "here (--partition-count TOPIC=N), or its producers choose partitions in another way (librdkafka does)"
        )


def _partition_row(row: Mapping[str, Any]) -> list[str]:
    return [
        f"{row['topic']}-{row['partition']}",
        *(count(row[name]) for name in ("keys", "tombstones", "versions", "most_versions")),
        *(size(row[name]) for name in ("bytes", "last_bytes")),
        *(count(row[name]) for name in ("misplaced", "elsewhere_too")),
    ]


def _of_keys(label: str, rows: list[dict[str, Any]]) -> Table:
    header = ("partition", "key", "versions", "bytes", "last", "offset", "time", "expected in", "partitions")
    body = [
        [
            f"{row['topic']}-{row['partition']}", row["key"], count(row["versions"]), size(row["bytes"]),
            "tombstone" if row["tombstone"] else size(row["last_bytes"]), str(row["last_offset"]),
            moment(row["last_timestamp_ms"]), str(row["expected_partition"]), count(row["partitions"]),
        ]
        for row in rows
    ]  # fmt: skip
    return Table(label, header, body, (1,))
