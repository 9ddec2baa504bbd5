"""Keys of the records that a run by yield cleaned first, for the older segments that it left: a later run drops what
these keys supersede there, without reading the newer segments again.

A file holds exact hashes, 16 bytes a key: SLOT[n]. The manifest row of the segment with the first of these offsets
names it, for as long as a segment before it has not been held against it (`with_pending`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Final

import numpy as np

from lastkey.logformat.batches.chunks import read_exactly
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.names import MAX_OFFSET
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.udfs.compact.clean.slot_kernels import SLOT
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.segments import OutputSegment
from lastkey.udfs.storage import make_folder, make_private, open_root, opened, put_file
from lastkey.udfs.yields.key_filter import hash_key_id

_KEYS: Final = ".keys"


@dataclass(frozen=True)
class PendingKeys:
    """Keys of the records in a range of offsets."""

    first: int
    until: int
    path: str  # below the store
    n: int
    checksum: int  # CRC-32C of what the hashes depend on, and the file


def write_keys(plan: PartitionPlan, first: int, until: int, keys: np.ndarray) -> PendingKeys:
    """Write SLOT[n], and read it back."""
    store = make_folder(open_root(plan.run.store_uri), plan.run.folder)
    path, raw = f"{plan.run.folder}/{first:020}{_KEYS}", keys.view(np.uint8)
    make_private(store, path)
    put_file(store, path, raw.data)
    written = PendingKeys(first, until, path, len(keys), crc32c_extend(_seed(plan), raw))
    read_keys(plan, written)
    return written


def read_keys(plan: PartitionPlan, pending: PendingKeys) -> np.ndarray:
    """Return SLOT[n]. Raises LogFormatError if they cannot be read, or are not the written ones."""
    size = pending.n * SLOT.itemsize
    with opened(open_root(plan.run.store_uri), pending.path) as file:
        if file.size() != size:
            raise LogFormatError("readback", pending.path, 0, f"{size} bytes, as written", f"{file.size()}")
        raw = np.empty(size, np.uint8)
        read_exactly(file, pending.path, 0, raw)
    found = crc32c_extend(_seed(plan), raw)
    if found != pending.checksum:
        expected = f"CRC-32C {pending.checksum:#010x}, as written"
        raise LogFormatError("readback", pending.path, 0, expected, f"{found:#010x}")
    return raw.view(SLOT)


def _seed(plan: PartitionPlan) -> int:
    """Return a CRC-32C to begin with, which differs for hashes under another key."""
    return crc32c_extend(0, np.frombuffer(hash_key_id(plan.run.secret), np.uint8))


def pending_of(rows: Iterable[OutputSegment | None]) -> list[PendingKeys]:
    """Return the key files that rows of a manifest name, by offset."""
    told = [PendingKeys(*one) for row in rows if row is not None for one in json.loads(row.key_files or "[]")]
    return sorted(told, key=lambda one: one.first)


def known_from(pending: Sequence[PendingKeys], end: int) -> int:
    """Return the lowest offset from which key files, by offset, hold all keys up to `end`."""
    for one in reversed(pending):
        if one.until != end:
            break
        end = one.first
    return end


def with_pending(rows: Sequence[OutputSegment], pending: Sequence[PendingKeys]) -> list[OutputSegment]:
    """Return a manifest's rows, by offset, with the key files that are still needed: those with a segment in front of
    them that was not held against them.
    """
    out, least = [], MAX_OFFSET  # of `applied_to` so far
    for row in rows:
        mine = [one for one in pending if row.base_offset <= one.first < row.next_offset]
        needed = [astuple(one) for one in mine if least <= one.first]
        out.append(replace(row, key_files=json.dumps(needed) if needed else None))
        least = min(least, row.applied_to) if row.applied_to >= 0 else least
    return out
