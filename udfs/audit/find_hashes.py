"""Keys in the files that hold hashes of keys beside a generation's logs: key files and filters of runs by yield.

  <offset>.keys    exact hashes, 16 bytes a key
  <base>.filter    a Bloom filter over 64 bits of the hashes of the `.log` beside it, and a CRC-32C
  hash.key         the secret of all of them, in the folder of each generation

A hash tells nobody the key, but who has the secret can try a key out. So a key counts as found if its exact hash is
there. A filter takes one key in about 1,000 for one that it holds, so it says "may"; and where its log was read to the
end, the log has the last word.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lastkey.logformat.batches.chunks import read_exactly
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.udfs.audit.find_in_logs import check_size
from lastkey.udfs.audit.findings import MAY, Found, SearchFile
from lastkey.udfs.audit.key_set import KeySet
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import cached_root, opened, read_file
from lastkey.udfs.yields.key_filter import FILTER_BLOCK, hash_key_id, holds

_SECRET: Final = struct.Struct(">QQqI")  # low, high, when it was drawn, CRC-32C
_CRC_BYTES: Final = 4
_HASH_BYTES: Final = 16
_HASH: Final = pa.binary(_HASH_BYTES)


def search_key_file(keys: KeySet, file: SearchFile, found: Found) -> None:
    """Add the keys whose exact hashes are in a key file. Raises LogFormatError."""
    secret = _secret(file)
    raw = _whole(file)
    if len(raw) % _HASH_BYTES:
        raise LogFormatError("side_file", file.shown, len(raw), f"{_HASH_BYTES} bytes a key", f"{len(raw)} bytes")
    if file.checksum is None:
        expected = "a manifest with its checksum"
        hint = "vacuum deletes what dead runs left"
        found.problem(Problem("side_file", file.shown, 0, expected, "none", hint=hint), "searched as it stands")
    else:
        n, expected_crc = file.checksum
        crc = crc32c_extend(crc32c_extend(0, np.frombuffer(hash_key_id(secret), np.uint8)), raw)
        if (len(raw) // _HASH_BYTES, crc) != (n, expected_crc):
            expected = f"{n} keys with CRC-32C {expected_crc:#010x}, as the manifest says"
            now = f"{len(raw) // _HASH_BYTES} with {crc:#010x}"
            found.problem(Problem("readback", file.shown, 0, expected, now), "searched as it stands")
    hashes = keys.hashes_by(secret)
    hashes[(hashes == 0).all(axis=1), 1] = 1  # as the files have it: zeros are a free slot
    wanted = pa.Array.from_buffers(_HASH, len(hashes), [None, pa.py_buffer(hashes)])
    held = pa.Array.from_buffers(_HASH, len(raw) // _HASH_BYTES, [None, pa.py_buffer(raw)])
    rows = pc.index_in(held, wanted)
    at = np.flatnonzero(np.asarray(rows.is_valid()))
    found.add(np.asarray(rows.drop_null()).astype(np.int64), pa.array(at * _HASH_BYTES))


def search_filter(keys: KeySet, file: SearchFile, in_log: np.ndarray | None, found: Found) -> None:
    """Add the keys that a filter takes as "may". in_log: int64[], rows of the keys that its log holds; None if that was
    not read to the end. Raises LogFormatError.
    """
    secret = _secret(file)
    raw = _whole(file)
    if len(raw) % FILTER_BLOCK != _CRC_BYTES or len(raw) < FILTER_BLOCK:
        expected = f"blocks of {FILTER_BLOCK} bytes and a checksum"
        raise LogFormatError("side_file", file.shown, 0, expected, f"{len(raw)} bytes")
    rows = np.flatnonzero(holds(raw[:-_CRC_BYTES].view(np.uint32), keys.hashes_by(secret)[:, 1].copy()))
    if in_log is not None:
        rows = np.intersect1d(rows, in_log)
    else:  # only a run knows what its checksum is bound to
        hint = "a filter alone proves nothing: bring its log back, or delete it"
        found.problem(
            Problem("side_file", file.shown, 0, "its .log, read to the end", "none", hint=hint), "searched as it stands"
        )
    found.add(rows, certainty=MAY)


def _secret(file: SearchFile) -> tuple[int, int]:
    """Return the secret of a file's hashes. Raises LogFormatError if it is lost or damaged."""
    if file.secret is None:
        hint = "nobody can test a key against these hashes without it; vacuum deletes what dead runs left"
        raise LogFormatError("side_file", file.shown, 0, "hash.key beside it", "none", hint=hint)
    path = file.secret
    data = read_file(cached_root(file.root), path)
    if len(data) != _SECRET.size:
        raise LogFormatError("side_file", path, 0, f"{_SECRET.size} bytes", f"{len(data)}")
    low, high, _, crc = _SECRET.unpack(data)
    plain = np.frombuffer(data[:-_CRC_BYTES], np.uint8)
    made = crc32c_extend(crc32c_extend(0, np.frombuffer(b"key", np.uint8)), plain)
    if crc != made:
        raise LogFormatError("side_file", path, 0, f"CRC-32C {crc:#010x}, as it says", f"{made:#010x}")
    return low, high


def _whole(file: SearchFile) -> np.ndarray:
    """Return all bytes of a file: uint8[]. Raises LogFormatError."""
    raw = np.empty(file.size, np.uint8)
    with opened(cached_root(file.root), file.path) as stream:
        check_size(stream, file)
        read_exactly(stream, file.path, 0, raw)
    return raw
