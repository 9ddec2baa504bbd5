"""Files of one run, through which tasks of a partition exchange hashes, bits and records: written once, read in slices.

They lie in the store beside the generation's folder, because executors share nothing else, and are deleted when the
partition is done; so are the folders in which new segments wait. `vacuum` deletes those of a killed run. A dry run has
them in a temporary folder. A reader checks each slice against the CRC-32C of the bytes that were written: a bit lost
here would be a lost record.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final

import numpy as np
from pyarrow import fs as pafs

from lastkey.logformat.batches.chunks import read_exactly
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.udfs.compact.plan import PartitionPlan
from lastkey.udfs.storage import Root, make_folder, make_private, open_output, open_root, opened

# Suffix of the folder, in the place of a task's random number and larger than any of those
_KEYS: Final = 9999999999999999999


@dataclass(frozen=True)
class Slice:
    """Bytes in a written file, and their CRC-32C."""

    path: str
    position: int
    size: int
    checksum: int


class KeyFile:
    """Writer of one key file."""

    def __init__(self, plan: PartitionPlan, name: str) -> None:
        """Create the file. name: unique, also among the tries of one task."""
        folder = key_folder(plan)
        root = make_folder(open_root(plan.run.store_uri), folder)
        self.path = f"{folder}/{name}"
        make_private(root, self.path)
        self._stream: Any = open_output(root, self.path)
        self.size = 0

    def __enter__(self) -> KeyFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def append(self, raw: np.ndarray) -> None:
        """Write uint8[] that the caller makes part of a slice."""
        self._stream.write(raw.data)
        self.size += len(raw)

    def write(self, data: np.ndarray) -> Slice:
        """Write an array's bytes; return them as a slice."""
        raw, start = data.reshape(-1).view(np.uint8), self.size
        self.append(raw)
        return Slice(self.path, start, len(raw), crc32c_extend(0, raw))


def read_slice(root: Root, part: Slice) -> np.ndarray:
    """Return a slice's bytes: uint8[]. Raises LogFormatError kind "readback" if they are not the written ones."""
    raw = np.empty(part.size, np.uint8)
    with opened(root, part.path) as file:
        read_exactly(file, part.path, part.position, raw)
    check(part, crc32c_extend(0, raw))
    return raw


def check(part: Slice, found: int) -> None:
    """Raise LogFormatError kind "readback" unless a slice's bytes have its checksum."""
    if found != part.checksum:
        raise LogFormatError(
            "readback",
            part.path,
            part.position,
            f"{part.size} bytes with CRC-32C {part.checksum:#010x}, as they were written",
            f"{found:#010x}",
        )


@contextmanager
def store_of_keys(plan: PartitionPlan) -> Iterator[PartitionPlan]:
    """Yield the plan; of a dry run, with a temporary folder in place of the store."""
    if not plan.run.dry_run:
        yield plan
        return
    with tempfile.TemporaryDirectory(prefix="lastkey-keys-") as folder:
        yield replace(plan, run=replace(plan.run, store_uri=folder))


def key_folder(plan: PartitionPlan) -> str:
    """Return the folder of the partition's key files, relative to the store."""
    return f"{plan.run.folder}.{_KEYS}"


def in_own_folder(plan: PartitionPlan) -> PartitionPlan:
    """Return the plan with a folder of its own, beside the generation's, where a new segment waits. No other task
    writes there, nor another try of the same task: a late retry must not write into a committed folder.
    """
    return replace(plan, run=replace(plan.run, folder=f"{plan.run.folder}.{secrets.randbelow(_KEYS)}"))


def remove_key_files(plan: PartitionPlan) -> None:
    """Delete all folders named after the generation's folder, with a suffix; `vacuum` deletes what this cannot."""
    store = open_root(plan.run.store_uri)
    above, _, name = plan.run.folder.rpartition("/")
    with suppress(OSError):
        for info in store.filesystem.get_file_info(pafs.FileSelector(store.full(above), allow_not_found=True)):
            if info.type == pafs.FileType.Directory and info.base_name.startswith(f"{name}."):
                store.filesystem.delete_dir(info.path)
