"""Logs whose records have versions, and the records that stay: a plain twin of KIP-280's rules."""

from __future__ import annotations

import random
import struct
from pathlib import Path

from tests.builders.folders import Archived, lay_out
from tests.reference.cleaner import Segment
from tests.reference.log import GZIP, SNAPPY, ZSTD, Batch, Record, marker_batch, with_timestamps

NOW_MS = 2_000_000_000_000
NAME = "version"


def record_version(record: Record, strategy: str) -> int:
    """Return a record's version by KIP-280: its timestamp, or its last header of that name; -1 if it has none.

    Such a header has eight bytes, and is not negative.
    """
    if strategy == "timestamp":
        return max(record.timestamp, -1)
    versions = [value for name, value in record.headers if name == NAME.encode()]
    if not versions or versions[-1] is None or len(versions[-1]) != 8:
        return -1
    return max(struct.unpack(">q", versions[-1])[0], -1)


def twin(records: list[Record], strategy: str) -> list[int]:
    """Return the offsets that stay of committed records with a key."""
    best: dict[bytes, tuple[int, int]] = {}
    for r in records:
        assert r.key is not None
        best[r.key] = max(best.get(r.key, (-2, -1)), (record_version(r, strategy), r.offset))
    return sorted(offset for _, offset in best.values())


def batch(base: int, records: list[tuple[int, bytes | None, bytes | None, tuple]], **fields: object) -> Batch:
    made = tuple(Record(base + i, t, k, v, h) for i, (t, k, v, h) in enumerate(records))
    return with_timestamps(Batch(base, base + len(made) - 1, made, **fields)).encoded()  # type: ignore[arg-type]


def long(value: int) -> bytes:
    return struct.pack(">q", value)


def drawn(rng: random.Random, root: Path) -> tuple[Archived, list[Batch]]:
    """Draw a log with ties, falling versions, no version, malformed ones, double headers, tombstones, aborted
    transactions.
    """
    segments, batches, offset = [], [], 0
    for _ in range(rng.randint(2, 6)):
        base, of_segment = offset, []
        for _ in range(rng.randint(1, 5)):
            n = rng.randint(1, 8)
            records = []
            for _ in range(n):
                headers = [
                    (
                        NAME.encode(),
                        rng.choice([long(rng.randint(-2, 5)), long(2**63 - 1), b"", b"1234567", b"123456789", None]),
                    )
                    if rng.random() < 0.7
                    else (rng.choice([b"versio", b"versions", b""]), long(9))
                    for _ in range(rng.randint(0, 3))
                ]
                records.append((
                    rng.choice([-1, 1000 + rng.randint(0, 6)]),
                    rng.choice([b"a", b"b", b"c", b"", b"%d" % rng.randint(0, 9)]),
                    rng.choice([None, b"v", b"w" * 300]), tuple(headers),
                ))  # fmt: skip
            codec = rng.choice([0, 0, GZIP, SNAPPY, ZSTD])
            if rng.random() < 0.25:
                fields = {"producer_id": 7, "producer_epoch": 0, "base_sequence": offset, "transactional": True}
                of_segment.append(batch(offset, records, codec=codec, **fields))
                of_segment.append(marker_batch(offset + n, 7, rng.randint(0, 1), timestamp=1000))
                offset += n + 1
                continue
            late = {"append_time": True, "max_timestamp": 1003} if rng.random() < 0.2 else {}
            of_segment.append(batch(offset, records, codec=codec, **late))
            offset += n
        segments.append(Segment(base, tuple(of_segment), NOW_MS))
        batches += of_segment
    end = batch(offset, [(1000, b"zz-active", b"v", ((NAME.encode(), long(1)),))])
    segments.append(Segment(offset, (end,), NOW_MS))
    return lay_out(root, segments), batches
