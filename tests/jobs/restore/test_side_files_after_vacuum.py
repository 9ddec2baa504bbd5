"""A `.log` that later generations take over from an older run's folder: its side files are those of each generation."""

from __future__ import annotations

import os

import pytest

from lastkey.jobs import vacuum
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import RestoreOptions, VacuumOptions
from lastkey.jobs.restore import job as restore
from lastkey.jobs.verify import job as verify
from tests.builders.archives import COMPACT, HOUR, Lab
from tests.builders.logs import START_MS, write_partition
from tests.builders.trees import files_in, tree

pytestmark = pytest.mark.slow

NOW_MS = START_MS + HOUR
DAY_NS = 24 * HOUR * 1_000_000
BEFORE = "a=1 b=2 | a=3 || c=1 a=4"
SINCE = f" | {{pid=7 txn}} d=1 e=1 | {{pid=7 abort ts={START_MS + 7}}} | e=2 || f=1"


def test_side_files_are_complete_after_a_vacuum(tmp_path):
    """Generation 2 copies the rest of a segment with an aborted transaction. Generation 3 uses that `.log`, and vacuum
    deletes the other files of generation 2.
    """
    lab = Lab(None, tmp_path)
    write_partition(lab.archive / "t-0", BEFORE)
    lab.run(NOW_MS, sealed=True)
    write_partition(lab.archive / "t-0", BEFORE + SINCE)
    only_what_was_there = {"defaults": {**COMPACT, "min.compaction.lag.ms": NOW_MS - (START_MS + 4)}}
    for generation in (2, 3):
        report = lab.run(NOW_MS, settings=only_what_was_there, force=True)
        assert report.generations == {("t", 0): generation}, report.to_text()
    state = lab.state()
    _, manifests = state.current()
    third = manifests["t", 0]
    [taken_over] = [s for s in third if s.root == "store" and "/2-" in s.path]
    assert taken_over.txn_index_bytes > 0

    for path in files_in(lab.store / "segments", "**/*"):
        if path.is_file():
            os.utime(path, ns=(path.stat().st_mtime_ns - 30 * DAY_NS,) * 2)
    vacuum.run(VacuumOptions(str(lab.store)), Silent())
    assert [p.name for p in lab.path(taken_over).parent.iterdir()] == [lab.path(taken_over).name]
    lab.check_whole(third)
    before = _restored(lab, "third")
    assert any(path.endswith(".txnindex") for path in before)

    report = lab.run(NOW_MS, settings=only_what_was_there, force=True)
    assert report.generations == {("t", 0): 4}
    assert not any("txnindex" in note for note in report.results[0].notes), report.results[0].notes
    _, manifests = state.current()
    lab.check_whole(manifests["t", 0])
    checked = verify.run(VerifyOptions(store=str(lab.store)), Silent())
    assert checked.problems == []
    assert checked.results[0].compared_records > 0
    assert _restored(lab, "fourth") == before


def _restored(lab: Lab, name: str) -> dict[str, str]:
    output = lab.root / name
    restore.run(RestoreOptions(str(lab.store), str(output)), Silent())
    return {path: digest for path, (digest, _) in tree(output).items()}
