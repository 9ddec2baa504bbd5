"""Options of the data sources with default and meaning, for the reference page."""

from __future__ import annotations

from typing import Final

TEXTS: Final = {  # names -> (default, meaning)
    "topics": (
        "all",
        "names and globs, separated by commas, as [`--topics`](/reference/command-line.md#topics) takes them; "
        "also Spark's `subscribe` (one of several may be missing), `subscribePattern`, `assign`",
    ),
    "topicsFrom": (
        "",
        "a file where the query is planned, a name or glob a line: these topics beside those of `topics`",
    ),
    "exclude": ("none", "globs, separated by commas: leave out these topics, whatever else names them"),
    "partitions": ("all", "numbers: `0,3-5`"),
    "columns": (
        "as above",
        'names separated by commas, in this order. `.schema("offset LONG, key BINARY")` does the same',
    ),
    "includeValue": ("true", "false: everything but the values"),
    "includeHeaders": ("false", "adds the column `headers`"),
    "includeControl": ("false", "adds control records (transaction markers), which no consumer sees"),
    "startingOffsets, endingOffsets": (
        "earliest, latest",
        'or JSON, `{"orders":{"0":23,"1":-2}}`, which names every partition that is read; -2 earliest, -1 latest',
    ),
    "startingTimestamp, endingTimestamp": (
        "",
        "ms since 1970, or ISO 8601: from the first record at or after one, up to the first at or after the other",
    ),
    "startingOffsetsByTimestamp, endingOffsetsByTimestamp": ("", "the same in JSON, by partition"),
    "startingOffsetsByTimestampStrategy": ("latest", "`error`: fail if no record is that late"),
    "failOnDataLoss": ("true", "fail if an offset is gone; false: read what is there"),
    "gaps": (
        "fail",
        "`accept`: read on where a segment is missing or short, see [Gaps](/reference/data-source.md#gaps); "
        "the default is `accept` with `failOnDataLoss` = false",
    ),
    "key": ("", "only records with exactly this key; `0x6162` gives its bytes"),
    "isolationLevel": (
        "read_uncommitted",
        "`read_committed`: skip data of aborted transactions, and stop at the first open one. Data below that "
        "offset whose transaction no marker ends is an error: the newest `.snapshot` denies that it is open. "
        "Also `kafka.isolation.level`",
    ),
    "badRecords": (
        "fail",
        "`quarantine`: give a row with `problem` (kind, path, position, expected, found) for what cannot be "
        "read, and continue with the next batch",
    ),
    "store, generation": (
        "",
        "read a generation of a store, by default the current one; a path then says where the archive is now, "
        "if it has moved",
    ),
    "kinds": ("all", "for `kafka_log_index`: `offset`, `time`, `transaction`, `producer`, `leader_epoch`"),
    "maxOffsetsPerTrigger, maxBytesPerTrigger": (
        "none",
        "for a stream: the most to read in a micro-batch (bytes: about)",
    ),
    "splitBytes": ("134217728", "about how much log a task reads; small files are packed together"),
    "minPartitions": ("1", "at least this many tasks, if there is enough to read"),
    "maxRecordsPerBatch": ("65536", "rows in one Arrow batch"),
    "maxDecompressedBatchBytes": (
        "268435456",
        "for `kafka_log`: a batch larger than this, in its file or decompressed, is damage; Kafka allows 2147483647",
    ),
    "pushFilters": (
        "false",
        "true: conditions reduce what is read, see [Conditions](/reference/data-source.md#conditions)",
    ),
}
