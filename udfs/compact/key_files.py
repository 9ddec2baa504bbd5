"""Files of a run's own, by which the tasks of one partition hand on key hashes and bits: written once, read in slices.

They lie in the store beside the generation's folder, for executors share nothing else, and go when the partition is
done; so do the folders in which new segments wait. What a run that was killed leaves is `vacuum`'s, as all of it. Each
slice is held against a CRC-32C of what was written: a bit that is lost here would be a record that is lost.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final

import numpy as np
from pyarrow import fs as pafs

from logformat.batches.chunks import read_exactly
from logformat.errors import LogFormatError
from logformat.primitives.crc32c import crc32c_extend
from udfs.compact.plan import PartitionPlan
from udfs.storage import Root, make_private, open_root, opened

# Behind the generation's folder, as behind those of tasks that are tried again; larger than the number of any task
_KEYS: Final = 9999999999999999999


@dataclass(frozen=True)
class Slice:
    """Bytes of a file that was written, and their CRC-32C."""

    path: str
    position: int
    size: int
    checksum: int


class KeyFile:
    """A file that is being written."""

    def __init__(self, plan: PartitionPlan, name: str) -> None:
        """name: unique, also among the tries of one task."""
        root, folder = open_root(plan.store_uri), key_folder(plan)
        root.filesystem.create_dir(root.full(folder), recursive=True)
        self.path = f"{folder}/{name}"
        make_private(root, self.path)
        self._stream: Any = root.filesystem.open_output_stream(root.full(self.path), compression=None)
        self.size = 0

    def __enter__(self) -> KeyFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def append(self, raw: np.ndarray) -> None:
        """Write uint8[], of which the caller makes a slice."""
        self._stream.write(raw.data)
        self.size += len(raw)

    def write(self, data: np.ndarray) -> Slice:
        """Write an array's bytes, as a slice."""
        raw, start = data.reshape(-1).view(np.uint8), self.size
        self.append(raw)
        return Slice(self.path, start, len(raw), crc32c_extend(0, raw))


def read_slice(root: Root, part: Slice) -> np.ndarray:
    """A slice, uint8. Raises LogFormatError kind "readback" where it is not what was written."""
    raw = np.empty(part.size, np.uint8)
    with opened(root, part.path) as file:
        read_exactly(file, part.path, part.position, raw)
    check(part, crc32c_extend(0, raw))
    return raw


def check(part: Slice, found: int) -> None:
    """That a slice's bytes have its checksum."""
    if found != part.checksum:
        raise LogFormatError(
            "readback",
            part.path,
            part.position,
            f"{part.size} bytes with CRC-32C {part.checksum:#010x}, as they were written",
            f"{found:#010x}",
        )


def key_folder(plan: PartitionPlan) -> str:
    """Where the partition's key files lie, relative to the store."""
    return f"{plan.folder}.{_KEYS}"


def in_own_folder(plan: PartitionPlan) -> PartitionPlan:
    """The plan with a folder beside the generation's, in which a new segment waits: nobody else writes there, no other
    try of the same task either. One that goes on after another one counted would else write to what was committed.
    """
    return replace(plan, folder=f"{plan.folder}.{secrets.randbelow(_KEYS)}")


def remove_key_files(plan: PartitionPlan) -> None:
    """Take away all that lies beside the generation's folder under its name; what cannot be removed is vacuum's."""
    store = open_root(plan.store_uri)
    above, _, name = plan.folder.rpartition("/")
    with suppress(OSError):
        for info in store.filesystem.get_file_info(pafs.FileSelector(store.full(above), allow_not_found=True)):
            if info.type == pafs.FileType.Directory and info.base_name.startswith(f"{name}."):
                store.filesystem.delete_dir(info.path)
