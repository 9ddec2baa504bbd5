"""Jobs on a disk that is really full: at any number of bytes, and of files, before the job's end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attack.full_disk import FULL, JOBS, own_mounts
from tests.attack.summary import tell
from tests.attack.warm import Warm, warm

pytestmark = [pytest.mark.attack, pytest.mark.slow]

FEW = 4  # sizes of a disk: half of enough, and none, of bytes and of files


@pytest.fixture(scope="module")
def on_small_disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm | None]:
    within, refused = own_mounts()
    if refused:
        yield None
        return
    with warm(tmp_path_factory.mktemp("disks"), within) as started:
        yield started


@pytest.mark.parametrize("job", JOBS)
def test_job_survives_a_full_disk(request: pytest.FixtureRequest, on_small_disks: Warm | None, job: str) -> None:
    """If nothing can be mounted, the faults' "full" of each operation tests the same."""
    name = f"full disk, {job}"
    if on_small_disks is None:
        refused = f"nothing can be mounted here: {own_mounts()[1]}"
        tell(request, f"{name}: skipped: {refused}")
        pytest.skip(refused)
    tried = on_small_disks.attack(request, name, f"full disk/{job}", FEW, "sizes of a disk")
    assert tried.counts[FULL], "no disk was full"
