"""A hole at the border of segments without a trace of a cleaner: Kafka's cleaner passes over it, we ask first.

The recipe is that of logs of single-record batches whose cleaner checkpoint is lost (KAFKA-15388).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders.logs import log_text, write_partition
from tests.builders.place import NOW, Place
from tests.builders.trees import files_in
from tests.kafka_lab import CleanSpec, clean

pytestmark = pytest.mark.kafka

LOG = "{pid=1} a=1 || {pid=1} b=5@5 | {pid=1} c=6 || {pid=1} b=7 || h=8"


def test_log_with_an_accepted_gap_is_cleaned_as_by_kafka(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = Place(tmp_path, capsys)
    for folder in (place.archive, tmp_path / "k-0"):
        write_partition(folder, LOG, bases={1: 5})
    code, output = place.compact()
    assert code == 3
    assert "expected a segment that begins at offset 1, where t-0/00000000000000000000.log ends" in output
    assert "or, if this topic was ever compacted, a cleaner removed whole batches at this border" in output
    table, line = '[topics."t"]', 'gaps = "accept"'
    assert f"{line} below {table} in the settings file (--config)" in output
    settings = tmp_path / "settings.toml"
    settings.write_text(f"{table}\n{line}\n")
    list(clean([CleanSpec(tmp_path / "k-0", NOW)]))
    code, output = place.compact("--config", str(settings))
    assert code == 0
    assert "note: t-0: no segment holds offsets 1 to 4" in output
    assert "the archive is still needed" in output
    assert place.generation() == log_text(*files_in(tmp_path / "k-0"))
    archive = str(place.archive.parent)
    assert place.run("verify", archive)[0] == 3
    code, output = place.run("verify", archive, "--config", str(settings))
    assert (code, "no problem found" in output) == (0, True)
