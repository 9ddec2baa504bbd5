"""A log from a line of text, and partitions laid out as folders.

    write_segment(folder, "a=1 b=2 a=3 | a=- c=4")

`|` separates batches, `||` segments (in `write_partition`). A record is `key=value`; `-` means null on either side
of `=`, nothing for empty; `@17` behind it is its offset, `~1234` its timestamp in ms: `a=1@17~1234`. A batch may begin
with options in braces, words of `BatchOptions` or their short forms below:

    {codec=zstd pid=7 txn} a=1 b=2 | {pid=7 commit} | {pid=8 seq=5} c=3 | {base=20 last=25} d=4 | {last=30}

    codec=NAME pid=N epoch=N seq=N leader=N   (epoch, leader: 0; seq: continues the producer's last batch)
    ts=MS  timestamp of the first record, the next ones 1 ms later   append_time=MS  horizon=MS
    base=N last=N  offsets of the batch (without records: an empty one)   max_ts=MS  of an empty batch
    txn  control  commit  abort   (the last two: a marker, with ts; coordinator=N its coordinator's epoch)

Without `ts` a record's timestamp is START_MS + its offset.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from lastkey.logformat.batches.segment import SegmentReader, open_segment
from lastkey.logformat.names import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, segment_file
from lastkey.logformat.schemas import HEADERS
from lastkey.logformat.side_files import checkpoints, producer_snapshot
from lastkey.logformat.side_files.producer_state import ProducerState
from lastkey.logformat.writing.segment_writer import SegmentWriter

START_MS = 1_700_000_000_000
TOPIC_ID = UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")

_BATCH = re.compile(r"\s*(?:\{(?P<options>[^}]*)\})?(?P<records>.*)", re.DOTALL)
_RECORD = re.compile(r"(?P<key>[^=]*)=(?P<value>[^@~]*)(?:@(?P<offset>\d+))?(?:~(?P<timestamp>-?\d+))?")
_SHORT = {
    "pid": "producer_id", "epoch": "producer_epoch", "seq": "base_sequence", "leader": "leader_epoch",
    "append_time": "append_time_ms", "horizon": "delete_horizon_ms", "base": "base_offset", "last": "last_offset",
    "max_ts": "max_timestamp", "codec": "codec", "max_bytes": "max_batch_bytes", "max_records": "max_batch_records",
}  # fmt: skip
_FLAGS = {"txn": "transactional", "control": "control", "commit": "commit", "abort": "abort"}
_OWN = {"ts", "coordinator"}

Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Row:
    """A record. No offset: the next one; no timestamp: START_MS + its offset."""

    key: bytes | None
    value: bytes | None
    offset: int | None = None
    timestamp: int | None = None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True)
class BatchText:
    """A batch of the text."""

    rows: tuple[Row, ...]
    options: dict[str, Any] = field(default_factory=dict)


def parse(text: str) -> list[BatchText]:
    """Return the batches of a text without `||`."""
    return [_parse_batch(part) for part in text.split("|") if part.strip()]


def _parse_batch(text: str) -> BatchText:
    parts = _BATCH.fullmatch(text)
    assert parts is not None, text
    options: dict[str, Any] = {}
    for word in (parts["options"] or "").split():
        name, _, value = word.partition("=")
        if name in _FLAGS:
            options[_FLAGS[name]] = True
        elif name in _OWN or name in _SHORT:
            options[_SHORT.get(name, name)] = value if name == "codec" else int(value)
        else:
            raise ValueError(f"no such option: {word!r}")
    return BatchText(tuple(_parse_record(word) for word in parts["records"].split()), options)


def _parse_record(word: str) -> Row:
    parts = _RECORD.fullmatch(word)
    if parts is None:
        raise ValueError(f"not a record: {word!r}")
    key, value = (None if parts[name] == "-" else parts[name].encode() for name in ("key", "value"))
    offset, timestamp = (None if parts[name] is None else int(parts[name]) for name in ("offset", "timestamp"))
    return Row(key, value, offset, timestamp)


def arrow_records(rows: Iterable[Row], next_offset: int = 0, ts: int | None = None) -> Any:
    """Return records as the writer wants them; ts: as the option."""
    rows = list(rows)
    offsets: list[int] = []
    for row in rows:
        offsets.append(next_offset if row.offset is None else row.offset)
        next_offset = offsets[-1] + 1
    times = [
        row.timestamp if row.timestamp is not None else START_MS + offset if ts is None else ts + i
        for i, (row, offset) in enumerate(zip(rows, offsets, strict=True))
    ]
    headers = [[{"key": key, "value": value} for key, value in row.headers] or None for row in rows]
    return pa.record_batch(
        {
            "key": pa.array([row.key for row in rows], pa.binary()),
            "value": pa.array([row.value for row in rows], pa.binary()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp_ms": pa.array(times, pa.int64()),
            "headers": pa.array(headers, HEADERS),
        }
    )


class TextWriter:
    """Writer of batches of text to a SegmentWriter, which remembers each producer's next sequence."""

    def __init__(self, sequences: dict[int, int] | None = None) -> None:
        self.sequences = {} if sequences is None else sequences

    def append(self, writer: SegmentWriter, batch: BatchText) -> np.ndarray:
        """Append a batch; return the headers of what was written, layout.BATCH[n]."""
        options = dict(batch.options)
        ts, coordinator = options.pop("ts", None), options.pop("coordinator", 0)
        commit, abort = options.pop("commit", False), options.pop("abort", False)
        pid = options.get("producer_id", -1)
        if pid >= 0:
            options.setdefault("producer_epoch", 0)
        if commit or abort:
            offset = options.pop("base_offset", writer.next_offset)
            timestamp = START_MS + offset if ts is None else ts
            return writer.append_marker(
                commit=commit, timestamp=timestamp, offset=offset, coordinator_epoch=coordinator, **options
            )
        next_offset = options.get("base_offset", writer.next_offset)
        if pid >= 0 and not options.get("control"):
            options.setdefault("base_sequence", self.sequences.get(pid, 0))
        if not batch.rows:
            options.setdefault("max_timestamp", START_MS + next_offset if ts is None else ts)
        rows = writer.append_records(arrow_records(batch.rows, next_offset, ts), **options)
        if options.get("base_sequence", -1) >= 0:
            span = int(rows["last_offset"][-1]) + 1 - int(rows["base_offset"][0])
            self.sequences[pid] = (options["base_sequence"] + span) % 2**31
        return rows


