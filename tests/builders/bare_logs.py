"""Logs whose side files are lost: rebuilt by our reindex, and compared with the files that Kafka makes.

Snapshots are compared by their entries: Kafka writes them in the order of a hash map.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import ReindexOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.reindex.job import run
from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.side_files import checkpoints, producer_snapshot
from tests.builders.trees import files_in

EXPIRATION_MS = 2**31 - 1  # producer.id.expiration.ms: as long as it may be, 24 days
_NO_EPOCHS = b"0\n0\n"  # Kafka's epoch checkpoint for a log of magic 0 and 1


@dataclass(frozen=True)
class BareLog:
    """A partition whose side files are lost."""

    name: str  # <topic>-<n>
    source: Path
    interval: int = 4096
    log_start: int = 0


def copy_logs(logs, target):
    """Make an archive of the `.log` files alone."""
    for log in logs:
        (target / log.name).mkdir(parents=True)
        for path in files_in(log.source):
            shutil.copy2(path, target / log.name)
    starts = [(*log.name.rsplit("-", 1), log.log_start) for log in logs if log.log_start]
    if starts:
        lines = [" ".join(map(str, start)) for start in starts]
        (target / "log-start-offset-checkpoint").write_text("\n".join(["0", str(len(lines)), *lines, ""]))


def reindexed(archive, output, interval=4096):
    config = parse_config({"defaults": {"index.interval.bytes": interval}})
    report = run(ReindexOptions(str(archive), config=config, output=str(output)), Silent())
    assert report.exit_code == 0, report.to_text()


def side_files(folder):
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if path.suffix != ".log" and path.name != "partition.metadata"
    }


def differences(theirs, ours, *, clock_ms=None, all_snapshots=True):
    """Return the names of side files that differ, and how. clock_ms: time at which a broker dropped idle producers."""
    messages = []
    kafka, mine = side_files(theirs), side_files(ours)
    if clock_ms is not None:
        name = "leader-epoch-checkpoint"
        kafka[name], mine[name] = without_its_own_epoch(theirs, kafka[name], mine.get(name, _NO_EPOCHS))
    elif kafka.get("leader-epoch-checkpoint") == _NO_EPOCHS:
        del kafka["leader-epoch-checkpoint"]
    for name in sorted(kafka.keys() | mine.keys()):
        if name not in mine:
            if kafka[name] or name.endswith("index"):
                messages.append(f"{theirs.name}/{name}: only Kafka's")
        elif name not in kafka:
            if not name.endswith(".snapshot") or all_snapshots:
                messages.append(f"{theirs.name}/{name}: only ours")
        elif name.endswith(".snapshot"):
            left, right = producer_snapshot.read(kafka[name], name), producer_snapshot.read(mine[name], name)
            if clock_ms is not None:
                idle = (right["current_txn_first_offset"] < 0) & (clock_ms - right["timestamp"] >= EXPIRATION_MS)
                right = right[~idle | np.isin(right["producer_id"], left["producer_id"])]
            if not producer_snapshot.same_entries(left, right):
                messages.append(f"{theirs.name}/{name}: {left} and {right}")
        elif kafka[name] != mine[name]:
            messages.append(f"{theirs.name}/{name}: {len(kafka[name])} and {len(mine[name])} bytes that differ")
    return messages


def without_its_own_epoch(folder, kafkas, ours):
    """Return (Kafka's leader epochs, ours) as far as they can be compared.

    The broker began an epoch of its own at the log end when it became the leader; that one replaced the epochs in the
    log that are not below it.
    """
    last = max(folder.glob("*.log"))
    headers = open_segment(last).headers()
    end = int(headers["last_offset"][-1]) + 1 if len(headers) else int(last.stem)
    theirs = checkpoints.read_leader_epochs(kafkas, folder.name)
    [own] = [epoch for epoch, start in theirs if start >= end]
    mine = checkpoints.read_leader_epochs(ours, folder.name)
    return [checkpoints.write_leader_epochs([e for e in epochs if e[0] < own]) for epochs in (theirs, mine)]
