"""The search of files for a set of keys: the work of a task of `erase` and `erase --check`.

A bad file stops no other: it is a place that was not read, which the result names. Logs are searched by find_in_logs.

Parquet files of a table count whichever version of the table has them: a removed file is still a file. Of a table of
audits the column of keys is compared whole, value by value; where it holds keyed hashes in place of keys, the hashes of
the wanted keys are compared too. In any other table, of any writer, the values of every column of bytes or text are
compared. They are also searched for the bytes of a key as a part: a "may".

Files that hold hashes of keys are beside a generation's logs: key files and filters of runs by yield.

  <offset>.keys    exact hashes, 16 bytes a key
  <base>.filter    a Bloom filter over 64 bits of the hashes of the `.log` beside it, and a CRC-32C
  hash.key         the secret of all of them, in the folder of each generation

A hash does not reveal the key, but with the secret a guess can be tested. So a key counts as found if its exact hash is
there. A filter has one false match in about 1,000 keys, so its matches count as "may"; if its log was read to the end,
the log decides.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lastkey.logformat.batches.chunks import read_exactly
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.primitives.binary_arrays import bytes_and_bounds, is_bytes, whole_array
from lastkey.logformat.primitives.crc32c import crc32c_extend
from lastkey.udfs.key_search.find_in_logs import LogSearch, check_size, make_reader, search_bytes
from lastkey.udfs.key_search.findings import MAY, Found, NotRead, SearchFile
from lastkey.udfs.key_search.key_set import LEAST_TEXT_KEY, KeySet
from lastkey.udfs.problem import Problem, attempt
from lastkey.udfs.storage import cached_root, opened, read_file
from lastkey.udfs.yields.key_filter import FILTER_BLOCK, hash_key_id, holds

_ROWS: Final = 1 << 16
_CHUNK: Final = 8 << 20  # bytes that are hashed at a time
_NOTHING: Final = np.empty(0, np.int64)
# Columns of the audits' tables that never hold a key: where a record is, and whence it was read
NO_KEYS: Final = frozenset(
    {"source", "other", "root", "topic", "path", "group", "run_id", "secret_id", "kind", "place", "state", "certainty"}
)


def search_table(keys: KeySet, hidden: KeySet | None, file: SearchFile, findings: Found) -> None:
    """Add what a Parquet file holds of the keys. hidden: the keyed hashes of the same keys, in their order.

    Raises LogFormatError for a file that cannot be read, or that Parquet does not know.
    """
    with opened(cached_root(file.root), file.path) as stream:
        check_size(stream, file)
        try:
            searched = _search(
                keys, hidden, pq.ParquetFile(stream), findings, NO_KEYS if file.of_audits else frozenset()
            )
        except (pa.ArrowException, OSError, ValueError) as error:
            raise LogFormatError("side_file", file.shown, 0, "a Parquet file", str(error).splitlines()[0]) from error
    if searched:
        note = f"columns {', '.join(searched)} were not searched for short keys, which stand in any text"
        _note_short(keys, file, findings, note)


def _note_short(keys: KeySet, file: SearchFile, findings: Found, note: str) -> None:
    if keys.n_short:
        expected = f"keys of {LEAST_TEXT_KEY} bytes or more"
        problem = Problem("side_file", file.shown, 0, expected, f"{keys.n_short} shorter ones")
        findings.problem(problem, note)


def search_partition(keys: KeySet, path: str, findings: Found) -> None:
    """Add the keys that the folders of a table's file name, as in `name=person-1/part-0.parquet`."""
    texts = [unquote(part.partition("=")[2]) for part in path.split("/")[:-1] if "=" in part]
    if texts:
        values = pa.array([text.encode() for text in texts], pa.large_binary())
        _search_text(keys, values, _compare([keys], values, 0, findings), 0, findings)


