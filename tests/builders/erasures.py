"""An archive that grows, its store, and erasures; and a judge that shares no code with what erases.

Records are what a plain decoder (`tests.reference.log`) finds in the files that a generation names, and in the archive.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow.parquet as pq

from lastkey.jobs import vacuum
from lastkey.jobs.command.config import Config, parse_config
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import EraseOptions, VacuumOptions
from lastkey.jobs.erase import job as erase
from lastkey.jobs.erase.report import EraseReport
from lastkey.jobs.verify import job as verify
from lastkey.logformat.names import MAX_OFFSET
from lastkey.logformat.side_files.checkpoints import format_uuid
from tests.builders.archives import COMPACT, Lab
from tests.builders.logs import START_MS, TOPIC_ID, write_partition
from tests.reference.log import Record, decode_log

NOW = START_MS + 3_600_000
SECRET = bytes(range(32))


@dataclass
class Erasures:
    """Archive of one partition, t-0, its store, and what has been erased of it."""

    root: Path
    defaults: dict[str, Any] = field(default_factory=lambda: dict(COMPACT))
    segments: list[str] = field(default_factory=list)
    topic_id: UUID = TOPIC_ID
    bounds: dict[str, dict[bytes, int]] = field(default_factory=dict)  # topic id -> key -> its records below are gone
    engine: str = "threads"

    @property
    def lab(self) -> Lab:
        return Lab(None, self.root, {"defaults": self.defaults, "job": {"engine": self.engine}})

    @property
    def config(self) -> Config:
        return parse_config(self.lab.settings)

    @property
    def hmac_key(self) -> str:
        path = self.root / "hmac.key"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(SECRET)
        return str(path)

    def write(self) -> None:
        """Rewrite the archive with all that was appended."""
        shutil.rmtree(self.lab.archive / "t-0", ignore_errors=True)
        write_partition(self.lab.archive / "t-0", "||".join(self.segments), topic_id=self.topic_id)

    def grow(self, text: str, *, roll: bool) -> None:
        """Append batches to the active segment, or to a new one."""
        if roll or not self.segments:
            self.segments.append(text)
        else:
            self.segments[-1] += f" | {text}"
        self.write()

    def compact(self, **options: Any) -> Any:
        return self.lab.run(NOW, **{"force": True} | options)

    def erase(self, *keys: str, **options: Any) -> EraseReport:
        """Erase keys, and note the logs and bounds of the erasure."""
        report = erase.run(self.options(*keys, **options), Silent())
        if not (report.exit_code or options.get("dry_run") or options.get("check")):
            for logs in self.bounds.values():  # an erasure covers all records that absent logs receive meanwhile
                logs |= {key: MAX_OFFSET for key in map(str.encode, keys) if key in logs}
            self.bound(map(str.encode, keys))
        return report

    def bound(self, keys: Iterable[bytes]) -> None:
        """Record that all records of these keys are erased from the archive's log."""
        if erased := dict.fromkeys(keys, self.end()):
            self.bounds.setdefault(format_uuid(self.topic_id), {}).update(erased)

    def options(self, *keys: str, **options: Any) -> EraseOptions:
        given = {"store": str(self.lab.store), "hmac_key": self.hmac_key, "config": self.config}
        return EraseOptions(key=keys, **given | options)

    def end(self) -> int:
        """Return the end of what the current generation covers; of the archive if there is none."""
        row = self.lab.state().checkpoints().get(("t", 0))
        return row.next_offset if row is not None else max((r.offset for r in self.archived()), default=-1) + 1

    def archived(self) -> list[Record]:
        return list(read_records(sorted((self.lab.archive / "t-0").glob("*.log"))))

    def current(self) -> list[Record]:
        """Return the records of the current generation, in all the bytes that it names."""
        rows = self.lab.state().current()[1]["t", 0]
        return [r for row in rows for r in _records(self.lab.path(row).read_bytes()[: row.size_bytes])]

    def judge(self) -> str:
        """Return the fault of the current generation; "" if it has all records but the erased ones."""
        state = self.lab.state()
        if ("t", 0) not in state.checkpoints():
            return ""
        end, existing, held = self.end(), {r.offset: r for r in self.archived()}, self.current()
        bounds = self.bounds.get(state.checkpoints()["t", 0].topic_id or "", {})
        for r in held:
            if r.offset < bounds.get(r.key or b"", 0):
                return f"{r.key!r} at {r.offset}, erased below {bounds[r.key or b'']}"
            if existing.get(r.offset) != r:
                return f"{r} is not {existing.get(r.offset)}"
        last = {r.key: r for r in existing.values() if r.offset < end}
        wanted = {r.offset for r in last.values() if r.offset >= bounds.get(r.key or b"", 0)}
        lost = wanted - {r.offset for r in held}
        return f"lost {[existing[offset] for offset in sorted(lost)]}" if lost else ""

    def absent_keys(self) -> set[bytes]:
        """Return the keys that the store must not contain: erased keys that were not written again to any log."""
        last = {r.key: r.offset for r in self.archived()}
        erased = [one for logs in self.bounds.values() for one in logs.items()]
        return {key for key, _ in erased} - {key for key, until in erased if last.get(key, -1) >= until}


