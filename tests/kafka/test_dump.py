"""Our dump against kafka-dump-log itself, line by line: every file of every golden case, and text that is none."""

from __future__ import annotations

import random
import re
import struct
from collections import Counter

import pytest

from lastkey.logformat.dump.files import DumpOptions, dump
from lastkey.logformat.dump.log import LogOptions, as_strings
from lastkey.logformat.writing.segment_writer import SegmentWriter
from tests.builders.logs import Row, arrow_records, write_partition, write_segment
from tests.golden import case_names, golden
from tests.kafka_lab import dump_log_findings, dump_log_segments
from tests.kafka_lab.errors import LabError

pytestmark = pytest.mark.kafka

_KINDS = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
_FILES = 200  # named in one call of the tool

MODES = {
    "shallow": ([], DumpOptions()),
    "deep": (["--deep-iteration"], DumpOptions(LogOptions(deep=True))),
    "data": (["--print-data-log"], DumpOptions(LogOptions(deep=True, decode=as_strings))),
    "plain": (
        ["--print-data-log", "--skip-record-metadata"],
        DumpOptions(LogOptions(deep=True, decode=as_strings, metadata=False)),
    ),
    "verify": (["--verify-index-only"], DumpOptions(verify_index_only=True)),
}


def ours(paths, options):
    out: list[bytes] = []
    findings = dump(paths, options, lambda data: out.append(bytes(data)))
    assert findings.all_problems == []
    return b"".join(out).decode()


@pytest.mark.parametrize("mode", MODES)
def test_every_file_of_the_golden_cases_is_dumped_as_by_kafka(mode, tmp_path_factory):
    flags, options = MODES[mode]
    cases = golden(tmp_path_factory)
    files = [
        path
        for name in case_names()
        for partition in cases[name].partitions
        for folder in (cases[name].input(partition), *(cases[name].expected(n, partition) for n in (1, 2, 3)))
        for path in sorted(folder.iterdir())
        if path.suffix in _KINDS
    ]
    assert len(files) > 1000
    for i in range(0, len(files), _FILES):
        part = files[i : i + _FILES]
        theirs = dump_log_segments(*flags, "--files", ",".join(map(str, part)))
        mine = ours(part, options)
        if mine != theirs:
            pairs = zip(mine.splitlines(), theirs.splitlines(), strict=False)
            assert next(((a, b) for a, b in pairs if a != b), None) is None
            assert len(mine) == len(theirs)


def test_invalid_text_is_dumped_as_by_kafka(tmp_path):
    rng = random.Random(7)
    pieces = [b"\xc2", b"\xe0\xa0", b"\xe0\x80", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xf0\x9f", b"\xf4\x90", b"\xf5",
              b"\xff", b"\x80", b"a", "é€😀".encode(), b"\xef\xbf\xbd", b"\xf0\x80", b"\xe1", b"\xf8\x88"]  # fmt: skip
    values = [b"".join(rng.choices(pieces, k=rng.randrange(8))).replace(b"\n", b"") for _ in range(3000)]
    values += [
        bytes(rng.choices([*range(10), *range(11, 13), *range(14, 256)], k=rng.randrange(6))) for _ in range(3000)
    ]
    rows = [Row(key=value if i % 7 else None, value=values[-i] if i % 5 else None) for i, value in enumerate(values)]
    with SegmentWriter(tmp_path, 0) as writer:
        writer.append_records(arrow_records(rows))
    [log] = tmp_path.glob("*.log")
    theirs = dump_log_segments("--print-data-log", "--files", log)
    assert ours([log], DumpOptions(LogOptions(deep=True, decode=as_strings))) == theirs


def test_other_control_records_are_dumped_as_by_kafka(tmp_path):
    log = write_segment(tmp_path, "a=1 | {pid=1 commit} | b=2")
    data = log.read_bytes()
    for kind in (7, 0x7FFF):
        log.write_bytes(data.replace(b"\0\0\0\x01\x0c", b"\0\0" + kind.to_bytes(2, "big") + b"\x0c"))
        text = ours([log], DumpOptions(LogOptions(deep=True, decode=as_strings)))
        assert text == dump_log_segments("--print-data-log", "--files", log)


