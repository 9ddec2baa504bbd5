"""Objects of a notebook, and the notebook itself from top to bottom."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lastkey.jobs.compact.report import CompactReport
from lastkey.jobs.errors import MissingPathError, UsageError
from lastkey.jobs.notebook import open_archive
from lastkey.udfs.report.partition_profile import DAY_MS
from tests.builders.logs import START_MS, write_partition

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks/inspect.ipynb"


@pytest.fixture
def archive(tmp_path: Path):
    write_partition(tmp_path / "a/t-0", "<b>=1 <b>=2 x=- || y=1")
    write_partition(tmp_path / "a/t-1", "z=1 || z=2")
    write_partition(tmp_path / "a/other-0", "z=1")
    (tmp_path / "a/cleaner-offset-checkpoint").write_text("0\n2\nt 0 0\nt 1 0\n")
    return open_archive(str(tmp_path / "a"), now_ms=START_MS + DAY_MS)


def test_archive_lists_topics_partitions_and_segments(archive):
    assert list(archive) == ["other-0", "t-0", "t-1"]
    assert archive.topics.loc["t"].to_dict() | {"bytes": 0} == {
        "partitions": 2, "segments": 4, "bytes": 0, "policy": "compact",
    }  # fmt: skip
    assert archive.topics.loc["other", "policy"] == "delete"
    assert list(archive["t-0"].segments["base_offset"]) == [0, 3]
    assert {Path(path).is_file() for path in archive["t-0"].paths} == {True}
    assert "t-0" in repr(archive["t-0"]) and "3 partitions" in repr(archive)


def test_error_for_a_misspelt_partition_suggests_the_nearest(archive):
    with pytest.raises(KeyError, match="did you mean t-0"):
        archive["t-00"]
    with pytest.raises(MissingPathError):
        open_archive(archive.uri + "/missing")


def test_credentials_are_refused_and_not_repeated():
    with pytest.raises(UsageError, match="without credentials") as refused:
        open_archive("s3://AKIA:hush@bucket/a")
    assert "hush" not in str(refused.value)


def test_profile_selects_topics(archive):
    def names(*topics, **exclude):
        return [partition_profile.name() for partition_profile in archive.profile(*topics, **exclude).profiles]

    assert names("t,other") == ["other-0", "t-0", "t-1"]
    assert names("*", exclude="t") == ["other-0"]
    with pytest.raises(UsageError, match=r"no topic of .* matches ohter; did you mean other"):
        archive.profile("t,ohter")


def test_profile_has_tables(archive):
    profile = archive["t-0"].profile()
    assert (profile.found.name(), profile.found.distinct_keys) == ("t-0", 3)
    assert list(profile.segments["superseded"]) == [1, 0]
    assert profile.tombstones.sum() == 1
    assert profile.codecs.loc["none", "batches"] == 2
    assert profile.hot_keys["text"].iloc[0] == "<b>"
    assert [p.name() for p in archive.profile("t").profiles] == ["t-0", "t-1"]


@pytest.mark.slow
def test_every_object_has_an_escaped_html_representation(archive):
    report = CompactReport("<b>", "S", "r", 0, True, notes=["<b>"])
    for shown in (archive, archive["t-0"], archive["t-0"].profile(), archive.profile(), report):
        html = shown._repr_html_()
        assert html.lstrip().startswith("<")
        assert "<b>=" not in html and "<td><b>" not in html
    html = archive["t-0"].profile()._repr_html_()
    assert "<svg" in html and "Live and dead bytes by segment" in html and ">&lt;b&gt;<" not in html
    assert "note: &lt;b&gt;" in report._repr_html_()


def test_damage_is_shown_in_html(archive):
    log = Path(archive["t-0"].paths[0])
    log.write_bytes(log.read_bytes()[:-1] + b"\xff")
    assert "problem:" in archive["t-0"].profile()._repr_html_()
    assert "problem:" in archive.profile()._repr_html_()


def test_partition_without_a_plan_shows_its_problem(archive):
    for folder in ("one", "two"):
        write_partition(Path(archive.uri) / folder / "twice-0", "a=1")
    profile = open_archive(archive.uri)["twice-0"].profile()
    assert profile.segments.empty and profile.codecs.empty and profile.hot_keys.empty
    assert profile.tombstones.sum() == 0 and "problem:" in profile._repr_html_()


def test_empty_archive_has_an_html_representation(tmp_path):
    opened = open_archive(str(tmp_path))
    assert opened.topics.empty and opened._repr_html_() and opened.profile()._repr_html_()


def test_notebook_is_stored_without_outputs_and_machine_names():
    text = NOTEBOOK.read_text()
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert len(cells) > 5
    assert [cell for cell in cells if cell["outputs"] or cell["execution_count"] is not None] == []
    assert not re.search(r"/(root|home|tmp)/", text)


RUN = """
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], 4)
place = {"metadata": {"path": sys.argv[3]}}
nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=place).execute()
nbformat.write(notebook, sys.argv[2])
"""


@pytest.mark.spark
@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    out = tmp_path / "executed.ipynb"
    words = [sys.executable, "-c", RUN, str(NOTEBOOK), str(out), str(NOTEBOOK.parent)]
    completed = subprocess.run(words, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr[-4000:]
    cells = [cell for cell in json.loads(out.read_text())["cells"] if cell["cell_type"] == "code"]
    outputs = [json.dumps(cell["outputs"]) for cell in cells]
    assert [text for text in outputs if '"output_type": "error"' in text] == []
    whole = "\n".join(outputs)
    for expected in (
        "orders", "Live and dead bytes by segment", "905 keys in 12,818 records", "would be clean", "% less",
        "Keys that have waited longest",
    ):  # fmt: skip
        assert expected in whole, expected
    assert whole.count("image/png") == 2, "plots of the tables of an audit"
    assert not (NOTEBOOK.parents[1] / "work/notebook-store").exists(), "a dry run writes nothing"
