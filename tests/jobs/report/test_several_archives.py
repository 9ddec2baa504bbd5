"""`report A B ...`: one page and one text of several archives, each named on every row."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from lastkey.jobs.command import cli
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import ReportOptions
from lastkey.jobs.errors import UsageError
from lastkey.jobs.report.archive_report import short_names
from lastkey.jobs.report.job import profile_archive, profile_archives
from lastkey.jobs.topics import TopicFilter
from lastkey.udfs.report.partition_profile import DAY_MS
from tests.builders.logs import START_MS, write_partition
from tests.builders.nights import NIGHTS, run_every_night
from tests.builders.pages import needs_nothing_else
from tests.builders.profiles import HOSTILE

pytestmark = pytest.mark.slow

NOW_MS = START_MS + DAY_MS


@pytest.fixture
def archives(tmp_path: Path) -> list[Path]:
    """Two brokers' log directories with the same topic, and one with a topic of its own."""
    out = [tmp_path / name / "data" for name in ("one", "<b>two", "three")]
    write_partition(out[0] / "t-0", "a=1 b=1 a=2 || a=3 d=4")
    write_partition(out[1] / "t-0", f"{HOSTILE}=1 {HOSTILE}=2 {HOSTILE}=3 || x=1")
    write_partition(out[2] / "u-0", "c=1 || c=2")
    return out


def report_options(archives: list[Path], **given) -> ReportOptions:
    given = {"cleanup_policy": "compact", "topics": "*"} | given
    return ReportOptions(map(str, archives), "", now_ms=NOW_MS, **given)


def test_page_of_several_archives_names_the_archive_on_every_row(archives, tmp_path):
    page = tmp_path / "page.html"
    words = ["report", *map(str, archives), "--output", str(page), "--topics", "t,u", "--cleanup-policy", "compact"]
    result = CliRunner().invoke(cli.lastkey, [*words, "--json", "--now", str(NOW_MS)])
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    alone = [json.loads(json.dumps(profile_archive(report_options([one]), Silent()).to_json())) for one in archives]
    assert [one["name"] for one in report["archives"]] == ["one", "<b>two", "three"]
    for summary, one in zip(report["archives"], alone, strict=True):
        for p in summary["partitions"] + one["partitions"]:
            assert p.pop("archive") in (summary["name"], "") and p.pop("seconds") >= 0
        assert {k: summary[k] for k in ("archive", "partitions", "savings", "problems")} == {
            k: one[k] for k in ("archive", "partitions", "savings", "problems")
        }
    assert report["savings"] == {k: sum(one["savings"][k] for one in alone) for k in report["savings"]}
    text = page.read_text()
    needs_nothing_else(text)
    for name in ("one/t-0", "&lt;b&gt;two/t-0", "three/u-0"):
        assert f">{name}</a></td>" in text, "the row of the partition"
        assert f"<summary>{name} <small>" in text and f"<summary>{name[:-2]} <small>" in text
    assert "<h1>" + str(archives[0]) in text and "here called one" in text and HOSTILE not in text
    printed = profile_archives(report_options(archives), Silent()).to_text().splitlines()
    named = [f"{name}: {uri}" for name, uri in zip(("one", "<b>two", "three"), archives, strict=True)]
    assert [line for line in printed if line in named] == named
    rows = ["one/t-0", "<b>two/t-0", "three/u-0"]
    assert [line.split()[0] for line in printed if line.split()[0] in rows] == rows


def test_problem_names_its_archive(archives):
    log = next((archives[1] / "t-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-1] + b"\xff")
    report = profile_archives(report_options(archives), Silent())
    assert (report.exit_code, len(report.problems)) == (3, 1)
    assert report.problems[0].startswith("<b>two: ") and log.name in report.problems[0]
    assert [p.name() for p in report.good] == ["one/t-0", "three/u-0"]


def test_topic_in_none_of_the_archives_is_refused(archives):
    report = profile_archives(report_options(archives, topics=TopicFilter(("u",))), Silent())
    assert [p.name() for p in report.profiles] == ["three/u-0"]
    with pytest.raises(UsageError, match=r"no topic of .*one.*three.* matches v"):
        profile_archives(report_options(archives, topics=TopicFilter(("v",))), Silent())


def test_archive_given_twice_is_refused(archives, tmp_path):
    (tmp_path / "link").symlink_to(archives[0])
    for other in (archives[0], tmp_path / "link", tmp_path / "one"):
        with pytest.raises(UsageError, match="would count twice"):
            profile_archives(report_options([archives[0], other]), Silent())


def test_each_store_is_matched_with_its_archive(archives, tmp_path):
    lab = run_every_night(tmp_path / "nights", NIGHTS[:2])
    store = str(lab.store)
    report = profile_archives(report_options([*archives, lab.archive], stores=store), Silent())
    alone = profile_archive(ReportOptions(str(lab.archive), "", now_ms=NOW_MS, stores=store), Silent())
    assert [place[2] for place in report.places] == [None, None, None, store]
    (name,) = [name for name, part in report.parts.items() if part.store]
    assert report.history == {(f"{name}/{t}", n): rows for (t, n), rows in alone.history.items()}
    with pytest.raises(UsageError, match=rf"this store serves the archive {lab.archive}; expected one of "):
        profile_archives(report_options(archives, stores=store), Silent())
    shutil.copytree(store, tmp_path / "copy")
    with pytest.raises(UsageError, match="both serve"):
        profile_archives(report_options([lab.archive], stores=(store, str(tmp_path / "copy"))), Silent())


@pytest.mark.parametrize(
    ("uris", "names"),
    [
        (["/b/one/data", "/b/two/data"], ["one", "two"]),
        (["s3://one/x", "s3://two/x"], ["one", "two"]),
        (["/a/b/c", "/a/c"], ["/a/b/c", "/a/c"]),
        (["/a", "s3://a"], ["/a", "s3://a"]),
        (["/b/a/1/d", "/b/c/d", "/b/e/d"], ["a/1", "c", "e"]),
    ],
)
def test_archives_are_named_by_distinguishing_parts_of_their_paths(uris, names):
    assert short_names(uris) == names
