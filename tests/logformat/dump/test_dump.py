"""logformat.dump against kafka-dump-log's own texts (tests/golden), on damage, and with what it has beyond the tool."""

from __future__ import annotations

import itertools
import json
import random
import re
import struct
import unicodedata
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lastkey.logformat.control_characters import visible, visible_bytes
from lastkey.logformat.dump.files import DumpOptions, dump, file_kind
from lastkey.logformat.dump.lines import json_lines
from lastkey.logformat.dump.log import LogOptions, RecordLimits, as_strings
from lastkey.logformat.primitives.binary_arrays import decode_text
from lastkey.logformat.writing.segment_writer import SegmentWriter
from tests.builders.logs import START_MS, Row, arrow_records, write_partition, write_segment
from tests.golden import DUMPED, golden
from tests.reference import java_text

DATA = DumpOptions(LogOptions(deep=True, decode=as_strings))


def dumped(*paths, options=DATA):
    """Return (text, findings) of a dump."""
    out: list[bytes] = []
    findings = dump(paths, options, lambda data: out.append(bytes(data)))
    return b"".join(out).decode(), findings


@pytest.mark.parametrize("name", DUMPED)
def test_golden_files_are_dumped_as_kafka_dump_log_prints_them(name, tmp_path_factory, monkeypatch):
    case = golden(tmp_path_factory)[name]
    monkeypatch.chdir(case.folder)
    assert case.dumps()
    for path, expected in case.dumps().items():
        text, findings = dumped(path.relative_to(case.folder))
        assert text == expected.read_text()
        assert findings.all_problems == []


def test_index_with_an_entry_per_append_has_no_findings(tmp_path_factory):
    case = golden(tmp_path_factory)["v1-none"]
    index = case.input("v1-none-0") / "00000000000000000000.index"
    _, findings = dumped(index)
    assert "".join(findings.text()).splitlines() == [
        f"Mismatches in :{index}",
        "  Index offset: 271, log offset: 137",
        "  Index offset: 406, log offset: 272",
    ]


def test_findings_of_a_wrong_time_index_are_reported(tmp_path):
    batches = " | ".join(f"{{ts={i}}} a={'x' * 3000}" for i in range(1, 8))
    path = write_partition(tmp_path / "t-0", batches).folder / "00000000000000000000.timeindex"
    entries = np.frombuffer(path.read_bytes(), ">i8,>i4").copy()
    assert len(entries) > 2
    entries["f0"][1] += 5
    entries["f1"][2] -= 1
    path.write_bytes(entries.tobytes())
    _, findings = dumped(path)
    lines = "".join(findings.text()).splitlines()
    assert lines[0] == f"Found timestamp mismatch in :{path}"
    assert re.fullmatch(r"  Index timestamp: \d+, log timestamp: \d+", lines[1])
    assert any("Previously indexed" in line for line in lines)


def test_index_entry_without_a_timestamp_is_accepted(tmp_path):
    """Offset -1, below the base, where no batch begins: a mismatch as any other."""
    write_segment(tmp_path, "a=1 | b=2")
    index, times = tmp_path / "00000000000000000000.index", tmp_path / "00000000000000000000.timeindex"
    index.write_bytes(struct.pack(">ii", -1, 7))
    times.write_bytes(struct.pack(">qi", -1, -1))
    _, findings = dumped(index)
    assert findings.indexes[str(index)].pairs["offsetMismatch"].tolist() == [[-1, -1]]
    (tmp_path / "00000000000000000000.log").write_bytes(b"")
    _, findings = dumped(times)
    assert findings.indexes[str(times)].pairs["offsetNotFound"].tolist() == [[-1, -1]]


def test_batch_that_is_read_twice_is_reported_once(tmp_path):
    log = write_segment(tmp_path, "a=1 | b=2 | c=3")
    data = bytearray(log.read_bytes())
    second = int(re.findall(r"position: (\d+)", dumped(log)[0])[1])
    data[second : second + 8] = struct.pack(">q", 2**63 - 1)
    log.write_bytes(data)
    text, findings = dumped(log)
    assert [(p.kind, p.position) for p in findings.all_problems] == [("offsets", second)]
    assert [line.split(" ")[2] for line in text.splitlines() if line.startswith("| ")] == ["0", "2"]


def test_folder_and_its_checkpoints_are_dumped(tmp_path):
    folder = write_partition(tmp_path / "t-0", "a=1 b=2 || a=3").folder
    (tmp_path / "replication-offset-checkpoint").write_text("0\n1\nt 0 3\n")
    text, findings = dumped(tmp_path)
    assert f"Dumping {folder}/00000000000000000000.log\nLog starting offset: 0\nbaseOffset: 0 lastOffset: 1" in text
    assert "epoch: 0 startOffset: 0" in text
    assert "topic: t partition: 0 offset: 3" in text
    second = folder / "00000000000000000002.log"
    assert "".join(findings.text()) == f"Non-consecutive offsets in {second}\n  -1 is followed by 2\n"


