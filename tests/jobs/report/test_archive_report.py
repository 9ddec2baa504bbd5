"""The report: figures, text, JSON, and a page on which nothing from the archive is markup."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable

from lastkey.jobs.command import cli
from lastkey.jobs.command.config import Config, load_config, parse_config
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import ReportOptions
from lastkey.jobs.command.reporting import size
from lastkey.jobs.errors import UsageError
from lastkey.jobs.report import job as archive_report
from lastkey.jobs.report import page as report_page
from lastkey.jobs.report.job import profile_archive
from lastkey.jobs.report.plots import history_rows
from lastkey.jobs.store.rows import RunRow
from lastkey.jobs.topics import TopicFilter
from lastkey.udfs.report.partition_profile import DAY_MS
from tests.builders.damage import build
from tests.builders.logs import START_MS, write_partition
from tests.builders.pages import needs_nothing_else
from tests.builders.profiles import HOSTILE, a_segment, large, many
from tests.builders.trees import files_in

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]


def options(archive: Path, **given) -> ReportOptions:
    given = {"output": str(archive.parent / "report.html"), "now_ms": START_MS + DAY_MS} | given
    return ReportOptions(str(archive), **given)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    folder = tmp_path / "archive"
    write_partition(folder / "t-0", "a=1 b=1 a=2 | c=- || a=3 d=4")
    write_partition(folder / "t-1", f"{HOSTILE}=1 {HOSTILE}=2 {HOSTILE}=3 || x=1")
    write_partition(folder / "plain-0", "-=1 -=2 || -=3")
    return folder


def test_report_profiles_an_archive(archive):
    config = Config(topics={"t": {"cleanup_policy": ("compact",)}})
    report = archive_report.run(options(archive, config=config), Silent())
    assert report.exit_code == 0
    assert [(p.name(), p.compacted, p.total("dead_records")) for p in report.profiles] == [
        ("plain-0", False, 0), ("t-0", True, 1), ("t-1", True, 2),
    ]  # fmt: skip
    text = (archive.parent / "report.html").read_text()
    needs_nothing_else(text)
    assert HOSTILE not in text and "&lt;script&gt;alert" in text
    for title in ("Size before and after", "Dirty ratio", "Records by time", "Tombstones by age", "Hot keys",
                  "Compression by codec", "Live and dead bytes by segment"):  # fmt: skip
        assert title in text
    assert text.count('role="img"') == text.count("aria-label=") - text.count('role="region"') - 2  # summary, links
    fields = report.to_json()
    assert json.loads(json.dumps(fields))["partitions"][1]["hot_keys"][0]["text"] == "a"
    assert "t-1" in report.to_text() and "report.html" in report.to_text()


def test_page_begins_with_the_most_important_facts(archive):
    """The one partition to begin with, keys by their text, axes with names, Kafka's own topics apart."""
    write_partition(archive / "__transaction_state-0", "k=1 k=2 || k=3")
    write_partition(archive / "t-2", "日本=1 a=1 || 日本=2")  # a script that few fonts have
    config = Config(topics={"t": {"cleanup_policy": ("compact",)}})
    report = archive_report.run(options(archive, config=config), Silent())
    text = (archive.parent / "report.html").read_text()
    saved = {p.name(): p.size_bytes - p.total("bytes_after") for p in report.profiles if p.compacted}
    best = max(saved, key=saved.get)
    assert f"<p>Most to gain: {best}. A compaction would save {size(saved[best])} of " in text
    for shown in ("t-2 日本", "segment (partition: base offset)", "segment (base offset)", "on (UTC)"):
        assert text.count(shown) >= 2, shown
    own = text.index("<h2>Kafka's own topics</h2>")
    assert text.index("<summary>plain ") < own < text.index("<summary>__transaction_state ")
    assert "__transaction_state-0 k" not in text  # no hot key


def test_report_shows_what_retention_would_delete(archive):
    config = parse_config({"topics": {"plain": {"cleanup.policy": "delete", "retention.bytes": 0}}})
    report = archive_report.run(options(archive, config=config), Silent())
    text = "1 segment by size (2 records, "
    assert f"would expire: plain-0: {text}" in report.to_text()
    assert text in (archive.parent / "report.html").read_text(encoding="utf-8")
    [plain] = [p for p in report.to_json()["partitions"] if p["topic"] == "plain"]
    assert [(entry["reason"], entry["segments"]) for entry in plain["expiring"]] == [("size", 1)]


