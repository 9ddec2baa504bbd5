"""Small text files of a log directory and of a partition's folder, parsed and written, and the leader epochs' rules.

A checkpoint is lines: the version (0), the number of entries, the entries; an empty file has none. Kafka writes the
entries of an offset checkpoint in the order of a hash map, so compare them as maps. The callers read and write the
files; a broker replaces one by writing `<name>.tmp` and renaming it.

Source: Kafka's CheckpointFile, OffsetCheckpointFile, LeaderEpochCheckpointFile, LeaderEpochFileCache,
PartitionMetadataFile, MetaProperties and CleanShutdownFileHandler (4.3.0).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.errors import LogFormatError

EpochEntry = tuple[int, int]  # leader epoch, its start offset

_VERSION: Final = "0"
_UUID_CHARACTERS: Final = 22  # url-safe base64 of 16 bytes, without padding
_SPACE: Final = re.compile(r"\s+", re.ASCII)  # Java's \s, without the other spaces that Python knows
_INTEGER: Final = re.compile(r"\s*-?[0-9]{1,19}\s*", re.ASCII)
_ESCAPE: Final = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")


def read_offset_checkpoint(data: bytes, path: str) -> dict[tuple[str, int], int]:
    """Parse any of names.OFFSET_CHECKPOINTS to (topic, partition) -> offset. Raise kind "side_file" on failure."""
    offsets: dict[tuple[str, int], int] = {}
    for position, fields in _entries(data, path, 3):
        topic, partition, offset = fields
        offsets[topic, _integer(partition, position, path, 32)] = _integer(offset, position, path)
    return offsets


def write_offset_checkpoint(offsets: Mapping[tuple[str, int], int]) -> bytes:
    """Return the bytes of an offset checkpoint, sorted by topic and partition."""
    return _write(f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))


def read_leader_epochs(data: bytes, path: str) -> list[EpochEntry]:
    """Parse a `leader-epoch-checkpoint` to (epoch, start offset), rising in both. Raise kind "side_file" if it is not
    one.

    An entry that contradicts earlier ones replaces them, as when a broker loads the file: `assign` adds each entry.
    """
    epochs: list[EpochEntry] = []
    for position, (epoch, start) in _entries(data, path, 2):
        entry = _integer(epoch, position, path, 32), _integer(start, position, path)
        if min(entry) < 0:
            raise LogFormatError("side_file", path, position, "an epoch and an offset from 0 on", f"{epoch} {start}")
        epochs = assign(epochs, *entry)
    return epochs


def write_leader_epochs(epochs: Sequence[EpochEntry]) -> bytes:
    """Return the bytes of a `leader-epoch-checkpoint`."""
    return _write(f"{epoch} {start}" for epoch, start in epochs)


def assign(epochs: Sequence[EpochEntry], epoch: int, start_offset: int) -> list[EpochEntry]:
    """Return the epochs with a new one that begins at `start_offset`, without later entries that contradict it.

    Rule: LeaderEpochFileCache.assign. The epochs stay the same if `epoch` is the latest one and does not begin earlier
    now.
    """
    if epoch < 0 or start_offset < 0:
        raise ValueError(f"not a leader epoch and its start: {epoch}, {start_offset}")
    kept = list(epochs)
    if kept and kept[-1][0] == epoch and start_offset >= kept[-1][1]:
        return kept
    while kept and (kept[-1][0] >= epoch or kept[-1][1] >= start_offset):
        kept.pop()
    return [*kept, (epoch, start_offset)]


def assign_batches(
    epochs: Sequence[EpochEntry], leader_epochs: NDArray[np.int32], base_offsets: NDArray[np.int64]
) -> list[EpochEntry]:
    """Return the epochs after batches as LogSegment.recover takes them: each new epoch begins with its first batch.

    leader_epochs: int[n], partition leader epoch of each batch in offset order; -1, as in legacy batches, is skipped.
    base_offsets: int64[n]. In a compacted log the first remaining batch of an epoch can begin after its true start, and
    epochs may be missing: keep the archived file if there is one.
    """
    latest = epochs[-1][0] if epochs else -1
    before = np.maximum.accumulate(np.concatenate([[latest], leader_epochs]))[:-1]
    result = list(epochs)
    for i in np.flatnonzero(leader_epochs > before):  # a loop over epochs, not batches
        result = assign(result, int(leader_epochs[i]), int(base_offsets[i]))
    return result


def truncate_from_start(epochs: Sequence[EpochEntry], start_offset: int) -> list[EpochEntry]:
    """Return the epochs of a log that now begins at `start_offset`: its epoch starts there, older ones are removed."""
    older = [epoch for epoch, start in epochs if start <= start_offset]
    kept = [entry for entry in epochs if entry[1] > start_offset]
    return [(older[-1], start_offset), *kept] if older else kept


def truncate_from_end(epochs: Sequence[EpochEntry], end_offset: int) -> list[EpochEntry]:
    """Return the epochs of a log that now ends at `end_offset`, without those that begin there or later."""
    return [entry for entry in epochs if entry[1] < end_offset]


def with_earlier(epochs: Sequence[EpochEntry], earlier: Sequence[EpochEntry]) -> list[EpochEntry]:
    """Return the epochs, completed with `earlier` entries: the log may have lost its beginning since those were
    written.
    """
    if not epochs:
        return list(earlier)
    first, start = epochs[0]
    began = [begin for epoch, begin in earlier if epoch == first and begin < start]  # moved by the log start
    older = [entry for entry in earlier if entry[0] < first and entry[1] < start]
    return [*older, (first, began[0] if began else start), *epochs[1:]]


def read_partition_metadata(data: bytes, path: str) -> UUID:
    """Read the topic id in a `partition.metadata`. Raise kind "side_file" if there is none."""
    lines = dict(line.split(": ", 1) for line in _text(data, path).splitlines() if ": " in line)
    if lines.get("version") != _VERSION:
        raise LogFormatError("side_file", path, 0, "version: 0", str(lines.get("version")))
    return parse_uuid(lines.get("topic_id", ""), path)


def write_partition_metadata(topic_id: UUID) -> bytes:
    """Return the bytes of a `partition.metadata`; as in Kafka, its last line has no line end."""
    return f"version: {_VERSION}\ntopic_id: {format_uuid(topic_id)}".encode()


def parse_uuid(text: str, path: str) -> UUID:
    """Parse a Kafka id, 22 characters of url-safe base64. Raise kind "side_file" if it is not one."""
    try:
        raw = base64.b64decode(text + "==", altchars=b"-_", validate=True)
    except ValueError:  # binascii.Error too
        raw = b""
    if len(text) != _UUID_CHARACTERS or len(raw) != 16:
        raise LogFormatError("side_file", path, 0, "an id of 22 characters", repr(text))
    return UUID(bytes=raw)


def format_uuid(value: UUID) -> str:
    """Return a Kafka id as text."""
    return base64.urlsafe_b64encode(value.bytes).decode()[:_UUID_CHARACTERS]


@dataclass(frozen=True)
class MetaProperties:
    """The broker and cluster that a log directory belongs to."""

    version: int  # 0: of a ZooKeeper cluster; 1
    node_id: int  # -1: none
    cluster_id: str  # "": none
    directory_id: str = ""


def read_meta_properties(data: bytes, path: str) -> MetaProperties:
    """Parse a `meta.properties` of version 0 or 1. Raise kind "side_file" if it is not one."""
    properties: dict[str, str] = {}
    for line in _text(data, path).splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            parts = re.fullmatch(r"((?:\\.|[^\\\s:=])+)\s*[:=]?\s*(.*)", stripped)
            if parts is not None:
                properties[_unescape(parts[1])] = _unescape(parts[2])
    version = properties.get("version", "") or "none"
    if version not in ("0", "1"):
        raise LogFormatError("side_file", path, 0, "version 0 or 1", version)
    node_id = properties.get("broker.id" if version == "0" else "node.id", "-1")
    return MetaProperties(
        int(version),
        _integer(node_id, 0, path, 32),
        properties.get("cluster.id", ""),
        properties.get("directory.id", ""),
    )


def write_clean_shutdown() -> bytes:
    """Return the bytes of a `.kafka_cleanshutdown`, which shows a broker that the logs need no recovery."""
    return b'{"version":0,"brokerEpoch":-1}'  # the epoch is unknown


def _entries(data: bytes, path: str, n_fields: int) -> list[tuple[int, list[str]]]:
    """Return the byte position and the fields of each entry of a checkpoint."""
    lines = _text(data, path).split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return []
    if lines[0].strip() != _VERSION:
        raise LogFormatError("side_file", path, 0, "checkpoint version 0", repr(lines[0][:40]))
    if len(lines) == 1:
        return []
    position = len(lines[0].encode()) + 1
    count = _integer(lines[1], position, path)
    position += len(lines[1].encode()) + 1
    entries = []
    for line in lines[2:]:
        fields = [field for field in _SPACE.split(line) if field]
        if len(fields) != n_fields:
            raise LogFormatError("side_file", path, position, f"{n_fields} fields", repr(line[:80]))
        entries.append((position, fields))
        position += len(line.encode()) + 1
    if count != len(entries):
        position = min(position, len(data))  # the last line may have no line end
        raise LogFormatError("side_file", path, position, f"{count} entries", f"{len(entries)}")
    return entries


def _write(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join(f"{line}\n" for line in (_VERSION, str(len(entries)), *entries)).encode()


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise LogFormatError("side_file", path, error.start, "UTF-8 text", f"byte {data[error.start]:#04x}") from error


def _integer(text: str, position: int, path: str, bits: int = 64) -> int:
    """Parse a number that fits Java's long or, with 32 bits, its int. Raise kind "side_file" if it does not."""
    if _INTEGER.fullmatch(text) is None or not -(2 ** (bits - 1)) <= int(text) < 2 ** (bits - 1):
        raise LogFormatError("side_file", path, position, f"an integer of {bits} bits", repr(text[:40]))
    return int(text)


def _unescape(text: str) -> str:
    """Resolve Java properties' escapes; in Kafka's own files only ":" and "=" are escaped."""
    named = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def character(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else named.get(code, code)

    return _ESCAPE.sub(character, text)