def _search(keys: KeySet, hidden: KeySet | None, parquet: Any, findings: Found, no_keys: frozenset[str]) -> list[str]:
    """Search all rows; return the names of the columns that were searched for parts of values. no_keys: columns that
    hold none; if there are any, the column `key` has only keys.
    """
    texts = []
    wanted = [f.name for f in parquet.schema_arrow if f.name not in no_keys and _holds_bytes(f.type)]
    row = 0
    for batch in parquet.iter_batches(_ROWS, columns=wanted) if wanted else ():
        for name in wanted:
            values, known = _stored(batch.column(name)), _NOTHING
            if is_bytes(values.type):
                known = _compare([one for one in (keys, hidden) if one is not None], values, row, findings)
            if not (no_keys and name == "key"):
                texts.append(name)
                _search_text(keys, values, known, row, findings)
        row += len(batch)
    return list(dict.fromkeys(texts))


def _compare(sets: list[KeySet], values: Any, row: int, findings: Found) -> np.ndarray:
    """Add the values that are keys, whole; return the rows of these keys."""
    known = [_NOTHING]
    for one in sets:
        rows = one.find_rows(values)
        at = np.flatnonzero(rows >= 0)
        findings.add(rows[at], pa.array(row + at))
        known.append(rows[at])
    return np.concatenate(known)


def _search_text(keys: KeySet, column: Any, exact_rows: np.ndarray, row: int, findings: Found) -> None:
    first = np.full(len(keys), -1, np.int64)
    for values in _leaves(column):
        data, at = bytes_and_bounds(values)
        text = data[int(at[0]) : int(at[-1])]
        for group in keys.groups:
            group.search(text, first)
    rows = np.setdiff1d(np.flatnonzero(first >= 0), exact_rows)
    findings.add(rows, pa.array(np.full(len(rows), row, np.int64)), certainty=MAY)


def _leaves(column: Any) -> Iterator[Any]:
    """Yield the columns of bytes or text within a column."""
    column = _stored(column)
    kind = column.type
    if is_bytes(kind):
        yield column
    elif pa.types.is_struct(kind):
        for part in column.flatten():
            yield from _leaves(part)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _leaves(column.flatten())
    elif pa.types.is_map(kind):
        yield from _leaves(column.keys)
        yield from _leaves(column.items)


