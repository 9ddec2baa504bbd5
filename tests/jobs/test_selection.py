"""A pattern without a match is an error with the nearest name, so that a nightly job does not silently do nothing."""

from __future__ import annotations

import json

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.errors import DONE, USAGE
from lastkey.jobs.store import writing
from tests.builders.logs import write_partition
from tests.builders.stores import StoreMaker, make_commit, run_id
from tests.builders.trees import tree

pytestmark = pytest.mark.slow  # whole runs


@pytest.fixture
def archive(tmp_path):
    for folder in ("accounts-0", "accounts-1", "clicks-0"):
        write_partition(tmp_path / "archive" / folder, "a=1")
    return tmp_path / "archive"


def _settings(folder, *globs):
    path = folder / "settings.toml"
    path.write_text("".join(f'[topics."{glob}"]\n"cleanup.policy" = "compact"\n' for glob in globs))
    return str(path)


@pytest.mark.parametrize(
    "words",
    [
        ["compact", "ARCHIVE", "--store", "STORE", "--cleanup-policy", "compact"],
        ["compact", "ARCHIVE", "--store", "STORE", "--dry-run"],
        ["verify", "ARCHIVE"],
        ["reindex", "ARCHIVE", "--check"],
        ["lookup", "ARCHIVE", "--offset", "0"],
        ["inspect", "ARCHIVE"],
        ["report", "ARCHIVE", "--output", "PAGE"],
    ],
    ids=lambda words: words[0],
)
def test_topics_without_a_match_are_an_error_in_every_job(archive, tmp_path, capsys, words):
    """One wrong glob of several is an error too: its topics would be skipped silently."""
    before = tree(tmp_path)
    places = {"ARCHIVE": str(archive), "STORE": str(tmp_path / "store"), "PAGE": str(tmp_path / "page.html")}
    words = [places.get(word, word) for word in words]
    for wrong in (["--topics", "acounts"], ["--topics", "clicks,acounts"], ["--topics=*", "--exclude=acounts"]):
        assert cli.main([*words, *wrong]) == USAGE
        err = capsys.readouterr().err
        assert "matches acounts; did you mean accounts?" in err
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "topics"),
    [
        (["--topics", "accounts", "--topics", "clicks"], {"accounts", "clicks"}),
        (["--topics", "clicks,acc*"], {"accounts", "clicks"}),
        (["--topics", "*", "--exclude", "acc*"], {"clicks"}),
        (["--topics-from", "LIST"], {"clicks"}),
    ],
    ids=lambda given: " ".join(map(str, given)) if isinstance(given, list) else "",
)
def test_topics_and_policy_apply_to_included_and_not_excluded_topics(archive, tmp_path, capsys, words, topics):
    """Neither option applies to an excluded topic, whose own table may set another policy."""
    (tmp_path / "list").write_text("clicks\n")
    settings = tmp_path / "settings.toml"
    settings.write_text("".join(f"[topics.{t}]\n'cleanup.policy' = 'delete'\n" for t in {"accounts"} - topics))
    words = [str(tmp_path / "list") if word == "LIST" else word for word in words]
    for job in (
        ["compact", str(archive), "--store", str(tmp_path / "store"), "--cleanup-policy", "compact", "--sealed"],
        ["verify", str(archive)],
        ["report", str(archive), "--output", str(tmp_path / "page.html"), "--cleanup-policy", "compact"],
        ["lookup", str(archive), "--offset", "0"],
    ):
        assert cli.main([*job, *words, "--config", str(settings), "--json"]) == DONE
        assert {p["topic"] for p in json.loads(capsys.readouterr().out)["partitions"]} == topics


def test_inspect_excludes_topics_and_keeps_files_without_a_topic(archive, capsys):
    (archive / "cleaner-offset-checkpoint").write_text("0\n1\nclicks 0 0\n")
    assert cli.main(["inspect", str(archive), "--exclude", "acc*"]) == DONE
    shown = capsys.readouterr().out
    assert "clicks-0/" in shown and "cleaner-offset-checkpoint" in shown and "accounts" not in shown
    assert cli.main(["inspect", str(archive), "--topics", "clicks"]) == DONE
    assert "cleaner-offset-checkpoint" not in capsys.readouterr().out


