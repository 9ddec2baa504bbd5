"""Arrow schemas of the data that Lastkey reads from log files; each column is declared once, with unit and meaning.

RECORDS begins with the columns of Spark's own Kafka source (KafkaRecordToRowConverter, 4.2), so that a query for a live
topic also runs on its files. As there, every one of these columns is nullable; a record without headers has null, not
an empty list; and a record without a timestamp has the moment -1 ms, 1969-12-31 23:59:59.999 UTC, not null. There is
one difference: a timestamp too large for 64 bits of microseconds is null here, where Spark's source fails;
`timestamp_ms` has it.

The other columns hold Kafka's numbers as stored, including -1 for none, unless the column's comment states null. They
use only `binary` and `string`, because Spark does not accept the large forms for its own types.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from lastkey.logformat.errors import unknown_name


def _column(name: str, kind: Any, meaning: str, *, unit: str = "", nullable: bool = False) -> Any:
    metadata = {"meaning": meaning, **({"unit": unit} if unit else {})}
    return pa.field(name, kind, nullable=nullable, metadata=metadata)


HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
HEADERS: Final = pa.list_(pa.field("element", HEADER))  # Spark names it "element"
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

_TOPIC = _column("topic", pa.string(), "from the name of the file's folder; null: not known", nullable=True)
_PARTITION = _column("partition", pa.int32(), "from the name of the file's folder; null: not known", nullable=True)

SPARK_COLUMNS: Final = (
    _column("key", pa.binary(), "null: none; empty is a key", nullable=True),
    _column("value", pa.binary(), "null: a tombstone, in a compacted topic; empty is a value", nullable=True),
    _TOPIC,
    _PARTITION,
    _column("offset", pa.int64(), "of the record", nullable=True),
    _column("timestamp", TIMESTAMP, "as timestamp_ms; null: out of range for this type", nullable=True),
    _column("timestampType", pa.int32(), "0 CreateTime, 1 LogAppendTime, -1 none (magic 0)", nullable=True),
    _column("headers", HEADERS, "in order, duplicates kept; null: none", nullable=True),
)

RECORDS: Final = pa.schema(
    [
        *SPARK_COLUMNS,
        _column("timestamp_ms", pa.int64(), "since 1970 UTC; -1: none", unit="ms"),
        _column("producer_id", pa.int64(), "-1: none"),
        _column("producer_epoch", pa.int16(), "-1: none"),
        _column("sequence", pa.int32(), "base sequence + offset delta, from 2^31 - 1 on to 0; -1: none"),
        _column("transactional", pa.bool_(), "written in a transaction, or its marker"),
        _column("control", pa.bool_(), "a control record, such as a transaction's marker; consumers never see it"),
        _column("base_offset", pa.int64(), "of the batch; magic 0 and 1: the batch's first record"),
        _column("position", pa.int64(), "of the batch's first byte in the file", unit="bytes"),
        _column("leader_epoch", pa.int32(), "of the partition's leader that took the batch; -1: not known"),
        _column("codec", pa.string(), "of the batch: none, gzip, snappy, lz4 or zstd"),
        _column("magic", pa.int8(), "format of the batch: 0 to 3"),
        _column(
            "delete_horizon_ms", pa.int64(), "from when on a tombstone of the batch may go; null: not set",
            unit="ms", nullable=True,
        ),
    ]
)  # fmt: skip

BATCHES: Final = pa.schema(
    [
        _TOPIC,
        _PARTITION,
        _column("position", pa.int64(), "of the batch's first byte in the file", unit="bytes"),
        _column("size_bytes", pa.int64(), "all of the batch, its 12 byte prefix included", unit="bytes"),
        _column("base_offset", pa.int64(), "magic 0 and 1 compressed: -1, known only after decompression"),
        _column("last_offset", pa.int64(), "kept by compaction, so there may be no such record"),
        _column("records_count", pa.int32(), "as the header says; magic 0 and 1 compressed: -1"),
        _column("max_timestamp_ms", pa.int64(), "-1: none", unit="ms"),
        _column(
            "base_timestamp_ms", pa.int64(), "what timestamp deltas count from; with a delete horizon: that",
            unit="ms",
        ),
        _column("timestampType", pa.int32(), "0 CreateTime, 1 LogAppendTime, -1 none (magic 0)"),
        _column("producer_id", pa.int64(), "-1: none"),
        _column("producer_epoch", pa.int16(), "-1: none"),
        _column("base_sequence", pa.int32(), "-1: none"),
        _column("transactional", pa.bool_(), "written in a transaction, or its marker"),
        _column("control", pa.bool_(), "holds control records"),
        _column("control_type", pa.int8(), "0 ABORT, 1 COMMIT, others as stored; -1: none, or an empty batch"),
        _column("coordinator_epoch", pa.int32(), "of a marker; -1: none"),
        _column("leader_epoch", pa.int32(), "-1: not known"),
        _column("codec", pa.string(), "none, gzip, snappy, lz4 or zstd"),
        _column("magic", pa.int8(), "0 to 3"),
        _column("delete_horizon_ms", pa.int64(), "null: not set", unit="ms", nullable=True),
        _column("crc", pa.uint32(), "as stored: CRC-32C; magic 0 and 1: CRC-32"),
    ]
)  # fmt: skip

PROBLEMS: Final = pa.schema(
    [
        _TOPIC,
        _PARTITION,
        _column("path", pa.string(), "of the file"),
        _column("position", pa.int64(), "where in the file", unit="bytes"),
        _column("base_offset", pa.int64(), "of the batch; -1: not known, or none"),
        _column("kind", pa.string(), "one of errors.KINDS"),
        _column("expected", pa.string(), "what Kafka would have written"),
        _column("found", pa.string(), "the value in the file"),
        _column("hint", pa.string(), "what to do about it; empty: nothing known"),
    ]
)

# Entries of every file beside the logs; a column that an entry's kind does not have is null.
INDEX: Final = pa.schema(
    [
        _TOPIC,
        _PARTITION,
        _column("path", pa.string(), "of the file"),
        _column("kind", pa.string(), "offset, time, transaction, producer (a snapshot's) or leader_epoch"),
        _column("segment", pa.int64(), "base offset in the file's name; of a snapshot its offset", nullable=True),
        _column("entry", pa.int32(), "number in the file, from 0"),
        _column(
            "offset", pa.int64(),
            "offset, time: last one of the batch; transaction: of its ABORT marker; producer: of its last batch,"
            " -1 none; leader_epoch: the first of the epoch", nullable=True,
        ),
        _column("position", pa.int64(), "offset: of the batch's first byte in the .log", unit="bytes", nullable=True),
        _column(
            "timestamp_ms", pa.int64(), "time: largest so far; producer: of its last batch or marker", unit="ms",
            nullable=True,
        ),
        _column("producer_id", pa.int64(), "transaction, producer", nullable=True),
        _column("producer_epoch", pa.int16(), "producer; -1: none", nullable=True),
        _column(
            "first_offset", pa.int64(), "transaction: its first; producer: of its open transaction, -1 none",
            nullable=True,
        ),
        _column("last_stable_offset", pa.int64(), "transaction: when its marker was written", nullable=True),
        _column("last_sequence", pa.int32(), "producer; -1: none", nullable=True),
        _column("offset_delta", pa.int32(), "producer: last offset - base offset of its last batch", nullable=True),
        _column("coordinator_epoch", pa.int32(), "producer: of its last marker; -1: none", nullable=True),
        _column("leader_epoch", pa.int32(), "leader_epoch", nullable=True),
    ]
)  # fmt: skip

# Columns that the data sources add to a row on request.
PATH: Final = _column("path", pa.string(), "of the file", nullable=True)
PROBLEM: Final = _column(
    "problem",
    pa.struct([field for field in PROBLEMS if field.name not in ("topic", "partition")]),
    "null: a row as it should be; else what could not be read, and the other columns are null",
    nullable=True,
)


def select(schema: Any, columns: Iterable[str] | None) -> Any:
    """Return the schema of the named columns in the given order, or all of it for None. Raise ValueError for an unknown
    name.
    """
    if columns is None:
        return schema
    if isinstance(columns, str):
        raise TypeError(f"a list of columns, not one string: {columns!r}")
    names = list(columns)
    for name in names:
        if name not in schema.names:
            raise unknown_name("column", name, schema.names)
    return pa.schema([schema.field(name) for name in names])
