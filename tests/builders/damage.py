"""A small partition, ways to damage it, and what `verify` and the compaction then make of it."""

from __future__ import annotations

import shutil
import struct
from dataclasses import dataclass, field
from pathlib import Path

import google_crc32c

from lastkey.jobs.archive.listing import ArchivedPartition, list_archive
from lastkey.jobs.command.config import Config
from lastkey.jobs.compact.plan_inputs import input_from_archive
from lastkey.jobs.verify.plan_checks import plan_archived
from lastkey.logformat.names import segment_file
from lastkey.logformat.side_files.index_builder import IndexBuilder
from lastkey.udfs.compact.compact_partition import compact_partition
from lastkey.udfs.compact.plan import CleanSettings, Limits, PartitionPlan, PartitionResult
from lastkey.udfs.storage import open_root
from lastkey.udfs.verify.findings import CheckResult
from lastkey.udfs.verify.partition import check_partition
from tests.builders.plans import changed, made_plan
from tests.builders.trees import read_tree
from tests.reference.log import NONE, Batch, data_batch

NOW_MS = 1_800_000_000_000
START_MS = 1_700_000_000_000
BOMB_LIMIT = 1 << 20
SEGMENTS, BATCHES, RECORDS = 4, 3, 4  # the last segment is the active one
SEGMENT_OFFSETS = BATCHES * RECORDS


def build(root: Path, codec: int = NONE) -> Partition:
    """Build `t-0` below root: dense offsets, keys that come again, an index entry for each batch but the first."""
    part = Partition(root, root.parent / "store")
    part.folder.mkdir(parents=True)
    for number in range(SEGMENTS):
        base = number * SEGMENT_OFFSETS
        batches = [batch_at(base + i * RECORDS, codec=codec) for i in range(BATCHES)]
        part.write(base, batches, active=number == SEGMENTS - 1)
    (part.folder / "leader-epoch-checkpoint").write_text("0\n1\n3 0\n")
    return part


def batch_at(base: int, n: int = RECORDS, **fields: object) -> Batch:
    records = [
        (START_MS + base + i, b"key-%d" % ((base + i) * 7 % 10), b"value %05d of its key, some bytes long" % (base + i))
        for i in range(n)
    ]
    return data_batch(base, records, leader_epoch=3, **fields)


@dataclass
class Partition:
    """An archive's only partition."""

    root: Path
    store: Path
    limits: Limits = field(default_factory=Limits)

    @property
    def folder(self) -> Path:
        return self.root / "t-0"

    def log(self, base: int) -> Path:
        return self.folder / segment_file(base, "log")

    def write(self, base: int, batches: list[Batch], *, active: bool = False) -> None:
        """Write a segment with its indexes; the active one has no last entry in its time index yet."""
        self.log(base).write_bytes(b"".join(b.data for b in batches))
        builder = IndexBuilder(base, 0)
        for b in batches:
            builder.append([b.last_offset], [len(b.data)], [b.max_timestamp])
        offset_index, time_index = builder.finish()
        (self.folder / segment_file(base, "index")).write_bytes(offset_index)
        (self.folder / segment_file(base, "timeindex")).write_bytes(time_index[:-12] if active else time_index)

    def positions(self, base: int) -> list[int]:
        """Return the positions at which the batches of a healthy segment begin."""
        data, out = self.log(base).read_bytes(), []
        while sum(out[-1:]) < len(data):
            at = out[-1] + 12 + struct.unpack_from(">i", data, out[-1] + 8)[0] if out else 0
            if at >= len(data):
                break
            out.append(at)
        return out

    def copy_to(self, root: Path) -> Partition:
        shutil.copytree(self.root, root)
        return Partition(root, root.parent / "store")

    def listed(self) -> ArchivedPartition:
        """Return the partition as the archive's listing has it."""
        return list_archive(open_root(str(self.root)), lambda _: True).partitions["t", 0]

    def plan(self, *, sealed: bool = False) -> PartitionPlan:
        archived = self.listed()
        assert archived.problem is None, archived.problem
        return made_plan(
            topic="t", partition=0, store_uri=str(self.store), folder="segments/t-0/1-run",
            high_watermark=None, sealed=sealed, force=True, dry_run=False, now_ms=NOW_MS,
            settings=CleanSettings(index_interval_bytes=0, max_decompressed_batch_bytes=BOMB_LIMIT),
            limits=self.limits, secret=(11, 12), given=input_from_archive(archived),  # type: ignore[arg-type]
        )  # fmt: skip

    def compact(self, *, sealed: bool = False, plan: PartitionPlan | None = None) -> PartitionResult:
        """Compact the partition. The archive must not change; an uncleanable partition must leave no files."""
        plan = plan or self.plan(sealed=sealed)
        before = read_tree(self.root)
        shutil.rmtree(self.store, ignore_errors=True)
        result = compact_partition(plan)
        assert read_tree(self.root) == before
        if result.status == "uncleanable":
            left = [p for p in self.store.rglob("*") if p.is_file()] if self.store.exists() else []
            assert not left
        return result

    def verify(self, *, sealed: bool = False, chunk_bytes: int = 8 << 20) -> CheckResult:
        """Verify the partition; no byte may change."""
        before = read_tree(self.root)
        plan = plan_archived(self.listed(), Config(), sealed=sealed)
        result = check_partition(
            changed(plan, index_interval_bytes=0, max_batch_bytes=BOMB_LIMIT, chunk_bytes=chunk_bytes)
        )
        assert read_tree(self.root) == before
        return result

    def cleaned_bytes(self, result: PartitionResult) -> bytes:
        """Return what the compaction kept, without the active segment."""
        return b"".join((self.store / s.path).read_bytes() for s in result.log.segments if s.root == "store")


def edit(path: Path, position: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    whole = bytearray(path.read_bytes())
    assert position + len(data) <= len(whole)
    whole[position : position + len(data)] = data
    path.write_bytes(bytes(whole))


def flip(path: Path, position: int, bit: int = 0) -> None:
    edit(path, position, bytes([path.read_bytes()[position] ^ 1 << bit]))


def resign(path: Path, position: int) -> None:
    """Give the batch at `position` a checksum that fits its present bytes."""
    data = path.read_bytes()
    size = 12 + struct.unpack_from(">i", data, position + 8)[0]
    edit(path, position + 17, struct.pack(">I", google_crc32c.value(data[position + 21 : position + size])))


def replace_body(path: Path, position: int, body: bytes) -> None:
    """Replace the body of the batch at `position`, with length and checksum that fit; later bytes move."""
    data = path.read_bytes()
    end = position + 12 + struct.unpack_from(">i", data, position + 8)[0]
    head = data[position : position + 8] + struct.pack(">i", 49 + len(body)) + data[position + 12 : position + 61]
    path.write_bytes(data[:position] + head + body + data[end:])
    resign(path, position)
    for kind in ("index", "timeindex"):
        path.with_suffix(f".{kind}").unlink(missing_ok=True)  # positions have moved
