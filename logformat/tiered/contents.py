"""Contents of a remote segment: its log and side files as a broker had them, independent of the layout.

Kafka's LocalTieredStorage and Pinterest's uploader keep files as they are. Aiven's plugin cuts the log into chunks of
one size, each compressed on its own or not at all, and joins the side files; a manifest in JSON states where each is:

| field of the manifest | meaning |
|---|---|
| `version` | "1" |
| `chunkIndex.originalChunkSize`, `.originalFileSize` | bytes of a chunk (the last may be shorter), and of the log |
| `chunkIndex.type` | "fixed" or "variable" |
| `.transformedChunkSize`, `.finalTransformedChunkSize` | if fixed: bytes of stored chunks, and of the last |
| `.transformedChunks` | if variable: the same for each chunk, base64 of zstd of `_sizes` |
| `segmentIndexes.<offset, timestamp, ...>` | `position` and `size` in `.indexes`, see `_INDEXES` |
| `compression` | whether chunks are zstd frames |
| `encryption` | present if the plugin encrypted all objects: not readable without its key |
| `remoteLogSegmentMetadata.endOffset` | last offset, as the broker gave it |

Source: SegmentManifestV1, AbstractChunkIndex, ChunkSizesBinaryCodec (Aiven's plugin 1.1.1).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError, readable
from lastkey.logformat.side_files.small_files import most_side_bytes, read_small_file
from lastkey.logformat.storage.regular_files import open_input
from lastkey.logformat.storage.seekable import SeekableFile
from lastkey.logformat.tiered.objects import EPOCHS, INDEXES, MANIFEST, UploadedCopy

_INDEXES: Final = {
    names.INDEX: "offset", names.TIME_INDEX: "timestamp", names.TXN_INDEX: "transaction",
    names.SNAPSHOT: "producerSnapshot", EPOCHS: "leaderEpoch",
}  # fmt: skip
_ZSTD: Final = pa.Codec("zstd")
_MOST_CHUNKS: Final = 1 << 22  # maximum of chunks of 512 bytes in a log of 2 GiB
_MOST_CHUNK_BYTES: Final = 1 << 30


class Contents:
    """Sizes of the files of one copy, and their bytes on demand. filesystem: has the objects of the copy."""

    def __init__(self, filesystem: Any, copy: UploadedCopy) -> None:
        self.filesystem, self.copy = filesystem, copy

    @cached_property
    def manifest(self) -> Manifest | None:
        """The manifest of a copy that has one."""
        info = self.copy.objects.get(MANIFEST)
        return None if info is None else read_manifest(read_small_file(self.filesystem, info.path), info.path)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Bytes of each file, by its kind."""
        if self.manifest is None:
            return {kind: int(info.size) for kind, info in self.copy.objects.items() if kind != INDEXES}
        sizes = {names.LOG: self.manifest.size} if names.LOG in self.copy.objects else {}
        indexes = self.manifest.indexes if INDEXES in self.copy.objects else {}
        return sizes | {kind: size for kind, (_, size) in indexes.items() if size}

    def open(self, kind: str) -> Any:
        """Open a file for reading. Raise FileNotFoundError, OSError or LogFormatError."""
        if kind not in self.sizes:
            raise FileNotFoundError(f"{self.copy.name}.{kind}")
        manifest = self.manifest
        if manifest is None:
            return open_input(self.filesystem, self.copy.objects[kind].path)
        info = self.copy.objects[names.LOG if kind == names.LOG else INDEXES]
        stored = open_input(self.filesystem, info.path)
        if kind == names.LOG:
            _check_size(info, manifest.ends[-1] if len(manifest.ends) else 0)
            return stored if not manifest.compressed else pa.PythonFile(_Chunks(stored, info.path, manifest), "r")
        position, size = manifest.indexes[kind]
        with stored:
            _check_size(info, position + size)
            stored.seek(position)
            return pa.BufferReader(bytes(stored.read(size)))

    def read(self, kind: str) -> bytes:
        """Return all bytes of a side file."""
        with readable(f"{self.copy.name}.{kind}"), self.open(kind) as file:
            return bytes(file.read(self.sizes[kind]))


@dataclass(frozen=True)
class Manifest:
    """Description of a segment by Aiven's plugin."""

    size: int  # bytes of the log
    chunk_size: int  # bytes of the log in each chunk but the last
    ends: NDArray[np.int64]  # ends of the stored chunks in their object
    compressed: bool
    indexes: dict[str, tuple[int, int]]  # kind -> position and size in the object of side files
    end_offset: int | None  # the log's last offset; None in manifests of old versions


