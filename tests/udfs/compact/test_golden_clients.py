"""Logs of other clients, and a broker's own topics, compacted three times: the result equals that of Kafka's cleaner.

The digests are of the real cleaner's output (tests/golden/make_clients.py). tests/kafka/test_clients.py asks it again,
and compares record by record.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.folders import Outcome, archived_at, compact, golden_plan
from tests.golden import PASSES, Case, client_names, clients, digest_of_logs


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return clients(tmp_path_factory)


def digest(ours: Outcome) -> str:
    sizes = [segment.size_bytes for segment in ours.result.log.segments]
    return digest_of_logs(ours.path(i).read_bytes()[:size] for i, size in enumerate(sizes))


@pytest.mark.long
@pytest.mark.parametrize("name", client_names())
def test_three_passes_give_the_result_of_kafkas_cleaner(theirs: dict[str, Case], name: str, tmp_path: Path) -> None:
    case = theirs[name]
    [partition] = case.partitions
    archived = archived_at(case.folder / "input", partition)
    different = []
    for number in PASSES:
        ours = compact(golden_plan(case, partition, number, archived, tmp_path / str(number)))
        assert ours.result.problem is None
        different.append(digest(ours))
        archived = ours.as_archive(tmp_path / f"{number}.archive", snapshots=True)
    assert different == case.meta["partitions"][partition]["expected"]
