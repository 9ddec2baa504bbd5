"""Logs that grow batch by batch, and the tables of `export --latest` that are made of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import ExportOptions
from lastkey.jobs.export import job
from lastkey.jobs.export.output import ExportReport
from lastkey.jobs.store.latest import TableOffsets, read_table_offsets
from lastkey.logformat.names import segment_file
from lastkey.logformat.side_files.checkpoints import write_partition_metadata
from lastkey.udfs.storage import open_root
from tests.builders.damage import START_MS
from tests.builders.logs import TOPIC_ID
from tests.reference.log import ABORT, COMMIT, Batch, data_batch, marker_batch
from tests.reference.read_committed import committed_offsets, last_stable_offset

OTHER_ID = UUID(int=TOPIC_ID.int + 1)


@dataclass
class Log:
    """A partition that grows batch by batch, and all that it ever held."""

    folder: Path
    batches: list[Batch] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.batches[-1].last_offset + 1 if self.batches else 0

    @property
    def log(self) -> Path:
        return self.folder / segment_file(self.bases[-1], "log")

    def roll(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.bases or self.end > self.bases[-1]:
            self.bases.append(self.end)
            self.log.touch()

    def append(self, text: str, pid: int | None = None) -> None:
        """Append records as words such as a=1 (a=-: a tombstone); of a producer: in its transaction."""
        pairs = [word.split("=") for word in text.split()]
        rows = [
            (START_MS + self.end + i, key.encode(), None if value == "-" else value.encode())
            for i, (key, value) in enumerate(pairs)
        ]
        of = {} if pid is None else {"producer_id": pid, "producer_epoch": 0, "transactional": True}
        self.write(data_batch(self.end, rows, **of))

    def finish(self, pid: int, kind: int) -> None:
        self.write(marker_batch(self.end, pid, kind, timestamp=START_MS + self.end))

    def write(self, batch: Batch) -> None:
        if not self.bases:
            self.roll()
        self.batches.append(batch)
        with self.log.open("ab") as file:
            file.write(batch.encoded().data)

    def rows(self, end: int) -> dict[bytes, tuple[int, bytes]]:
        """Return key -> (offset, value) of the last records below an offset, without tombstones."""
        shown = {o for o in committed_offsets(self.batches) if o < end}
        last = {r.key: r for b in self.batches if not b.control for r in b.records if r.offset in shown}
        return {key: (r.offset, r.value) for key, r in last.items() if r.value is not None}


class Place:
    """An archive of a topic `t`, and the tables of its export."""

    def __init__(self, root: Path, n: int = 1) -> None:
        self.archive, self.output = root / "archive", root / "out"
        self.logs = [Log(self.archive / f"t-{i}") for i in range(n)]
        self._seen_by_spark = False

    def identify(self, topic_id=TOPIC_ID) -> None:
        for log in self.logs:
            log.folder.mkdir(parents=True, exist_ok=True)
            (log.folder / "partition.metadata").write_bytes(write_partition_metadata(topic_id))

    def run(self, code: int = 0, **given) -> ExportReport:
        report = job.run(
            ExportOptions(str(self.archive), output=str(self.output), format="delta", latest=True, **given), Silent()
        )
        assert report.exit_code == code, report.to_text()
        return report

    def stand(self) -> dict[int, int]:
        offsets = read_table_offsets(open_root(str(self.output)), "t")
        assert isinstance(offsets, TableOffsets)
        return offsets.offsets

    def rows(self, spark: SparkSession) -> list[tuple[int, bytes, int, bytes]]:
        """Return partition, key, offset and value of the table's rows.

        delta-rs reads it each time. Spark takes half a second, and reads it the first time; runs read it in Spark too.
        """
        table = DeltaTable(str(self.output / "t")).to_pyarrow_table(columns=["partition", "key", "offset", "value"])
        sorted_rows = sorted(tuple(row.values()) for row in table.to_pylist())
        if not self._seen_by_spark:
            rows = spark.read.format("delta").load(str(self.output / "t")).collect()
            assert sorted_rows == sorted((r.partition, bytes(r.key), r.offset, bytes(r.value)) for r in rows)
            self._seen_by_spark = True
        return sorted_rows

    def check(self, spark: SparkSession, *, ends: list[int] | None = None) -> None:
        """Check that the table holds what all records below these ends say; None: last stable offsets."""
        ends = ends or [last_stable_offset(log.batches) for log in self.logs]
        wanted = {(i, key, *row) for i, log in enumerate(self.logs) for key, row in log.rows(ends[i]).items()}
        assert self.rows(spark) == sorted(wanted)
        assert self.stand() == {i: end for i, end in enumerate(ends) if end}


def grow(log: Log, pids: set[int], rng: random.Random) -> None:
    """Append drawn batches; pids: producers whose transaction is open."""
    for _ in range(rng.randrange(1, 8)):
        text = " ".join(f"k{rng.randrange(6)}={rng.choice(['-', '', str(log.end)])}" for _ in range(3))
        pid = rng.choice([None, 1, 2])
        if pid in pids and rng.random() < 0.5:
            log.finish(pid, rng.choice([ABORT, COMMIT]))
            pids.discard(pid)
        else:
            log.append(text, pid)
            pids.update(() if pid is None else [pid])


def each_drawn(
    request: pytest.FixtureRequest, root: Path, draw: Callable[[Path, random.Random, int], None], nights: int
) -> None:
    """Draw the cases that --attack-cases asks for, of so many nights; without it one of two nights."""
    cases, seed = (request.config.getoption(f"--attack-{name}") for name in ("cases", "seed"))
    for case in range(cases or 1):
        try:
            draw(root / str(case), random.Random(f"{seed} {case}"), nights if cases else 2)
        except BaseException as error:
            error.add_note(f"case {case} of seed {seed}")
            raise