def made(root: Path, *segments: str, defaults: dict[str, Any] | None = None) -> Erasures:
    """Return an archive and a store with one generation."""
    world = Erasures(root, COMPACT | (defaults or {}))
    for segment in segments:
        world.grow(segment, roll=True)
    assert world.compact().exit_code == 0
    return world


def vacuumed(world: Erasures, **options: Any) -> Any:
    return vacuum.run(VacuumOptions(str(world.lab.store), erased=True, **options), Silent())


def verified(world: Erasures) -> list[Any]:
    report = verify.run(VerifyOptions(store=str(world.lab.store), config=world.config), Silent())
    assert not report.not_checked
    return report.problems


def erasure_rows(store: Path) -> list[dict[str, Any]]:
    """Return what cleaner_runs keeps of each erasure and check that searched, oldest first, with its job."""
    rows = [row | json.loads(row["figures"]) for row in rows_of_runs(store) if row["topic"] is None]
    erasures = sorted((row for row in rows if "erasure" in row), key=lambda row: row["ended_ms"])
    return [row["erasure"] | {"job": row["job"]} for row in erasures]


def erased_from(store: Path) -> list[tuple[Any, ...]]:
    """Return the erased records by rows of cleaner_runs: partition, generation before and after, bounds, records,
    offsets.
    """
    rows = [row for row in rows_of_runs(store) if row["topic"] is not None and row["dropped_erased"]]
    return sorted(
        (
            f"{row['topic']}-{row['partition']}",
            row["generation_before"],
            row["generation_after"],
            sorted(bound for logs in json.loads(row["erased"]).values() for bound in logs.values()),
            row["dropped_erased"],
            json.loads(row["erased_offsets"]),
        )
        for row in rows
    )


def rows_of_runs(store: Path) -> list[dict[str, Any]]:
    files = (store / "state" / "cleaner_runs").glob("*.parquet")
    return [row for path in files for row in pq.read_table(path).to_pylist()]


def read_records(paths: Iterable[Path]) -> Iterator[Record]:
    for path in paths:
        yield from _records(path.read_bytes())


def _records(data: bytes) -> Iterator[Record]:
    for batch in decode_log(data):
        if not batch.control:
            yield from batch.records


def find_keys(keys: Iterable[bytes], folder: Path) -> list[tuple[str, bytes]]:
    """Return the files below a folder with any of the keys in their bytes, decompressed: logs, Parquet, all others."""
    matches = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        texts = [path.read_bytes(), str(path.relative_to(folder)).encode()]
        if path.suffix == ".log":
            texts += [part for r in read_records([path]) for part in (r.key, r.value) if part]
        elif path.suffix == ".parquet":
            texts += [str(row).encode() for row in pq.read_table(path).to_pylist()]
        matches += [(str(path.relative_to(folder)), key) for key in keys if any(key in text for text in texts)]
    return matches
