"""The segments that a group of sources becomes: one, or several if rebuilt batches outgrow a `.log`.

Survivors of a group come in two ways, with the same bytes out. In one task, `clean_segment.clean_backwards` decides
with the key table while it reads from the end, and its pieces wait in a `piece_stack.PieceStack`. In several tasks,
`clean_segment.clean_forwards` gets the survivors from outside.

A rebuilt batch can be larger than its source, and each message of magic 0 or 1 becomes a batch. So a group of sources
can need more than `PartitionPlan.max_log_bytes`. The next batch then begins another segment, as in a broker that rolls:
the new base is the offset behind the last batch. That base divides the offsets of the group, and the entries of its
transaction index: each entry stands in the segment of its ABORT marker. Nothing is decided again, because the
analysis has settled all transactions before. (The cleaners of Kafka 4.3 and 4.4 fail here, KAFKA-20036. Kafka's first
repair filtered the batches at the border twice, and its second look took aborted records for committed ones.)
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Final

import numpy as np

from lastkey.logformat.batches.chunks import ChunkBuffer
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.side_files import transaction_index
from lastkey.udfs.compact.clean.clean_batches import OUT_BATCH
from lastkey.udfs.compact.output.place_segments import folder_of, write_indexes
from lastkey.udfs.compact.output.segment_output import ReadBack, SegmentOutput, manifest_row, read_whole
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.compact.scan.analyse import Group
from lastkey.udfs.compact.scan.segment_facts import scan_written, write_facts
from lastkey.udfs.segments import OutputSegment
from lastkey.udfs.storage import file_size, flushing

_SMALL: Final = 8 << 20


def batches_that_fit(sizes: np.ndarray, room: int) -> int:
    """Return how many batches fit into `room` bytes, from the first one on. sizes: int64[n]."""
    return int(np.searchsorted(np.cumsum(sizes), room, side="right"))


class GroupOutput:
    """Writer of a group's survivors as a stream. A group without survivors leaves no file, nor does a dry run."""

    def __init__(self, plan: PartitionPlan, group: Group, kept_aborts: np.ndarray) -> None:
        """kept_aborts: transaction_index.ENTRY[k] of the log."""
        self._plan, self._kept_aborts = plan, kept_aborts
        self._groups = [group]  # of each segment
        self._rows: list[list[np.ndarray]] = [[]]  # OUT_BATCH[n] of each segment
        self._outputs: list[SegmentOutput] = []
        self._later = np.empty(0, OUT_BATCH)  # batches behind those of the current segment
        self._size = 0  # of the current segment, with `_due`
        self._due = 0  # bytes of its batches that have not come yet

    def append(self, rows: np.ndarray, data: np.ndarray) -> None:
        """Write bytes. rows: OUT_BATCH[n], batches that begin in these bytes or in those of the next calls, whose rows
        are empty then.
        """
        later = rows if len(rows) else self._later
        while True:
            now = later[:0]
            if not self._due and len(later):
                n = batches_that_fit(later["size"], self._plan.run.max_log_bytes - self._size)
                if not n and self._size:
                    self._roll()
                    continue
                now, later = later[: max(n, 1)], later[max(n, 1) :]
                self._due = int(now["size"].sum())
                self._size += self._due
            part, data = data[: self._due], data[self._due :]
            if len(now) or len(part):
                self._write(now, part)
            self._due -= self._due if self._plan.run.dry_run else len(part)
            if self._due or not len(later):
                break
        self._later = later

    def finish(self, digest: int, buffer: ChunkBuffer) -> list[OutputSegment]:
        """Close the segments, write their indexes, and read them back. digest: of the rebuilt records of all."""
        if not self._outputs:
            none = np.empty(0, OUT_BATCH)
            return [
                manifest_row(group, "", np.concatenate([none, *rows]), 0, (0, 0, 0))
                for group, rows in zip(self._groups, self._rows, strict=True)
            ]
        segments, found = [], 0
        for output, group in zip(self._outputs, self._groups, strict=True):
            segment, of_segment = self._finish(output, group, buffer)
            segments.append(segment)
            found = (found + of_segment) & (2**64 - 1)
        if found != digest:
            raise LogFormatError("readback", segments[0].path, 0, f"records {digest:#018x}", f"{found:#018x}")
        return segments

    def _write(self, rows: np.ndarray, data: np.ndarray) -> None:
        if len(rows):
            self._rows[-1].append(rows)
        if self._plan.run.dry_run:
            return
        if len(self._outputs) < len(self._groups):
            base, plan = self._groups[-1].base_offset, self._plan
            self._outputs.append(SegmentOutput(folder_of(plan), plan.run.folder, base, plan.policy.settings))
        self._outputs[-1].append(rows, data)

    def _roll(self) -> None:
        base, group = int(self._rows[-1][-1]["last_offset"][-1]) + 1, self._groups[-1]
        self._groups[-1:] = [replace(group, next_offset=base), replace(group, base_offset=base)]
        self._rows.append([])
        self._size = 0

    def _finish(self, output: SegmentOutput, group: Group, buffer: ChunkBuffer) -> tuple[OutputSegment, int]:
        """Close a written segment, write its indexes, and read it back; by yield, keep the facts that this shows.
        Return the manifest's row, and the digest of the rebuilt records.
        """
        plan, store, aborts = self._plan, output.root, self._kept_aborts
        rows, offset_index, time_index = output.close()
        inside = (aborts["last_offset"] >= group.base_offset) & (aborts["last_offset"] < group.next_offset)
        txn_index = transaction_index.write(aborts[inside])
        checksums = write_indexes(store, plan.run.folder, group.base_offset, offset_index, time_index, txn_index)
        back = ReadBack(output.path, rows, plan.policy.settings.max_decompressed_batch_bytes)
        sizes = (len(offset_index), len(time_index), len(txn_index))
        row = manifest_row(group, output.path, rows, output.checksum, sizes, checksums)
        # A large log is flushed at once, so that a task does not end with all of them; a small one with its folder.
        with flushing(store, output.path) if output.size > _SMALL else nullcontext():
            if not plan.policy.by_yield:
                read_whole(store, output.path, buffer, back)
                return row, back.check(output.checksum)
            back.check_size(file_size(store, output.path))
            scan, hashes = scan_written(plan, row, buffer, back.see)
            digest = back.check(output.checksum)
            return replace(row, facts_bytes=write_facts(plan, row, scan, hashes)), digest
