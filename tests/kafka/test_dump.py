"""Our dump against kafka-dump-log itself, line by line: every file of every golden case, and text that is none."""

from __future__ import annotations

import random

import pytest

from logformat.dump import DumpOptions, dump
from logformat.dump_log import LogOptions, as_strings
from logformat.segment_writer import SegmentWriter
from tests.builders import Row, arrow_records
from tests.golden import case_names, golden
from tests.kafka_lab import dump_log_segments

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
    "max-bytes": (
        ["--print-data-log", "--max-bytes", "5000"],
        DumpOptions(LogOptions(deep=True, decode=as_strings, max_bytes=5000)),
    ),
    "verify": (["--verify-index-only"], DumpOptions(verify_index_only=True)),
    "sanity": (["--index-sanity-check"], DumpOptions(index_sanity_check=True)),
}


def ours(paths, options):
    out: list[bytes] = []
    findings = dump(paths, options, lambda data: out.append(bytes(data)))
    assert findings.all_problems == []
    return b"".join(out).decode()


@pytest.mark.parametrize("mode", MODES)
def test_every_file_of_the_golden_cases(mode, tmp_path_factory):
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


def test_text_that_is_none(tmp_path):
    rng = random.Random(7)
    pieces = [b"\xc2", b"\xe0\xa0", b"\xe0\x80", b"\xed\xa0\x80", b"\xf0\x9f\x98", b"\xf0\x9f", b"\xf4\x90", b"\xf5",
              b"\xff", b"\x80", b"a", "é€😀".encode(), b"\xef\xbf\xbd", b"\xf0\x80", b"\xe1", b"\xf8\x88"]  # fmt: skip
    values = [b"".join(rng.choices(pieces, k=rng.randrange(8))).replace(b"\n", b"") for _ in range(3000)]
    values += [
        bytes(rng.choices([*range(10), *range(11, 13), *range(14, 256)], k=rng.randrange(6))) for _ in range(3000)
    ]
    rows = [Row(key=value, value=values[-i]) for i, value in enumerate(values)]
    with SegmentWriter(tmp_path, 0) as writer:
        writer.append_records(arrow_records(rows))
    [log] = tmp_path.glob("*.log")
    theirs = dump_log_segments("--print-data-log", "--files", log)
    assert ours([log], DumpOptions(LogOptions(deep=True, decode=as_strings))) == theirs
