"""Audits without Spark: what is new is read into the table of versions, in this process."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq

from lastkey.jobs.audit.records import Gathered, ReadSettings, gather
from lastkey.jobs.audit.sources import archive_source
from lastkey.jobs.command.config import Config
from lastkey.jobs.command.kinds import EVERY_TOPIC
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.store.audits import audit_secret
from lastkey.jobs.store.tables import open_state
from tests.builders.workers import InTurn

Seen = list[tuple[int, bytes | None]]


class Alone(InTurn):
    """Workers without Spark: this process."""

    def count(self, **amounts: int) -> None:
        """Count nothing."""


def audit(archive: Path, audits: Path | str, gaps: str | None = None) -> Gathered:
    state = open_state(str(audits))
    asked = ReadSettings(Config(overrides={} if gaps is None else {"gaps": gaps}), audit_secret(state))
    return gather(state, [archive_source(str(archive), EVERY_TOPIC)], asked, Alone(), Silent())  # type: ignore[arg-type]


def seen(audits: Path | str, found: Gathered) -> Seen:
    """Return offsets and keys that an audit counts."""
    root, rows = open_state(str(audits)).root, []
    for part in (part for part in found.parts if part.read.records):
        with root.filesystem.open_input_file(root.full(f"state/audit_versions/{part.read.file}")) as file:
            table = pq.read_table(file).to_pylist()
        for row in table:
            if row["read_id"] == part.read.read_id and part.start_offset <= row["offset"] < part.end_offset:
                rows.append((row["offset"], row["key"]))
    return sorted(rows, key=lambda row: (row[0], row[1] or b""))
