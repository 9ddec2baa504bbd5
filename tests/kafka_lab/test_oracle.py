"""The oracles on golden partitions: results equal those of real brokers and tools."""

from __future__ import annotations

import filecmp
import re
import shutil
from dataclasses import asdict

import pytest

from tests.golden import DUMPED, PASSES, case_names
from tests.kafka_lab import CleanSpec, clean, digest, dump, dump_log_segments, index_check, load_under_broker
from tests.kafka_lab.jars import NEW

pytestmark = pytest.mark.kafka

INDEXED = re.compile(r"\d{20}\.(log|index|timeindex|txnindex)")


def indexed_files(folder):
    return {path.name for path in folder.iterdir() if INDEXED.fullmatch(path.name)}


@pytest.mark.parametrize("name", case_names())
def test_kafka_cleaner_writes_the_golden_bytes(cases, name, tmp_path):
    case = cases[name]
    passes = [(number, partition) for number in PASSES for partition in case.partitions]
    for number, partition in passes:
        shutil.copytree(case.before(number, partition), tmp_path / str(number) / partition)
    rounds = clean(
        CleanSpec(
            tmp_path / str(number) / partition,
            now_ms=case.now_ms(number, partition),
            segment_bytes=case.settings["segment.bytes"],
            first_dirty_offset=case.first_dirty_offset(number, partition),
        )
        for number, partition in passes
    )
    assert len(rounds) == len(passes)
    for number, partition in passes:
        got, expected = tmp_path / str(number) / partition, case.expected(number, partition)
        names = indexed_files(expected)
        assert indexed_files(got) == names
        _, different, missing = filecmp.cmpfiles(got, expected, names, shallow=False)
        if case.meta["cleaned_by"] == NEW:
            assert (different, missing) == ([], [])
        else:  # a later version's zstd library compresses otherwise: other bytes, and other positions in the indexes
            lines = dump([expected], kinds="BR")[expected]
            assert (dump([got], kinds="BR")[got], missing) == (lines, [])
            assert not different or any("zstd" in line for line in lines)


@pytest.mark.parametrize("name", case_names())
def test_digests_and_indexes_of_golden_partitions_are_those_of_kafka(cases, name):
    case = cases[name]
    for partition in case.partitions:
        folders = {"input": case.input(partition)} | {f"expected{n}": case.expected(n, partition) for n in PASSES}
        for kind, folder in folders.items():
            [got] = digest([folder]).values()
            recorded = case.meta["partitions"][partition][kind]
            assert asdict(got) == {figure: value for figure, value in recorded.items() if figure != "files"}
        [report] = index_check([case.expected(1, partition)]).values()
        assert report.failures == []


def test_kafka_dump_log_prints_the_golden_texts(cases):
    for name in DUMPED:
        case = cases[name]
        assert case.dumps()
        for file, text in case.dumps().items():
            printed = dump_log_segments("--deep-iteration", "--print-data-log", "--files", file)
            assert printed.replace(f"{case.folder}/", "") == text.read_text()


def test_broker_loads_logs_that_brokers_cleaned(cases):
    once = [case for name, case in cases.items() if f"{name}-more" not in cases]  # the same partitions, earlier
    report = load_under_broker([case.folder / "expected1" for case in once])
    assert len(report.hidden_times) == 27
    assert report.hidden_times["few-keys-0"] > 0, "empty segments hide records from the search by time"
    assert report.hidden_times["zstd-headers-0"] == 0
    assert any("caused truncation of conflicting" in note for note in report.notes), "appended under a later epoch"