def test_unknown_files_are_reported(tmp_path):
    path = tmp_path / "x.swap"
    path.write_bytes(b"")
    _, findings = dumped(path)
    assert findings.unknown == [str(path)]
    assert file_kind("00000000000000000000.log.deleted") is None


def test_sparse_offsets_are_reported(tmp_path):
    log = write_segment(tmp_path, "a=1 b=2@5 | c=3@6 | d=4@9")
    _, findings = dumped(log)
    assert "".join(findings.text()).splitlines() == [
        f"Non-consecutive offsets in {log}", "  0 is followed by 5", "  6 is followed by 9",
    ]  # fmt: skip


def test_damage_is_reported_and_skipped(tmp_path):
    log = write_segment(tmp_path, "a=1 | {codec=zstd} b=2 | c=3 | d=4")
    data = bytearray(log.read_bytes())
    text, _ = dumped(log)
    starts = [int(p) for p in re.findall(r"position: (\d+)", text)]
    data[starts[1] + 65] ^= 0xFF  # inside the compressed body
    data[starts[2] + 16] = 9  # the magic
    log.write_bytes(data)
    text, findings = dumped(log)
    assert "isvalid: false" in text
    assert [line.split(" ")[2] for line in text.splitlines() if line.startswith("| ")] == ["0", "3"]
    assert {p.kind for p in findings.all_problems} == {"compressed", "magic"}


def test_reports_of_damage_hold_no_other_objects(tmp_path):
    """The frames of an error hold the buffers of the read: a few bombs would take gigabytes until the end."""
    log = write_segment(tmp_path, "{codec=gzip} a=1 | {codec=gzip} b=2 | c=3")
    data = bytearray(log.read_bytes())
    data[61 + 12] ^= 0xFF  # inside the first compressed body; no checksum is looked at
    data[12 + int.from_bytes(data[8:12], "big") + 17] ^= 0xFF  # the second batch's checksum
    log.write_bytes(data)
    _, findings = dumped(log)
    problems = findings.all_problems
    assert problems
    assert all(p.__traceback__ is None and p.__cause__ is None and p.__context__ is None for p in problems)


def test_torn_tail_is_reported_after_the_complete_batches(tmp_path):
    log = write_segment(tmp_path, "a=1 | b=2")
    data = log.read_bytes()
    log.write_bytes(data[:-3])
    text, findings = dumped(log)
    assert f"Found {len(data) // 2 - 3} invalid bytes at the end of {log.name}" in text
    assert not findings.all_problems


def test_a_missing_file_is_a_problem(tmp_path):
    _, findings = dumped(tmp_path / "00000000000000000000.log")
    assert [p.kind for p in findings.all_problems] == ["unreadable"]