def write_segment(folder: Path | str, text: str, base_offset: int = 0, **options: Any) -> Path:
    """Write one segment with all files of SegmentWriter, whose options these are; return the path of its `.log`."""
    texts = TextWriter()
    with SegmentWriter(folder, base_offset, **options) as writer:
        for batch in parse(text):
            texts.append(writer, batch)
    return Path(writer.path)


@dataclass(frozen=True)
class PartitionFiles:
    """Files that `write_partition` made."""

    folder: Path
    bases: tuple[int, ...]
    end_offset: int

    @property
    def logs(self) -> list[Path]:
        """The `.log` of each segment."""
        return [self.folder / segment_file(base, "log") for base in self.bases]


def write_partition(
    folder: Path,
    text: str,
    *,
    base_offset: int = 0,
    bases: Mapping[int, int] | None = None,
    topic_id: UUID = TOPIC_ID,
    **options: Any,
) -> PartitionFiles:
    """Write a partition's folder as a broker leaves it at a clean stop, by a text with `||` between segments.

    A segment begins where the one before it ends, or at bases[its number]; an empty text is an empty segment with at
    least one offset of its own. Makes snapshots at the base of each segment, but none at 0 for the first one, and at
    the end; leader-epoch-checkpoint, partition.metadata. options: of SegmentWriter.
    """
    texts, producers, next_offset = TextWriter(), ProducerState(), base_offset
    epochs: list[tuple[int, int]] = []
    begun: list[int] = []
    for number, segment in enumerate(text.split("||")):
        base = (bases or {}).get(number, max([next_offset, *(begin + 1 for begin in begun)]))
        begun.append(base)
        if begun[0] < base != next_offset:  # the previous writer made the one at its end
            snapshot = producer_snapshot.write(producers.entries())
            (folder / segment_file(base, "snapshot")).write_bytes(snapshot)
        with SegmentWriter(folder, base, producers=producers, **options) as writer:
            for batch in parse(segment):
                rows = texts.append(writer, batch)
                epochs = checkpoints.assign_batches(epochs, rows["partition_leader_epoch"], rows["base_offset"])
        next_offset = writer.next_offset
    (folder / LEADER_EPOCH_CHECKPOINT).write_bytes(checkpoints.write_leader_epochs(epochs))
    (folder / PARTITION_METADATA).write_bytes(checkpoints.write_partition_metadata(topic_id))
    return PartitionFiles(folder, tuple(begun), next_offset)


def log_text(*paths: Path) -> str:
    """Return the records of `.log` files, without control records, as "0:a=1 1:b=2 | 2:a=-": offset, key, value.

    Bars separate batches. A batch without records is "[base-last]", a marker "COMMIT" or "ABORT"; `||` is between
    files.
    """
    return " || ".join(_segment_text(path) for path in paths)


def _segment_text(path: Path) -> str:
    segment = open_segment(path)
    parts = []
    for batch in segment.headers():
        if batch["control_type"] >= 0:
            parts.append("COMMIT" if batch["control_type"] else "ABORT")
            continue
        table = segment.to_arrow(
            ["offset", "key", "value"], start_offset=int(batch["base_offset"]), end_offset=int(batch["last_offset"]) + 1
        )
        rows = [f"{r['offset']}:{_plain(r['key'])}={_plain(r['value'])}" for r in table.to_pylist()]
        parts.append(" ".join(rows) or f"[{batch['base_offset']}-{batch['last_offset']}]")
    return " | ".join(parts)


def _plain(data: bytes | None) -> str:
    return "-" if data is None else data.decode(errors="backslashreplace")


def raw_batches(segment: SegmentReader) -> list[bytes]:
    """Return the bytes of each batch, as its header says."""
    data = Path(segment.path).read_bytes()
    return [data[b["position"] : b["position"] + b["size"]] for b in segment.headers()]
