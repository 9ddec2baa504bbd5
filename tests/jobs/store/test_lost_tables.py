"""One table of a store lost: what hangs on it is refused, or found elsewhere; never taken for empty."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace

import pytest

from jobs import vacuum
from jobs.command.options import RestoreOptions, VacuumOptions
from jobs.command.progress import Silent
from jobs.errors import JobError
from jobs.restore import job as restore
from jobs.store.rows import PartitionState
from jobs.store.tables import open_state
from tests.builders.stores import StoreMaker, make_commit, row, run_id

OLD, NEW = b"a" * 1000, b"b" * 2000


@pytest.fixture
def maker(tmp_path):
    """t-0: generation 2 keeps a segment of generation 1; generation 3 began anew: 2 may be the only copy."""
    made = StoreMaker(tmp_path)
    first = made.generation("t", 0, 1, {0: OLD, 100: NEW})
    made.generation("t", 0, 2, {0: NEW}, kept=first[1:])
    made.generation("t", 0, 3, {0: NEW}, anew=True)
    made.archived("t", 0, 0, OLD)
    return made


def test_an_older_generation_of_which_no_segments_are_known_is_not_restored_as_empty(maker):
    output = maker.folder / "restored"
    shutil.rmtree(maker.store / "state" / "log_segments")
    with pytest.raises(JobError):
        restore.run(RestoreOptions(str(maker.store), str(output), generation=2), Silent())
    assert not output.exists()


def test_vacuum_keeps_what_only_log_segments_could_name(maker):
    """The folder of generation 2 stays, since it may be the only copy; its first run's .log must stay with it."""
    maker.age(400, *[maker.run_folder("t", 0, g) for g in (1, 2, 3)])
    kept = maker.run_folder("t", 0, 1) / "00000000000000000100.log"
    vacuum.run(VacuumOptions(str(maker.store)), Silent())
    assert kept.exists(), "as long as the table is there"
    shutil.rmtree(maker.store / "state" / "log_segments")
    with contextlib.suppress(JobError):  # to refuse is as good
        vacuum.run(VacuumOptions(str(maker.store)), Silent())
    assert kept.exists()


def test_how_a_partition_stood_before_a_rollback_is_not_said_of_the_generation_that_is_current_then(tmp_path):
    state = open_state(str(tmp_path))
    first, second = make_commit(0, 1, run_id(1)), make_commit(0, 2, run_id(2), run_id(1))
    state.commit_wave([first])
    state.commit_wave([second])
    said = row(PartitionState, topic="t", partition=0, state="dirty", generation=2, run_id=run_id(3))
    back = replace(first, planned_generation=2, planned_run_id=run_id(2))
    open_state(str(tmp_path)).roll_back([back], lambda: None)
    state.set_states([said])  # of a compact that looked at generation 2
    assert ("t", 0) not in state.states()