@pytest.mark.parametrize(
    ("wanted", "offsets"),
    [
        (RecordLimits(key=b"a"), [0, 3]),
        (RecordLimits(start_offset=2, end_offset=4), [2, 3]),
        (RecordLimits(start_ms=START_MS + 1, end_ms=START_MS + 3), [1, 2]),
        (RecordLimits(key=b"none"), []),
    ],
)
def test_filters_select_matching_records_and_their_batches(tmp_path, wanted, offsets):
    log = write_segment(tmp_path, "a=1 b=2 | {codec=gzip} c=3 a=4 | {base=4 last=9}")
    text, _ = dumped(log, options=DumpOptions(LogOptions(deep=True, decode=as_strings, wanted=wanted)))
    assert [int(n) for n in re.findall(r"^\| offset: (\d+)", text, re.MULTILINE)] == offsets
    bases = [int(n) for n in re.findall(r"^baseOffset: (\d+)", text, re.MULTILINE)]
    assert bases == sorted({o // 2 * 2 for o in offsets})


def test_many_records_are_dumped_in_small_parts(tmp_path, monkeypatch):
    log = write_segment(tmp_path, " | ".join(" ".join(f"k{i}=v{j}" for j in range(7)) for i in range(9)))
    whole, _ = dumped(log)
    monkeypatch.setattr("lastkey.logformat.dump.log._PART_BYTES", 20)
    assert dumped(log)[0] == whole


def test_metadata_can_be_omitted(tmp_path):
    log = write_segment(tmp_path, "a=1 -=2 b=- | {pid=1 txn} c=3 | {pid=1 commit}")
    text, _ = dumped(log, options=DumpOptions(LogOptions(deep=True, decode=as_strings, metadata=False)))
    lines = [line for line in text.splitlines() if not line.startswith(("base", "Dump", "Log"))]
    assert lines == ["| key: a payload: 1", "| payload: 2", "| key: b", "| key: c payload: 3", ""]


def test_malformed_text_is_decoded_as_by_java():
    interesting = [0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4,
                   0xF5, 0xF8, 0xFF]  # fmt: skip
    values = [bytes(word) for n in range(4) for word in itertools.product(interesting, repeat=n)]
    rng = random.Random(1)
    values += [bytes(rng.choice(interesting) for _ in range(rng.randrange(12))) for _ in range(2000)]
    got = decode_text(pa.array(values, pa.binary())).to_pylist()
    assert got == [java_text.decode(value) for value in values]
    sliced = decode_text(pa.array(values, pa.binary())[17:90]).to_pylist()
    assert sliced == got[17:90]


def test_each_line_of_json_has_its_type_and_file(tmp_path):
    folder = write_partition(tmp_path / "t-0", 'a="\\x|{pid=1 txn codec=gzip} b=- | {pid=1 abort}').folder
    log = folder / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[-78 + 17] ^= 1  # the marker's checksum
    log.write_bytes(data)
    text, _ = dumped(folder, options=DumpOptions(LogOptions(deep=True, decode=as_strings), as_json=True))
    objects = [json.loads(line) for line in text.splitlines()]
    of = {kind: [o for o in objects if o["type"] == kind] for kind in {o["type"] for o in objects}}
    assert [o["lastOffset"] for o in of["batch"]] == [0, 1, 2]
    assert [o["isvalid"] for o in of["batch"]] == [True, True, False]
    assert [(o["key"], o["payload"]) for o in of["record"]] == [("a", '"\\x'), ("b", None), (None, None)]
    assert [o["controlType"] for o in of["record"]] == [None, None, "ABORT"]
    assert {o["file"] for o in of["record"]} == {str(log)}
    assert of["leaderEpoch"] == [
        {"file": f"{folder}/leader-epoch-checkpoint", "type": "leaderEpoch", "epoch": 0, "startOffset": 0}
    ]


def test_json_has_the_values_of_headers(tmp_path):
    headers = [[("a", b"1"), ("a", b"\xff"), ("", None)], [], [("b", b'"')]]
    with SegmentWriter(tmp_path, 0) as writer:
        writer.append_records(arrow_records([Row(key=b"k", value=b"v", headers=of) for of in headers]))
    text, _ = dumped(*tmp_path.glob("*.log"), options=replace(DATA, as_json=True))
    records = [o for o in map(json.loads, text.splitlines()) if o["type"] == "record"]
    assert [o["headerKeys"] for o in records] == [["a", "a", ""], [], ["b"]]
    assert [[tuple(h.values()) for h in o["headers"]] for o in records] == [
        [("a", "1"), ("a", "\ufffd"), ("", None)], [], [("b", '"')],
    ]  # fmt: skip
    plain, _ = dumped(*tmp_path.glob("*.log"), options=DumpOptions(LogOptions(deep=True), as_json=True))
    assert "headers" not in json.loads(plain.splitlines()[1])


@pytest.mark.parametrize(("kind", "shown"), [(7, "UNKNOWN(7)"), (0x7FFF, "UNKNOWN(32767)"), (3, "SNAPSHOT_HEADER(3)")])
def test_other_control_records_are_dumped(tmp_path, kind, shown):
    log = write_segment(tmp_path, "a=1 | {pid=1 commit} | b=2")
    data = log.read_bytes()
    log.write_bytes(data.replace(b"\0\0\0\x01\x0c", b"\0\0" + kind.to_bytes(2, "big") + b"\x0c"))
    text, _ = dumped(log)
    assert [line.split(" ")[2] for line in text.splitlines() if line.startswith("| ")] == ["0", "1", "2"]
    assert f" controlType: {shown}\n" in text
    text, _ = dumped(log, options=replace(DATA, as_json=True))
    assert [o["controlType"] for o in map(json.loads, text.splitlines()) if o["type"] == "record"] == [
        None,
        shown,
        None,
    ]


def test_text_above_the_limit_of_arrow_is_split(tmp_path, monkeypatch):
    log = write_segment(tmp_path, f"a=1 | b={'x' * 1000} | c=3")
    monkeypatch.setattr("lastkey.logformat.primitives.binary_arrays._MAX_TEXT", 500)
    monkeypatch.setattr("lastkey.logformat.dump.log._PART_ROWS", 1)
    text, findings = dumped(log, options=replace(DATA, as_json=True))
    assert [json.loads(line).get("offset") for line in text.splitlines()] == [None, 0, None, 2]
    [problem] = findings.all_problems
    assert (problem.kind, problem.base_offset, problem.found) == ("huge", 1, "a text of 1000 bytes")


@pytest.mark.slow
def test_json_holds_no_control_character():
    """All of Unicode, by Python's own tables; what is escaped is what `visible` shows, and tab and newline."""
    every = [chr(n) for n in range(0x110000) if not 0xD800 <= n < 0xE000]
    texts = ["".join(every[i : i + 4096]) for i in range(0, len(every), 4096)]
    lines = json_lines({"text": pa.array(texts)}).to_pylist()
    assert [json.loads(line)["text"] for line in lines] == texts
    active = {c for c in every if unicodedata.category(c) == "Cc" or unicodedata.bidirectional(c) in BIDI}
    active |= {"\u200e", "\u200f", "\u061c", "\u2028", "\u2029"}
    held = set("".join(lines))
    assert set(every) - held == active
    assert {c for c in every if visible(c) != c} == active - {"\t", "\n"}
    assert visible("a\x1b[1m\x9b\u202e\udc9b\t\n\\") == r"a\x1b[1m\x9b\u202e\udc9b" + "\t\n\\"
    assert visible_bytes(memoryview("\u20ac\x00".encode() + b"\x9b")) == "\u20ac\\x00\\udc9b".encode()


BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def test_json_escapes_every_text():
    texts = ["", "a", '"\\/', "".join(map(chr, range(130))), "\u20ac\U0001f600\ufffd", None]
    lists = [[], ["a", '"'], None, ["\n"], [""], []]
    lines = json_lines(
        {"text": pa.array(texts), "list": pa.array(lists, pa.list_(pa.string())), "one": "x"}
    ).to_pylist()
    assert [json.loads(line) for line in lines] == [
        {"text": t, "list": items, "one": "x"} for t, items in zip(texts, lists, strict=True)
    ]
    sliced = json_lines({"text": pa.array(texts)[2:5]}).to_pylist()
    assert [json.loads(line)["text"] for line in sliced] == texts[2:5]


ZEROS = [  # log, suffix, entries of zeros -> what is printed behind the first line, what is said, problems
    ("", ".index", 1, "", "", 1),
    ("", ".index", 3, "", "", 1),
    ("", ".timeindex", 3, "timestamp: 0 offset: 0\n", "The following .*\nIndexed offset: 0, found log offset: -1\n", 0),
    ("a=1 b=2 | c=3", ".index", 3, "offset: 0 position: 0\n", "Mismatches .*\n  Index offset: 0, log offset: 1\n", 0),
    ("a=1 b=2 | c=3", ".timeindex", 3, "timestamp: 0 offset: 0\n", "The .*\nIndexed offset: 0, found .*: 1\n", 0),
    ("a=1 | c=3", ".index", 3, "offset: 0 position: 0\n", "", 0),
    ("a=1 | c=3", ".timeindex", 1, "timestamp: 0 offset: 0\n", "Found timestamp .*\n  Index timestamp: 0, log .*\n", 0),
]  # fmt: skip


@pytest.mark.parametrize(("batches", "suffix", "n", "printed", "expected", "problems"), ZEROS)
def test_zero_filled_index_is_dumped(tmp_path, batches, suffix, n, printed, expected, problems):
    """Output of kafka-dump-log 4.3.0 (compared in tests/kafka); for damage the tool ends with a stack trace, Lastkey
    with a problem.
    """
    log = write_segment(tmp_path, batches) if batches else tmp_path / "00000000000000000000.log"
    log.touch()
    index = log.with_suffix(suffix)
    index.write_bytes(bytes((8 if suffix == ".index" else 12) * n))
    for verify in (False, True):
        text, findings = dumped(index, options=DumpOptions(verify_index_only=verify))
        assert text == f"Dumping {index}\n" + ("" if verify else printed)
        assert re.fullmatch(expected, "".join(line for line in findings.text() if not line.startswith("problem")))
        reported = [(p.kind, p.position, p.expected) for p in findings.all_problems]
        assert reported == [("index", 0, "a batch at byte 0 of the log")] * problems


def test_entries_above_the_end_of_a_log_are_one_problem(tmp_path):
    folder = write_partition(tmp_path / "t-0", " | ".join(f"k={'v' * 5000}" for _ in range(9))).folder
    [log], [index] = folder.glob("*.log"), folder.glob("*.index")
    whole, _ = dumped(index)
    log.write_bytes(log.read_bytes()[:20000])
    text, findings = dumped(index)
    assert whole.startswith(text)
    assert text.count("\n") == 1 + 3
    [problem] = findings.all_problems
    assert (problem.kind, problem.position, problem.expected) == ("index", 24, "a batch at byte 20284 of the log")
    assert problem.found == "the end of the log at byte 20000; 5 entries point past it"