def _stored(column: Any) -> Any:
    column = whole_array(column)
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _holds_bytes(kind: Any) -> bool:
    """Return whether values of a type hold bytes or text anywhere."""
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_bytes(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    parts = [kind.field(i).type for i in range(kind.num_fields)]
    return is_bytes(kind) or any(map(_holds_bytes, parts))


_SECRET: Final = struct.Struct(">QQqI")  # low, high, when it was drawn, CRC-32C
_CRC_BYTES: Final = 4
_HASH_BYTES: Final = 16
_HASH: Final = pa.binary(_HASH_BYTES)


def search_key_file(keys: KeySet, file: SearchFile, findings: Found) -> None:
    """Add the keys whose exact hashes are in a key file. Raises LogFormatError."""
    secret = _secret(file)
    raw = _whole(file)
    if len(raw) % _HASH_BYTES:
        raise LogFormatError("side_file", file.shown, len(raw), f"{_HASH_BYTES} bytes a key", f"{len(raw)} bytes")
    if file.checksum is None:
        expected = "a manifest with its checksum"
        hint = "vacuum deletes what dead runs left"
        findings.problem(Problem("side_file", file.shown, 0, expected, "none", hint=hint), "searched as it is")
    else:
        n, expected_crc = file.checksum
        crc = crc32c_extend(crc32c_extend(0, np.frombuffer(hash_key_id(secret), np.uint8)), raw)
        if (len(raw) // _HASH_BYTES, crc) != (n, expected_crc):
            expected = f"{n} keys with CRC-32C {expected_crc:#010x}, as the manifest says"
            now = f"{len(raw) // _HASH_BYTES} with {crc:#010x}"
            findings.problem(Problem("readback", file.shown, 0, expected, now), "searched as it is")
    hashes = keys.hashes_by(secret)
    hashes[(hashes == 0).all(axis=1), 1] = 1  # as the files have it: zeros are a free slot
    wanted = pa.Array.from_buffers(_HASH, len(hashes), [None, pa.py_buffer(hashes)])
    held = pa.Array.from_buffers(_HASH, len(raw) // _HASH_BYTES, [None, pa.py_buffer(raw)])
    rows = pc.index_in(held, wanted)
    at = np.flatnonzero(np.asarray(rows.is_valid()))
    findings.add(np.asarray(rows.drop_null()).astype(np.int64), pa.array(at * _HASH_BYTES))


def search_filter(keys: KeySet, file: SearchFile, in_log: np.ndarray | None, findings: Found) -> None:
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
        findings.problem(
            Problem("side_file", file.shown, 0, "its .log, read to the end", "none", hint=hint), "searched as it is"
        )
    findings.add(rows, certainty=MAY)


def _secret(file: SearchFile) -> tuple[int, int]:
    """Return the secret of a file's hashes. Raises LogFormatError if it is lost or damaged."""
    if file.secret is None:
        hint = "without it no key can be tested against these hashes; vacuum deletes what dead runs left"
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


@dataclass(frozen=True)
class Searched:
    """Result of a task."""

    findings: bytes  # as `findings.unpacked` reads them
    problems: tuple[NotRead, ...]
    digests: dict[int, str] = field(default_factory=dict)  # number of a file -> its SHA-256 in hex


def search_files(
    keys: KeySet, hidden: KeySet | None, files: Sequence[SearchFile], *, digests: bool = False
) -> Searched:
    """Search the files of one task. A filter is directly after its log. hidden: see `search_table`; digests: read
    each file once more for its SHA-256.
    """
    search, found = _Search(keys, hidden), dict[int, str]()
    for number, file in enumerate(files):
        search.found.begin(number)
        problem = attempt(file.shown, lambda file=file: search.search(file))  # type: ignore[misc]
        if isinstance(problem, Problem):
            search.found.problem(problem, "not searched to its end")
        elif digests:
            digest = attempt(file.shown, lambda file=file: _sha256(file))  # type: ignore[misc]
            if isinstance(digest, Problem):
                search.found.problem(digest, "its SHA-256 is not known")
            else:
                found[number] = digest
    return Searched(search.found.packed(), tuple(search.found.problems), found)


def _sha256(file: SearchFile) -> str:
    digest = hashlib.sha256()
    with opened(cached_root(file.root), file.path) as stream:
        check_size(stream, file)
        while data := stream.read(_CHUNK):
            digest.update(data)
    return digest.hexdigest()


class _Search:
    def __init__(self, keys: KeySet, hidden: KeySet | None) -> None:
        self.keys, self.hidden, self.found = keys, hidden, Found(len(keys))
        self.logs = LogSearch(keys)
        self.read_log: tuple[str, np.ndarray] | None = None  # path of the last log that was read to the end, its keys

    def search(self, file: SearchFile) -> None:
        n_problems = len(self.found.problems)
        if file.kind == "log":
            self.read_log = None
            self.logs.search(file, self.found)
            if len(self.found.problems) == n_problems:
                self.read_log = file.path, self.found.rows_of_file
        elif file.kind == "filter":
            path, rows = self.read_log or ("", _NOTHING)
            own = path == f"{file.path.removesuffix('.filter')}.log"
            search_filter(self.keys, file, rows if own else None, self.found)
        elif file.kind == "key_file":
            search_key_file(self.keys, file, self.found)
        elif file.kind == "table":
            search_partition(self.keys, file.path, self.found)
            problem = attempt(file.shown, lambda: self._table(file))
            if isinstance(problem, Problem):
                self.found.problem(problem, "searched for the bytes of the keys only")
                self._bytes(file)
        else:
            self._bytes(file)

    def _table(self, file: SearchFile) -> None:
        search_table(self.keys, self.hidden if file.may_hide else None, file, self.found)

    def _bytes(self, file: SearchFile) -> None:
        with opened(cached_root(file.root), file.path) as stream:
            check_size(stream, file)
            search_bytes(self.keys, make_reader(stream, file.shown), 0, file.size, self.found)
        if file.size:
            note = "not searched for these: they are too short to be distinguished from other bytes"
            _note_short(self.keys, file, self.found, note)
