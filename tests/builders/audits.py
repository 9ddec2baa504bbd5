"""Audits without Spark: what is new is read into the table of entries, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lastkey.jobs.audit.records import Gathered, ReadSettings, gather
from lastkey.jobs.audit.sources import archive_source
from lastkey.jobs.command.config import Config
from lastkey.jobs.command.kinds import EVERY_TOPIC
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.store.audits import audit_secret
from lastkey.jobs.store.tables import open_state
from lastkey.udfs.audit.entries import Cuts
from tests.builders.workers import InTurn

Seen = list[tuple[int, bytes | None]]


class Alone(InTurn):
    """Workers without Spark: this process."""

    def count(self, **amounts: int) -> None:
        """Count nothing."""


def audit(archive: Path, audits: Path | str, gaps: str | None = None, cuts: Cuts = None) -> Gathered:
    state, config = open_state(str(audits)), Config(overrides={} if gaps is None else {"gaps": gaps})
    read_settings = ReadSettings(config, audit_secret(state), cuts=lambda _: cuts)
    return gather(state, [archive_source(str(archive), EVERY_TOPIC)], read_settings, Alone(), Silent())  # type: ignore[arg-type]


def seen(audits: Path | str, found: Gathered) -> Seen:
    """Return offsets and keys of the records that an audit counts."""
    rows = [(row["offset"], row["key"]) for row in read_entries(audits, found)]
    return sorted(rows, key=lambda row: (row[0], row[1] or b""))


def read_entries(audits: Path | str, found: Gathered) -> list[dict[str, Any]]:
    """Return the entries that an audit counts."""
    root, rows = open_state(str(audits)).root, []
    for path, entries_id in {(part.read.file, part.read.entries_id) for part in found.parts if part.read.file}:
        with root.filesystem.open_input_file(root.full(f"state/audit_entries/{path}")) as file:
            table = pq.read_table(file).to_pylist()
        rows += [row for row in table if row["read_id"] == entries_id]
    return rows
