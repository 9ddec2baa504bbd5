"""Settings that change between two runs on one store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.place import NOW, Place

SETTINGS = """
[defaults]
"cleanup.policy" = "{policy}"
"min.cleanable.dirty.ratio" = 0.0
"segment.bytes" = 200
"index.interval.bytes" = {interval}
"retention.bytes" = {keep}
[job]
engine = "threads"
"""


def test_retention_only_run_writes_indexes_with_the_new_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The manifest has the sizes of the indexes that the run has written, not those of the generation before."""
    place = Place(tmp_path, capsys)
    place.write("a=1 | b=2 | c=3 || d=4 | e=5 | f=6 || g=7 | h=8 | i=9")
    for policy, interval, keep in (("compact", 4096, -1), ("delete", 1, 300)):
        config = tmp_path / "config.toml"
        config.write_text(SETTINGS.format(policy=policy, interval=interval, keep=keep))
        words = ("compact", str(place.archive.parent), "--store", str(place.store), "--config", str(config))
        code, output = place.run(*words, "--now", str(NOW), "--sealed")
        assert (code, "1 committed" in output) == (0, True), output
    code, output = place.run("verify", "--store", str(place.store), "--config", str(config))
    assert code == 0, output
    assert place.generation().startswith("3:d=4")
