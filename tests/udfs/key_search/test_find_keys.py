"""Keys in logs, found by their whole bytes; the oracle is the plain reader of tests.reference, or a plain search."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lastkey.logformat.names import segment_file
from lastkey.udfs.key_search.find_in_logs import search_bytes
from lastkey.udfs.key_search.find_keys import search_files
from lastkey.udfs.key_search.findings import Found, SearchFile, unpacked
from lastkey.udfs.key_search.key_set import KeySet
from tests.builders.logs import START_MS, write_segment
from tests.reference.log import (
    ABORT,
    GZIP,
    NONE,
    SNAPPY,
    ZSTD,
    Batch,
    Record,
    data_batch,
    marker_batch,
    with_timestamps,
)

BINARY = bytes(range(256))
LONG = b"long" * (1 << 18)  # 1 MiB
KEYS = [b"", b"a", BINARY, LONG, b"\0\0\0\0", b"user-7"]
OTHERS = [b"b", b"user-70", b"user-", BINARY[:-1], BINARY + b"\0", LONG[:-1], None, b"\0\0\0", b"\0\0\0\1"]


def search_file(path, kind="log", **more):
    stat = path.stat()
    parts = {"topic": "t", "partition": 0} | more
    return SearchFile(str(path.parent), path.name, stat.st_size, stat.st_mtime_ns // 10**6, kind, **parts)


def search(paths, keys=KEYS, **more):
    """Return (key, path, position, offset, timestamp, tombstone, may) of each finding, and the problems."""
    searched = search_files(KeySet.of(keys), None, [search_file(path, **more) for path in paths])
    rows = unpacked(searched.findings).to_pylist()
    distinct = list(dict.fromkeys(keys))
    fields = ("position", "offset", "timestamp_ms", "tombstone", "may")
    return [(distinct[r["key"]], paths[r["file"]].name, *(r[f] for f in fields)) for r in rows], searched.problems


def write_log(folder: Path, batches: list[Batch], base: int = 0) -> Path:
    path = folder / segment_file(base, "log")
    path.write_bytes(b"".join(b.data for b in batches))
    return path


def expected(path, batches, keys=KEYS):
    out, position = [], 0
    for b in batches:
        for r in b.records:
            if not b.control and r.key in keys:
                out.append((r.key, path.name, position, r.offset, r.timestamp, r.value is None, False))
        position += len(b.data)
    return out


def drawn_batches(seed: int, n: int = 60) -> list[Batch]:
    """Draw batches of every magic and codec, some aborted, with holes in their offsets."""
    draw, offset, out = random.Random(seed), 5, []
    for _ in range(n):
        magic = draw.choice([0, 1, 2, 2, 2])
        codec = draw.choice([NONE, GZIP, SNAPPY, *([ZSTD] if magic == 2 else [])])
        size = draw.randint(1, 8) if codec or magic == 2 else 1
        records = []
        for _ in range(size):
            offset += draw.randint(1, 3 if magic == 2 else 1)
            key = draw.choice(KEYS + OTHERS) if draw.random() < 0.7 else str(draw.random()).encode()
            value = draw.choice([None, b"", b"x", b"user-7", b"a" * 2000])
            records.append(Record(offset, -1 if magic == 0 else START_MS + draw.randint(-5, 5), key, value))
        producer = {"producer_id": 7, "producer_epoch": 0, "transactional": True} if magic == 2 and size > 4 else {}
        batch = Batch(records[0].offset, offset, tuple(records), magic=magic, codec=codec, **producer)
        out.append(with_timestamps(batch).encoded())
        if producer:
            offset += 1
            out.append(marker_batch(offset, 7, ABORT, timestamp=START_MS))
    return out


@pytest.mark.parametrize("seed", range(4))
def test_search_finds_exactly_the_records_of_the_keys(tmp_path, seed):
    batches = drawn_batches(seed)
    path = write_log(tmp_path, batches)
    result, problems = search([path])
    assert result == expected(path, batches) and len(result) > 20
    assert problems == ()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_search_finds_keys_in_every_codec(tmp_path, codec):
    path = write_segment(tmp_path, f"{{codec={codec}}} a=1 b=2 a=- | {{codec={codec}}} =3 user-7=4@9 user-70=5")
    result, problems = search([path], [b"", b"a", b"user-7"])
    assert [(key, offset, tombstone) for key, _, _, offset, _, tombstone, _ in result] == [
        (b"a", 0, False), (b"a", 2, True), (b"", 3, False), (b"user-7", 9, False)
    ]  # fmt: skip
    assert problems == ()


def test_key_of_a_marker_is_not_searched(tmp_path):
    marker = marker_batch(0, 7, ABORT, timestamp=START_MS)
    user = data_batch(1, [(START_MS, b"\0\0\0\0", b"v")])
    path = write_log(tmp_path, [marker, user])
    assert [row[3] for row in search([path])[0]] == [1]


def test_search_ignores_offsets_and_file_names(tmp_path):
    batches = [data_batch(base, [(START_MS, b"a", b"%d" % base)]) for base in (50, 10, 60, 10)]
    path = write_log(tmp_path, batches, base=1000)
    result, problems = search([path])
    assert [row[3] for row in result] == [50, 10, 60, 10] and problems == ()


def test_damaged_batch_is_reported_and_other_records_are_found(tmp_path):
    batches = [data_batch(i, [(START_MS, b"user-7", b"v")]) for i in range(3)]
    path = write_log(tmp_path, batches)
    size = len(batches[0].data)
    data = bytearray(path.read_bytes())
    data[size + 40] ^= 1  # in the header of the second one
    path.write_bytes(data)
    result, problems = search([path], [b"user-7"])
    assert [(row[2], row[3], row[6]) for row in result if not row[6]] == [(0, 0, False), (2 * size, 2, False)]
    [may] = [row for row in result if row[6]]  # its bytes are still there, and nothing more is known
    assert (may[0], size < may[2] < 2 * size, may[3]) == (b"user-7", True, None)
    [problem] = problems
    assert problem.problem.kind == "crc" and problem.problem.position == size
    assert problem.stretch == f"bytes {size} to {2 * size - 1} of {3 * size} were not read as records"


def test_damaged_compressed_body_is_reported_and_proves_no_absence(tmp_path):
    batch = data_batch(0, [(START_MS, b"user-7", b"v" * 500)], codec=GZIP)
    path = write_log(tmp_path, [batch])
    data = bytearray(path.read_bytes())
    data[80] ^= 0xFF
    path.write_bytes(data)
    result, problems = search([path], [b"user-7"])
    assert result == [] and len(problems) == 1


@pytest.mark.parametrize("cut", [1, 20, 70])
def test_torn_tail_is_reported_and_its_bytes_are_searched(tmp_path, cut):
    batches = [data_batch(i, [(START_MS, b"user-7", b"v" * 200)]) for i in range(2)]
    path = write_log(tmp_path, batches)
    size = len(batches[0].data)
    path.write_bytes(path.read_bytes()[:-cut])
    result, [problem] = search([path], [b"user-7"])
    assert [(row[3], row[6]) for row in result] == [(0, False), (None, True)]
    assert problem.problem.kind == "torn_tail" and problem.problem.position == size


_STRETCH = re.compile(r"bytes ([\d,]+) to ([\d,]+) of ([\d,]+) were not read as records")


def damaged(draw: random.Random, data: bytes) -> bytes:
    """Damage a log in one of the ways of disks, copies and people."""
    at, other = sorted(draw.sample(range(len(data)), 2))
    size = draw.choice([1, 4, 30, 700])
    kind = draw.choice(["bit", "bit", "zeros", "cut", "lost", "inserted", "repeated", "moved"])
    if kind == "bit":
        return data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :]
    if kind == "zeros":
        return data[:at] + bytes(min(size, len(data) - at)) + data[at + size :]
    if kind == "cut":
        return data[:at]
    if kind == "lost":
        return data[:at] + data[at + size :]
    if kind == "inserted":
        return data[:at] + draw.randbytes(size) + data[at:]
    return data[:at] + data[at:other] * 2 + data[other:] if kind == "repeated" else data[other:] + data[:other]


@pytest.mark.slow
@pytest.mark.long
def test_no_damage_hides_a_key(tmp_path):
    """Each intact batch is read or lies in a reported byte range."""
    batches, draw = [b for b in drawn_batches(11, 25) if LONG not in {r.key for r in b.records}], random.Random(3)
    whole, path = b"".join(b.data for b in batches), tmp_path / segment_file(0, "log")
    keys, n_read = [key for key in KEYS if key != LONG], 0
    for case in range(150):
        data = damaged(draw, whole)
        path.write_bytes(data)
        result, problems = search([path], keys)
        ranges = [_STRETCH.fullmatch(p.stretch) for p in problems]
        unread = [tuple(int(n.replace(",", "")) for n in one.groups()[:2]) for one in ranges if one]
        assert len(unread) == len(problems), problems
        for batch in batches:
            wanted = [r.key for r in batch.records if not batch.control and r.key in keys]
            at = data.find(batch.data)
            if at >= 0 and wanted:
                got = [row[0] for row in result if row[2] == at and not row[6]]
                near = any(first < at + len(batch.data) and last >= at for first, last in unread)
                assert got == wanted or near, (case, at, problems)
                n_read += got == wanted
    assert n_read > 500


def test_zeros_of_a_preallocated_log_have_no_key(tmp_path):
    path = write_log(tmp_path, [data_batch(0, [(START_MS, b"a", b"v")])])
    path.write_bytes(path.read_bytes() + bytes(100_000))
    result, problems = search([path])
    assert len(result) == 1 and problems == ()


def test_file_changed_after_the_listing_is_reported(tmp_path):
    logs = [write_log(tmp_path, [data_batch(base, [(START_MS, b"a", b"v")])], base) for base in (0, 10, 20)]
    files = [search_file(path) for path in logs]
    removed, grown, shrunk = logs
    removed.unlink()
    grown.write_bytes(grown.read_bytes() * 2)
    shrunk.write_bytes(shrunk.read_bytes()[:40])
    searched = search_files(KeySet.of(KEYS), None, files)
    rows = unpacked(searched.findings).to_pylist()
    assert [(row["file"], row["offset"]) for row in rows if row["offset"] is not None] == [(1, 10)]
    assert [(p.file, p.problem.kind) for p in searched.problems] == [(0, "unreadable"), (1, "changed"), (2, "changed")]


def test_search_accepts_a_hundred_thousand_keys(tmp_path):
    draw = random.Random(1)
    keys = [b"user-%d" % draw.getrandbits(40) for _ in range(100_000)]
    written = draw.sample(keys, 500) + [b"user-x%d" % i for i in range(500)]
    draw.shuffle(written)
    batches = [data_batch(i, [(START_MS, key, None)]) for i, key in enumerate(written)]
    path = write_log(tmp_path, batches)
    result, problems = search([path], keys)
    assert result == expected(path, batches, set(keys)) and len(result) == 500 and problems == ()


@pytest.mark.parametrize("seed", range(3))
def test_byte_search_equals_a_plain_search(seed):
    """Keys of few letters overlap and repeat: every first place of each counts, also across the borders of windows."""
    draw = random.Random(seed)
    text = bytes(draw.choices(b"ab", k=3000)) + LONG[:70_000] + b"abab"
    keys = list({text[at : at + draw.randint(4, 40)] for at in (draw.randrange(len(text)) for _ in range(200))})
    keys += [b"abcd", b"xxxxx", LONG[:60_000], b"ab"]
    result, data = Found(len(keys)), np.frombuffer(text, np.uint8)

    def read(position, out):
        out[:] = data[position : position + len(out)]

    search_bytes(KeySet.of(keys), read, 0, len(text), result)
    got = {keys[row["key"]]: row["position"] for row in unpacked(result.packed()).to_pylist()}
    assert got == {key: text.find(key) for key in keys if key in text and len(key) >= 4}


def test_search_windows_overlap_by_the_longest_key(monkeypatch):
    monkeypatch.setattr("lastkey.udfs.key_search.find_in_logs.CHUNK_BYTES", 64)
    text = bytes(random.Random(5).choices(b"abc", k=2000))
    keys = list({text[at : at + 30] for at in range(0, 1970, 7)})
    result, data = Found(len(keys)), np.frombuffer(text, np.uint8)

    def read(position, out):
        out[:] = data[position : position + len(out)]

    search_bytes(KeySet.of(keys), read, 0, len(text), result)
    got = {keys[row["key"]]: row["position"] for row in unpacked(result.packed()).to_pylist()}
    assert got == {key: text.find(key) for key in keys}


def test_other_files_are_searched_and_short_keys_are_noted_as_unsearched(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"about user-7 and a")
    result, [problem] = search([path], kind="bytes")
    assert result == [(b"user-7", "notes.txt", 6, None, None, None, True)]
    assert problem.stretch == "not searched for these: they are too short to be distinguished from other bytes"
    assert problem.problem.found == "2 shorter ones"


def test_table_columns_are_searched_for_whole_keys_and_texts_for_parts(tmp_path):
    path = tmp_path / "part.parquet"
    columns = {
        "key": pa.array([b"a", b"aa", None, b"user-7"], pa.binary()),
        "path": ["user-7", "", "", ""],
        "summary": ["", "the worst is user-7", "", None],
        "worst": [[{"x": b"user-70"}], [], None, []],
    }
    pq.write_table(pa.table(columns), path)
    result, [problem] = search([path], [b"a", b"user-7", b"user-70"], kind="table", of_audits=True)
    assert [(row[0], row[2], row[6]) for row in result] == [
        (b"a", 0, False), (b"user-7", 3, False), (b"user-7", 0, True), (b"user-7", 0, True), (b"user-70", 0, True)
    ]  # fmt: skip
    assert problem.stretch == "columns summary, worst were not searched for short keys, which stand in any text"
    result, _ = search([path], [b"a", b"user-7"], kind="table")  # a foreign table: its columns may mean anything
    assert [(row[0], row[2], row[6]) for row in result] == [
        (b"a", 0, False), (b"user-7", 3, False), (b"user-7", 0, False), (b"user-7", 0, True), (b"user-7", 0, True)
    ]  # fmt: skip


def test_keys_are_found_in_any_type_with_bytes(tmp_path):
    text = pa.array(["user-7", None, "x"])
    columns = {
        "dictionary": text.dictionary_encode(),
        "large": text.cast(pa.large_string()),
        "view": text.cast(pa.string_view()),
        "fixed": pa.array([b"user-7", None, b"user-8"], pa.binary(6)),
        "json": pa.ExtensionArray.from_storage(pa.json_(), text),
        "number": [1, 2, 3],
    }
    path = tmp_path / "part.parquet"
    pq.write_table(pa.table(columns), path)
    result, _ = search([path], [b"user-7"], kind="table")
    assert [row[6] for row in result] == 5 * [False]


def test_malformed_parquet_file_is_reported(tmp_path):
    path = tmp_path / "part.parquet"
    path.write_bytes(b"PAR1 torn")
    result, problems = search([path], [b"torn", b"a"], kind="table")
    assert result == [(b"torn", "part.parquet", 5, None, None, None, True)]
    assert [(p.problem.kind, p.stretch.partition(" ")[0]) for p in problems] == [
        ("side_file", "searched"),
        ("side_file", "not"),
    ]
