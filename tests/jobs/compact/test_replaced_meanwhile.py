"""Another run replaces the generation that a run is about to read, and a vacuum without grace takes its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lastkey.jobs.command import cli
from tests.builders.logs import START_MS, write_partition
from tests.builders.steps import at_step

_CONFIG = '[defaults]\n"cleanup.policy" = "compact"\n"min.cleanable.dirty.ratio" = 0.0\n'


def test_files_deleted_by_vacuum_during_a_run_are_a_conflict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A generation that another run replaces during the read is a conflict (exit code 4), not an unreadable file (exit
    code 3).
    """
    config, archive, store = tmp_path / "lastkey.toml", tmp_path / "archive", tmp_path / "store"
    config.write_text(_CONFIG)
    words = ["compact", str(archive), "--store", str(store), "--config", str(config), "--now", str(START_MS + 1000)]
    write_partition(archive / "t-0", "a=1 | a=2 || b=1 || c=1")
    assert cli.main(words) == 0
    write_partition(archive / "t-0", "a=1 | a=2 || b=1 | b=2 || c=1 || d=1 || e=1")

    def replace() -> None:
        for path in (store / "state" / "running").iterdir():  # the runs do not see the leases of each other
            path.unlink()
        assert cli.main(words) == 0
        assert cli.main(["vacuum", "--store", str(store), "--grace-hours", "0"]) == 0

    capsys.readouterr()
    with at_step("wave planned", replace):
        assert cli.main([*words, "--json"]) == 4
    output = capsys.readouterr().out
    report = json.loads(output[output.index('{\n  "job": "compact"') :])
    assert "expected generation 1" in report["conflict"]
    assert "found generation 2" in report["conflict"]
    assert cli.main(["verify", "--store", str(store)]) == 0
