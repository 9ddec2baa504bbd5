"""Erasures of a store: the keys of each, as digests in a file, and the offsets below which their records were erased.

`erasures/<id>` holds an erasure's digests (`udfs.erased_keys`), which follow from a key that the user holds. The column
`erased` of a generation has a bound for each erasure and log: below that offset the log's generations hold none of the
keys. A topic that was made again is another log, and its topic id distinguishes them. Every later generation of the
partition has all these bounds too, also after a rollback and a --reset. So any two rows show what may bring an erased
record back: a generation that covers offsets below a bound which it lacks. A log that was unreachable during a repeated
erasure may have received more records: its bound is MAX_OFFSET, as if it had never been searched.
"""

from __future__ import annotations

import hmac
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lastkey.jobs.errors import ERASED_RECORDS, MissingPathError, UsageError
from lastkey.jobs.store.paths import ERASED_KEYS
from lastkey.jobs.store.rows import Checkpoint
from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.names import MAX_OFFSET
from lastkey.udfs.erased_keys import KEY_ID_BYTES, content_id, read_erased
from lastkey.udfs.steps import step
from lastkey.udfs.storage import Root, flush, flush_all, make_folder, make_private, put_file

Bounds = dict[
    str, dict[str, int]
]  # erasure -> topic id, "" if none -> offset below which that log has none of its keys

_LEAST_BYTES: Final = 16  # minimum size of the user's key
_SECRET: Final = struct.Struct("<QQ")


def read_key(path: str) -> bytes:
    """Return the user's key from a file. Raise UsageError if there is none, or a short one."""
    try:
        key = Path(path).read_bytes()
    except OSError as error:
        raise MissingPathError(path=path, expected="a key for HMACs", found=error.strerror or str(error)) from None
    if len(key) < _LEAST_BYTES:
        raise UsageError(message=f"{path}: expected {_LEAST_BYTES} bytes or more, found {len(key)}")
    return key


def derive_secret(key: bytes) -> tuple[int, int]:
    """Return the secret of the digests, which follows from the user's key."""
    low, high = _SECRET.unpack(hmac.digest(key, b"lastkey erasure", "sha256")[: _SECRET.size])
    return low, high


def key_id(key: bytes) -> bytes:
    """Return an identifier of the user's key that does not reveal the key."""
    return hmac.digest(key, b"lastkey erasure key", "sha256")[:KEY_ID_BYTES]


def write_erasure(store: Root, data: bytes) -> None:
    """Write the file of an erasure, before any generation names it. Keep an existing valid file: the same keys give the
    same file.
    """
    path = erasure_path(content_id(data))
    try:
        read_erased(store, path)
    except LogFormatError:  # missing, or left incomplete by a killed run
        make_folder(store, ERASED_KEYS)
        flush(store, "")
        make_private(store, path)
        put_file(store, path, data)
    flush_all(store, (path, ERASED_KEYS))  # also what a killed run wrote
    step("erasure written")


def erasure_path(erasure: str) -> str:
    """Return the path of an erasure's file below the store."""
    return f"{ERASED_KEYS}/{erasure}"


def check_key(store: Root, erasures: Iterable[str], key: bytes) -> None:
    """Raise UsageError unless this is the key of all these erasures, as far as their files are there."""
    for erasure in sorted(set(erasures)):
        try:
            stored_id = read_erased(store, erasure_path(erasure))[:KEY_ID_BYTES]
        except LogFormatError:
            continue  # a problem of the partitions that need it
        if stored_id != key_id(key):
            raise UsageError(
                message=f"{store.uri}: expected the --hmac-key of erasure {erasure}, found another one: all erasures "
                "of a store take the same"
            )


def parse_bounds(row: Checkpoint | None) -> Bounds:
    """Return the bounds that a generation notes for all logs that the partition had. Bounds noted while the topic id
    was lost belong to the generation's own log, also after a rollback to an earlier generation.
    """
    if row is None:
        return {}
    found: Bounds = json.loads(row.erased or "{}")
    own = row.topic_id or ""
    return merged({one: {log or own: until}} for one, logs in found.items() for log, until in logs.items())


def to_text(bounds: Bounds) -> str | None:
    """Return bounds as the column `erased` holds them."""
    return json.dumps(bounds, sort_keys=True) if bounds else None


def merged(several: Iterable[Bounds]) -> Bounds:
    """Return the highest bound of each erasure in each log."""
    out: Bounds = {}
    for bounds in several:
        for erasure, logs in bounds.items():
            known = out.setdefault(erasure, {})
            known |= {log: max(until, known.get(log, 0)) for log, until in logs.items()}
    return out


def in_log(bounds: Bounds, topic_id: str | None, otherwise: int) -> dict[str, int]:
    """Return the bound of each erasure in one log; `otherwise` if only other logs have one. A log without a topic id
    (before Kafka 2.8) counts as the same log as any other.
    """
    out = {}
    for erasure, logs in bounds.items():
        same = {log: until for log, until in logs.items() if log in ("", topic_id)}
        known = logs if topic_id is None and not same else same
        out[erasure] = max(known.values(), default=otherwise)
    return out


def searched(row: Checkpoint) -> int:
    """Return the offset below which a generation's log was searched for the keys of any erasure; 0: nowhere."""
    return max(in_log(parse_bounds(row), row.topic_id, 0).values(), default=0)


def brought_back(old: Checkpoint, now: Checkpoint) -> str | None:
    """Return an erasure whose records an older generation may contain, judged by the current one; None: there is none.
    An erasure of other logs alone must have been searched up to the end of the older generation.
    """
    had, end = in_log(parse_bounds(old), old.topic_id, -1), old.next_offset
    wanted = in_log(parse_bounds(now), old.topic_id, MAX_OFFSET) if end else {}
    return min((one for one, until in wanted.items() if had.get(one, -1) < min(until, end)), default=None)


def check_nothing_comes_back(old: Checkpoint, now: Checkpoint) -> None:
    """Raise ERASED_RECORDS if a generation may hold records that were erased (`brought_back`)."""
    erasure = brought_back(old, now)
    if erasure is not None:
        name = names.partition_folder(*old.key)
        raise ERASED_RECORDS(partition=name, found=old.generation, erasure=erasure)