def test_report_omits_zero_savings(archive):
    report = archive_report.run(options(archive, topics=TopicFilter(("plain",))), Silent())
    assert report.exit_code == 0
    assert "Most to gain" not in (archive.parent / "report.html").read_text()


def test_keys_can_be_hidden(archive):
    report = archive_report.run(options(archive, hide_keys=True), Silent())
    page = (archive.parent / "report.html").read_text()
    assert "alert" not in page and "Hot keys, by hash" in page
    assert "alert" not in json.dumps(report.to_json())
    assert any(p.hot_keys for p in report.profiles)


def test_topic_in_a_cleaner_checkpoint_counts_as_compacted(archive):
    (archive / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 2\n")
    profiles = {p.name(): p for p in profile_archive(options(archive), Silent()).profiles}
    assert profiles["t-0"].compacted and not profiles["plain-0"].compacted
    assert profiles["t-0"].first_dirty_offset == 2
    plain = Config(topics={"t": {"cleanup_policy": ("delete",)}})
    profiles = {p.name(): p for p in profile_archive(options(archive, config=plain), Silent()).profiles}
    assert not profiles["t-0"].compacted, "settings win"


def test_damage_is_reported_and_other_partitions_are_shown(archive):
    log = next((archive / "t-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-1] + b"\xff")
    report = archive_report.run(options(archive, topics=TopicFilter(("t",)), cleanup_policy="compact"), Silent())
    assert report.exit_code == 3
    assert [p.problem is None for p in report.profiles] == [False, True]
    text = (archive.parent / "report.html").read_text()
    assert "Problems" in text and log.name in text


@pytest.mark.parametrize("compacted", [True, False])
def test_missing_segment_is_a_problem_unless_gaps_are_accepted(tmp_path, compacted):
    part = build(tmp_path / "archive")
    for path in files_in(part.folder, f"{12:020d}.*"):
        path.unlink()
    config = Config(topics={"t": {"cleanup_policy": ("compact",)}} if compacted else {})
    report = archive_report.run(options(part.root, config=config), Silent())
    assert (report.exit_code, [p.kind for p in report.problems]) == (3, ["gap"])
    report = archive_report.run(options(part.root, config=config, overrides={"gaps": "accept"}), Silent())
    assert (report.exit_code, [p.total("records") for p in report.profiles]) == (0, [36])


def test_damaged_archive_is_not_reported_as_empty(tmp_path):
    write_partition(tmp_path / "archive" / "t-0", "a=1 b=1")
    (log,) = (tmp_path / "archive" / "t-0").glob("*.log")
    log.write_bytes(log.read_bytes()[:-1] + b"\xff")
    text = archive_report.run(options(tmp_path / "archive"), Silent()).to_text()
    assert text.startswith("problem: ") and "\nno partition that could be read; " in text


def test_archive_without_partitions_has_a_page(tmp_path):
    (tmp_path / "empty").mkdir()
    report = archive_report.run(options(tmp_path / "empty"), Silent())
    assert report.exit_code == 0
    text = (tmp_path / "report.html").read_text()
    needs_nothing_else(text)
    assert "No partition was found" in text and "Overview" not in text


def test_the_command_writes_a_page_and_refuses_a_folder(archive):
    page = archive.parent / "new/page.html"
    words = ["report", str(archive), "--output", str(page), "--topics", "t", "--cleanup-policy", "compact", "--json"]
    result = CliRunner().invoke(cli.lastkey, words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["output"] == str(page) and page.exists()
    with pytest.raises(UsageError, match="expected a file"):
        archive_report.run(options(archive, output=str(archive.parent)), Silent())


def test_invalid_output_is_reported_before_the_first_read(archive, monkeypatch):
    (archive.parent / "file").write_text("mine")
    for output, problem in (
        (archive.parent / "file/page.html", "is not a folder"), (f"{archive.parent}/new/", "expected a file"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=problem):
            archive_report.run(options(archive, output=str(output)), Silent())
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(UsageError, match="is not writable"):
        archive_report.run(options(archive), Silent())
    assert {path.name for path in archive.parent.iterdir()} == {"archive", "file"}


def test_existing_page_is_replaced_by_a_complete_page(archive, monkeypatch):
    page = archive.parent / "report.html"
    old = '<!DOCTYPE html>\n<p class="muted">Lastkey, archive report, 2026-01-01 00:00 UTC</p>'
    page.write_text(old)

    def half(root, path, data):
        (Path(root.base) / path).write_bytes(data[:100])
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as changed, pytest.raises(UsageError, match=r"can be written, found .*Input/output"):
        changed.setattr("lastkey.jobs.command.whole_file.write_file", half)
        archive_report.run(options(archive, topics=TopicFilter(("plain",))), Silent())
    assert page.read_text() == old
    archive_report.run(options(archive, topics=TopicFilter(("plain",))), Silent())
    needs_nothing_else(page.read_text())
    assert {path.name for path in archive.parent.iterdir()} == {"archive", "report.html"}


def test_history_and_runs_command_count_retained_records_equally(tmp_path, capsys):
    write_partition(tmp_path / "archive" / "t-0", "a=1 b=1 || a=2 c=1 || d=1")
    settings = tmp_path / "settings.toml"
    settings.write_text('[topics.t]\n"cleanup.policy" = "compact,delete"\n"retention.bytes" = 0\n')
    places = ["--store", str(tmp_path / "store")]
    assert cli.main(["compact", str(tmp_path / "archive"), *places, "--config", str(settings), "--force"]) == 0
    capsys.readouterr()
    assert cli.main(["runs", *places, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    (partition,) = run["partitions"]
    assert partition["expired"]
    report = profile_archive(options(tmp_path / "archive", stores=str(tmp_path / "store")), Silent())
    ((*_, read, kept, _, _, _),) = history_rows(report)
    assert (read, kept) == (str(partition["records_read"]), str(partition["records_kept"]))


def test_missing_topic_is_reported_with_the_nearest_name(archive):
    with pytest.raises(UsageError, match=r"no topic of .* matches plian; did you mean plain"):
        profile_archive(options(archive, topics=TopicFilter(("plian",))), Silent())


def test_page_shows_invalid_timestamps(tmp_path):
    write_partition(tmp_path / "a/t-0", f"a=1~-1 b=2~{2**62} c=3~0 d=4~253402300799999 || e=1~-5")
    report = archive_report.run(options(tmp_path / "a"), Silent())
    assert report.total("without_timestamp") == 3
    needs_nothing_else((tmp_path / "report.html").read_text())


def test_joined_columns_are_labelled():
    text = report_page.render_page(large(1, 300))
    assert "300 segments: " in text and "; a column is 3 segments" in text and "and 2 more" in text
    assert "; a column is 6 days" in text


def test_report_of_the_example_archive_equals_the_readme():
    options = ReportOptions(
        str(ROOT / "examples/archive"), "", now_ms=START_MS, config=load_config(str(ROOT / "examples/topics.toml"))
    )
    profiles = {p.name(): p for p in profile_archive(options, Silent()).profiles}
    shown = re.findall(r"^(\w+-\d) +clean +([\d,]+) +([\d,]+) ", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(shown) == 4
    for name, before, after in shown:
        counters = profiles[name].counters
        dropped = sum(n for k, n in counters.items() if k.startswith("dropped_"))
        assert f"{counters['records_kept']:,}" == after
        assert f"{counters['records_kept'] + dropped:,}" == before


@pytest.mark.slow
def test_page_of_a_large_archive_has_a_few_mb():
    text = report_page.render_page(large(1000, 100))
    assert len(text.encode()) < 5_000_000
    needs_nothing_else(text)


def test_page_of_300_partitions_has_4_kb_per_partition():
    text = report_page.render_page(many())
    assert 300 * 3_500 < len(text.encode()) < 300 * 5_000
    assert text.count('<a href="#p') == 300 + 1 and text.count('class="box topic"') == 100  # and #partitions
    assert "75 compacted topics, largest first: " in text and "; the first 12 of 75 values, " in text
    needs_nothing_else(text)


def test_equal_values_share_a_bar_and_have_a_row_each():
    """Not the twelve that the alphabet puts first: each of 40 partitions is half dirty."""
    drawn = report_page.overview(large(40, 1))[1]
    assert (drawn.title, len(drawn.rows)) == ("Dirty ratio", 40)
    assert drawn.says == "40 partitions, most dirty bytes first; equal ones in one bar; the table has all 40"
    assert len(drawn.bars) == 1 and drawn.bars[0].label.endswith(" and 39 more")


def test_rows_of_many_segments_are_joined():
    rows = report_page.segment_rows([a_segment(i) for i in range(101)], 10)
    assert len(rows) == 10
    assert rows[0][0] == "0 and 10 more" and rows[0][3] == "11,000"


def test_history_of_a_store_is_plotted_and_listed():
    values = {
        name: {"int": 0, "str": "", "str | None": None, "bool": False}[str(kind)]
        for name, kind in ((f.name, f.type) for f in fields(RunRow))
    }
    report = large(1, 2)
    report.store = "/store"
    key = (report.profiles[0].topic, 0)
    for i in range(3):
        row = {
            **values,
            "run_id": f"run{i}",
            "now_ms": START_MS + i * DAY_MS,
            "bytes_before": 4096,
            "bytes_after": 1024,
        }
        report.history.setdefault(key, []).append(RunRow(**row))
    text = report_page.render_page(report)
    assert "Cleaning history" in text and "75.0 %" in text and "run2" in text
    assert asdict(report.history[key][0]) in report.to_json()["history"]
    needs_nothing_else(text)


def found_table(store: str) -> DeltaTable:
    return DeltaTable(f"{store}/state/compaction_checkpoints")


@pytest.mark.spark
@pytest.mark.slow
def test_report_of_a_store_covers_its_offsets_with_either_engine(spark, tmp_path, monkeypatch):
    from lastkey.jobs.command.options import CompactOptions
    from lastkey.jobs.compact.job import run as compact

    uri, store = str(ROOT / "examples/archive"), str(tmp_path / "store")
    settings = load_config(str(ROOT / "examples/topics.toml"))
    now_ms = 1_800_000_000_000
    done = compact(CompactOptions(uri, store, now_ms=now_ms, config=settings, topics=TopicFilter(("users",))), Silent())
    options = ReportOptions(uri, str(tmp_path / "page.html"), now_ms=now_ms, config=settings, stores=store)
    report = archive_report.run(options, Silent())
    for result in done.results:
        key = (result.topic, result.partition)
        (profile,) = [p for p in report.profiles if (p.topic, p.partition) == key]
        assert profile.size_bytes == result.work.bytes_after and not profile.due
        assert profile.first_dirty_offset == result.log.first_dirty_offset
        assert report.archived_bytes[key] == result.work.bytes_before
        assert [run.run_id for run in report.history[key]] == [done.run_id]
    assert "Cleaning history" in (tmp_path / "page.html").read_text()
    by_spark = profile_archive(replace(options, engine="spark"), Silent())
    assert by_spark.work.tasks == len(by_spark.profiles)
    same = [(p.counters, p.hot_keys, p.segments) for p in by_spark.profiles]
    assert same == [(p.counters, p.hot_keys, p.segments) for p in report.profiles]
    copy = tmp_path / "copy"
    shutil.copytree(uri, copy)
    shutil.rmtree(copy / "users-1")
    table = found_table(store)
    table.update(updates={"archive_uri": f"'{copy}'"})
    unnamed = profile_archive(
        ReportOptions(str(copy), "", now_ms=now_ms, topics=TopicFilter(("users",)), stores=store), Silent()
    )
    assert [(p.name(), p.compacted) for p in unnamed.profiles] == [("users-0", True)], "by its generation"
    assert any(note.startswith("users-1: no longer in the archive, but the store holds") for note in unnamed.notes)
    with pytest.raises(UsageError, match="this store serves"):
        profile_archive(ReportOptions(str(tmp_path), "", now_ms=now_ms, stores=store), Silent())
