"""A run notes policies that are older than the metadata in its archive."""

from __future__ import annotations

import json

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.errors import DONE, USAGE
from lastkey.udfs.cluster_metadata.log_files import FOLDER
from tests.builders.logs import write_partition
from tests.builders.metadata import NO_OP, config, topic, write_log


@pytest.fixture
def archive(tmp_path):
    write_partition(tmp_path / "archive" / "disk" / "t-0", "a=1 b=2 | a=3 || c=1")
    values = [topic("t", 1), config("t", "cleanup.policy", "compact"), NO_OP]
    write_log(tmp_path / "archive" / "disk" / FOLDER, values)
    return tmp_path / "archive"


def compacted(tmp_path, archive, capsys, config_file):
    words = [str(archive), "--store", str(tmp_path / "store"), "--config", str(config_file), "--json"]
    assert cli.main(["compact", *words]) == DONE
    return json.loads(capsys.readouterr().out)


def test_a_run_notes_later_changes(tmp_path, archive, capsys):
    out = tmp_path / "policies.toml"
    assert cli.main(["policies", str(archive / "disk"), "--output", str(out)]) == DONE
    assert "offset = 3 " in out.read_text()
    capsys.readouterr()
    assert compacted(tmp_path, archive, capsys, out)["notes"] == []
    write_log(archive / "disk" / FOLDER, [NO_OP, config("t", "retention.ms", "5"), topic("u", 2)], 3)
    output = compacted(tmp_path, archive, capsys, out)
    [note] = output["notes"]
    assert note.startswith(f"{out}: policies of 2023-11-14 22:13; ")
    assert note.endswith("has 2 later changes of topics or settings, from offset 4 on; make them again")
    assert "notes" not in [why["kind"] for why in output["archive_needed_because"]]  # it has no note about the archive


def test_made_section_is_validated(tmp_path, archive, capsys):
    path = tmp_path / "c.toml"
    path.write_text('[made]\noffset = "x"\n')
    assert cli.main(["compact", str(archive), "--store", str(tmp_path / "s"), "--config", str(path)]) == USAGE
    assert "[made]: offset: expected a whole number" in capsys.readouterr().err