@pytest.mark.parametrize("job", ["compact", "vacuum"])
def test_reset_of_a_missing_topic_is_an_error(archive, tmp_path, capsys, job):
    store = ["--store", str(tmp_path / "store")]
    compact = ["compact", str(archive), *store, "--topics", "*", "--cleanup-policy", "compact", "--sealed"]
    assert cli.main(compact) == DONE
    capsys.readouterr()
    words, option = (compact, "--reset") if job == "compact" else (["vacuum", *store], "--give-up")
    assert cli.main([*words, option, "clicks,acounts"]) == USAGE
    where = archive if job == "compact" else tmp_path / "store"
    message = f"error: {option}: no topic of {where} matches acounts; did you mean accounts?\n"
    assert capsys.readouterr().err == message
    assert cli.main([*words, option, "clicks,acc*"]) == DONE


@pytest.mark.parametrize(
    "words",
    [
        ["compact", "ARCHIVE", "--store", "STORE", "--cleanup-policy", "compact", "--topics", "*"],
        ["verify", "ARCHIVE"],
        ["reindex", "ARCHIVE", "--check"],
        ["reindex", "ARCHIVE", "--output", "OUT"],
    ],
)
def test_folder_without_a_partition_is_not_an_archive(archive, tmp_path, capsys, words):
    """A disk that is not mounted, or a partition's own folder: it must not count as an archive without a problem."""
    (tmp_path / "empty").mkdir()
    before = tree(tmp_path)
    for folder, more in (
        (tmp_path / "empty", ""),
        (archive / "clicks-0", "; this is a partition's folder: give the folder above"),
    ):
        places = {"ARCHIVE": str(folder), "STORE": str(tmp_path / "store"), "OUT": str(tmp_path / "out")}
        assert cli.main([places.get(word, word) for word in words]) == USAGE
        message = f"{folder}: expected folders <topic>-<partition> of an archive, found none{more}"
        assert message in capsys.readouterr().err
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "words", [["verify"], ["restore", "--output", "OUT"], ["rollback", "--generation", "1"], ["vacuum", "--dry-run"]]
)
def test_unknown_topic_of_a_store_is_refused_with_a_suggestion(tmp_path, capsys, words):
    made = StoreMaker(tmp_path)
    writing.commit_wave(made.state, [make_commit(0, 1, run_id(1), topic="accounts")])
    words = [str(tmp_path / "out") if word == "OUT" else word for word in words]
    assert cli.main([*words, "--store", str(tmp_path / "store"), "--topics", "acounts"]) == USAGE
    assert "matches acounts; did you mean accounts?" in capsys.readouterr().err


def test_settings_that_select_no_topic_are_a_usage_error(archive, tmp_path, capsys):
    words = ["compact", str(archive), "--store", str(tmp_path / "store")]
    assert cli.main(words) == USAGE
    err = capsys.readouterr().err
    assert "no partition of a compacted topic in the archive" in err
    assert err.endswith("there are accounts, clicks\n")
    assert cli.main([*words, "--config", _settings(tmp_path, "acounts")]) == USAGE
    assert '[topics."acounts"] matches no topic of the archive; did you mean accounts?' in capsys.readouterr().err
    assert not (tmp_path / "store").exists()


def test_pattern_without_a_match_beside_matching_ones_is_a_note(archive, tmp_path, capsys):
    """The pattern may belong to other archives: it is neither an error nor a reason to keep the archive."""
    settings = _settings(tmp_path, "acc*", "clik")
    words = ["compact", str(archive), "--store", str(tmp_path / "store"), "--config", settings, "--json"]
    assert cli.main(words) == DONE
    report = json.loads(capsys.readouterr().out)
    assert report["notes"][-1] == f'{settings}: [topics."clik"] matches no topic of the archive; did you mean clicks?'
    assert "notes" not in {reason["kind"] for reason in report["archive_needed_because"]}


def test_folder_without_topics_is_reported_for_any_topics_option(tmp_path, capsys):
    (tmp_path / "archive").mkdir()
    assert cli.main(["verify", str(tmp_path / "archive"), "--topics", "x"]) == USAGE
    assert "archive, found none\n" in capsys.readouterr().err