def read_manifest(data: bytes, path: str) -> Manifest:
    """Parse a manifest. Raise kind "side_file" if it is none, "unreadable" if its segment is encrypted."""
    try:
        content = json.loads(data)
        version, encryption = str(content["version"]), content.get("encryption")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        found = str(error) or "other JSON"
        raise LogFormatError("side_file", path, 0, "a segment's manifest in JSON", found) from error
    if version != "1":
        raise LogFormatError("side_file", path, 0, "a manifest of version 1", f"version {version}")
    if encryption is not None:
        hint = "Lastkey holds no keys: copy the topic into an archive without encryption"
        raise LogFormatError("unreadable", path, 0, "a segment without encryption", "an encrypted one", hint=hint)
    try:
        chunks = content["chunkIndex"]
        size, chunk_size = int(chunks["originalFileSize"]), int(chunks["originalChunkSize"])
        if size < 0 or chunk_size < 1 or -(-size // chunk_size) > _MOST_CHUNKS:
            raise ValueError(f"a log of {size} bytes in chunks of {chunk_size}")
        n = -(-size // chunk_size)
        if chunks["type"] == "fixed":
            sizes = np.full(n, int(chunks["transformedChunkSize"]), np.int64)
            sizes[-1:] = int(chunks["finalTransformedChunkSize"])
        elif chunks["type"] == "variable":
            sizes = _sizes(base64.b64decode(chunks["transformedChunks"], validate=True))
        else:
            raise ValueError(f"chunks of type {chunks['type']!r}")
        if len(sizes) != n or (n and int(sizes.min()) < 0):
            raise ValueError(f"the sizes of {len(sizes)} chunks, of {n} in the log")
        compressed = bool(content["compression"])
        if not compressed and int(sizes.sum()) != size:
            raise ValueError(f"{int(sizes.sum())} stored bytes without compression, of a log of {size}")
        if compressed and min(size, chunk_size) > _MOST_CHUNK_BYTES:
            raise ValueError(f"compressed chunks of {chunk_size} bytes")
        stated = {kind: content["segmentIndexes"].get(field) for kind, field in _INDEXES.items()}
        indexes = {kind: (int(at["position"]), int(at["size"])) for kind, at in stated.items() if at is not None}
        for kind, (position, length) in indexes.items():
            if position < 0 or not 0 <= length <= most_side_bytes(f"x.{kind}", size):
                raise ValueError(f"{_INDEXES[kind]} with {length} bytes at {position}")
        end = (content.get("remoteLogSegmentMetadata") or {}).get("endOffset")
        return Manifest(size, chunk_size, np.cumsum(sizes), compressed, indexes, None if end is None else int(end))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, pa.ArrowException, OSError) as error:
        raise LogFormatError("side_file", path, 0, "the chunks and indexes of a segment", str(error)) from error


def _sizes(data: bytes) -> NDArray[np.int64]:
    """Return the sizes of chunks. All numbers are big-endian: count i4; base i4, width u1, count - 1 values of `width`
    bytes to add to the base, and none for a count of 0 or 1; last size i4.
    """
    most = 4 * _MOST_CHUNKS + 13
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        raw = bytes(stream.read(most + 1))
    if not 4 <= len(raw) <= most:
        raise ValueError(f"{len(raw)} bytes of chunk sizes")
    count = int.from_bytes(raw[:4], "big")
    width = raw[8] if count > 1 and len(raw) > 8 else 0
    if width > 4 or len(raw) != (9 + (count - 1) * width + 4 if count > 1 else 4 + 4 * count):
        raise ValueError(f"{len(raw)} bytes for the sizes of {count} chunks")
    sizes = np.zeros(count, np.int64)
    if count > 1:
        for byte in np.frombuffer(raw, np.uint8, (count - 1) * width, 9).reshape(count - 1, width).T:
            sizes[:-1] = sizes[:-1] << 8 | byte
        sizes[:-1] += int.from_bytes(raw[4:8], "big")
    sizes[-1:] = int.from_bytes(raw[-4:], "big")
    return sizes


class _Chunks(SeekableFile):
    """A log in chunks that are zstd frames. One chunk at a time is in memory."""

    def __init__(self, stored: Any, path: str, manifest: Manifest) -> None:
        super().__init__(manifest.size)
        self._stored, self._path, self._manifest = stored, path, manifest
        self._number, self._chunk = -1, memoryview(b"")

    def fill(self, position: int, out: memoryview) -> int:
        done = 0
        while done < len(out) and position + done < self._size:
            number, inside = divmod(position + done, self._manifest.chunk_size)
            part = self._read_chunk(number)[inside : inside + len(out) - done]
            out[done : done + len(part)] = part
            done += len(part)
        return done

    def close(self) -> None:
        if not self.closed:
            self._stored.close()
        super().close()

    def _read_chunk(self, number: int) -> memoryview:
        if number != self._number:
            manifest = self._manifest
            begin, end = (int(manifest.ends[i]) if i >= 0 else 0 for i in (number - 1, number))
            size = min(manifest.chunk_size, manifest.size - number * manifest.chunk_size)
            self._stored.seek(begin)
            data = self._stored.read(end - begin)
            try:
                self._chunk = memoryview(_ZSTD.decompress(data, size)).cast("B")
            except (OSError, pa.ArrowException) as error:
                found = f"chunk {number} in bytes {begin} to {end}: {error}"
                raise OSError(f"{self._path}: expected a zstd frame of {size} bytes, found {found}") from error
            if len(self._chunk) != size:
                raise OSError(f"{self._path}: expected {size} bytes in chunk {number}, found {len(self._chunk)}")
            self._number = number
        return self._chunk


def _check_size(info: Any, wanted: int) -> None:
    if info.size < wanted:
        expected = f"{wanted} bytes, as the manifest says"
        raise LogFormatError("changed", info.path, int(info.size), expected, "end of file")
