"""The archive of golden partitions: complete, undamaged, with its file times."""

from __future__ import annotations

import hashlib

import pytest

from tests.builders.trees import files_in
from tests.golden import DUMPED, PASSES, case_names, golden

KINDS = ("input", *(f"expected{number}" for number in PASSES))


def test_archive_has_exactly_the_cases_of_the_specs(cases):
    assert sorted(path.name for path in next(iter(cases.values())).folder.parent.iterdir()) == case_names()


def test_golden_data_is_unpacked_once_per_session(cases, tmp_path_factory):
    assert golden(tmp_path_factory)["few-keys"].folder == cases["few-keys"].folder


@pytest.mark.parametrize("name", case_names())
def test_files_equal_their_metadata(cases, name):
    case = cases[name]
    for partition in case.partitions:
        for kind in KINDS:
            folder = case.folder / kind / partition
            sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
            assert sums == case.meta["partitions"][partition][kind]["files"]


@pytest.mark.parametrize("name", case_names())
def test_timestamps_increase_and_match_the_creation_time(cases, name):
    case = cases[name]
    for partition in case.partitions:
        clocks = [case.now_ms(number, partition) for number in PASSES]
        assert clocks[0] < clocks[1] < clocks[2]
        for log in files_in(case.input(partition)):
            assert clocks[0] / 1000 - 3600 < log.stat().st_mtime < clocks[0] / 1000 + 60


def test_some_files_have_the_output_of_kafka_dump_log(cases):
    texts = {file: text for case in cases.values() for file, text in case.dumps().items()}
    assert {name for name, case in cases.items() if case.dumps()} == set(DUMPED)
    assert {file.suffix for file in texts} == {".log", ".index", ".timeindex", ".txnindex", ".snapshot"}
    for file, text in texts.items():
        assert file.is_file()
        assert text.read_text().startswith(f"Dumping {'/'.join(file.parts[-3:])}\n")