def dump_findings(paths, options):
    findings = dump(paths, options, lambda data: None)
    assert findings.all_problems == []
    return "".join(findings.text())


def rising(text):
    """Sort pairs that the tool prints in the order of a hash map."""
    out: list[list[str]] = []
    for line in text.splitlines(keepends=True):
        if line.startswith(("Mismatches", "Non-consecutive", "Found", "The following")):
            out.append([line])
        else:
            out[-1].append(line)
    for block in out:
        if block[0].startswith(("Mismatches", "Non-consecutive")):
            block[1:] = sorted(block[1:], key=lambda line: int(re.findall(r"-?\d+", line)[0]))
    return "".join(line for block in out for line in block)


@pytest.mark.parametrize("mode", ["data", "verify"])
def test_findings_for_every_file_of_the_golden_cases_equal_those_of_kafka(mode, tmp_path_factory):
    """Each call dumps one file: the tool orders several by a hash map."""
    flags, options = MODES[mode]
    cases, n_findings = golden(tmp_path_factory), 0
    for name in case_names():
        for partition in cases[name].partitions:
            for folder in (cases[name].input(partition), cases[name].expected(3, partition)):
                for path in sorted(folder.iterdir()):
                    if path.suffix in (".log", ".index", ".timeindex"):
                        theirs = dump_log_findings(*flags, "--files", path)
                        assert dump_findings([path], options) == rising(theirs)
                        n_findings += bool(theirs)
    assert n_findings >= 10


def test_findings_for_wrong_indexes_equal_those_of_kafka(tmp_path):
    """Entries changed at random. A position that is no batch's is a mismatch here; there the tool reads what it finds,
    and ends.
    """
    rng = random.Random(11)
    batches = " | ".join(
        f"{{ts={1000 + 10 * i} codec={rng.choice(['none', 'zstd'])}}} k={'v' * 3000} k=w k=x" for i in range(40)
    )
    folder = write_partition(tmp_path / "t-0", batches).folder
    seen: Counter[str] = Counter()
    for suffix, entry, fields in ((".index", struct.Struct(">ii"), 1), (".timeindex", struct.Struct(">qi"), 2)):
        [path] = folder.glob(f"*{suffix}")
        whole = path.read_bytes()
        entries = list(entry.iter_unpack(whole))
        assert len(entries) > 5
        for _ in range(60):
            changed = [list(values) for values in entries]
            for _ in range(rng.randrange(1, 4)):
                values, field = rng.choice(changed), rng.randrange(fields)
                values[field] = max(values[field] + rng.choice([-10, -3, -1, 1, 2, 5, 100]), 0)
            path.write_bytes(b"".join(entry.pack(*values) for values in changed))
            for flags in ([], ["--verify-index-only"]):
                theirs = dump_log_findings(*flags, "--files", path)
                assert dump_findings([path], DumpOptions(verify_index_only=bool(flags))) == rising(theirs)
                seen.update(line for line in theirs.splitlines() if not line.startswith(("  ", "Indexed")))
                assert dump_log_segments(*flags, "--files", path) == ours(
                    [path], DumpOptions(verify_index_only=bool(flags))
                )
        path.write_bytes(whole)
    assert len(seen) == 4
    assert min(seen.values()) > 10


@pytest.mark.parametrize("batches", ["", "a=1 b=2 | c=3", "a=1 | c=3"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("n", [1, 3])
def test_zero_filled_index_is_dumped_as_by_kafka(tmp_path, batches, suffix, n):
    log = write_segment(tmp_path, batches) if batches else tmp_path / "00000000000000000000.log"
    log.touch()
    for each, size in ((".index", 8), (".timeindex", 12)):  # the tool looks into both
        log.with_suffix(each).write_bytes(bytes(size * n))
    index = log.with_suffix(suffix)
    for flags in ([], ["--verify-index-only"]):
        options = DumpOptions(verify_index_only=bool(flags))
        if not batches and suffix == ".index":
            with pytest.raises(LabError, match="NoSuchElementException"):
                dump_log_segments(*flags, "--files", index)
            assert [p.kind for p in dump([index], options, lambda data: None).all_problems] == ["index"]
            continue
        assert ours([index], options) == dump_log_segments(*flags, "--files", index)
        assert dump_findings([index], options) == rising(dump_log_findings(*flags, "--files", index))
