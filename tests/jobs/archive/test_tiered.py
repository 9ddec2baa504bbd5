"""Tiered storage as an archive: every job reads it as the log directory that a broker had."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from lastkey.jobs.archive.listing import list_archive, listed
from lastkey.jobs.command import cli
from lastkey.jobs.errors import PROBLEMS
from lastkey.udfs.storage import open_root
from tests.builders.logs import write_partition
from tests.builders.remote import TOPIC_ID, Uploaded, batches, put_aiven, put_kafka, put_pinterest, segment
from tests.builders.sources import read
from tests.builders.trees import read_tree, tree

pytestmark = pytest.mark.slow  # whole runs

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
NOW = ["--now", "1800000000000"]
QUIET = ["--engine", "threads", "--quiet"]


def upload(archive: Path, remote: Path, put) -> None:
    """Upload the closed segments of an archive, and remove the others."""
    for folder in sorted(archive.glob("[a-z]*-[0-9]")):
        bases = sorted(int(log.stem) for log in folder.glob("*.log"))
        epochs = (folder / "leader-epoch-checkpoint").read_bytes()
        for number, (base, following) in enumerate(itertools.pairwise(bases)):

            def data(offset: int, kind: str, folder: Path = folder) -> bytes:
                path = folder / f"{offset:020d}.{kind}"
                return path.read_bytes() if path.exists() else b""

            files = Uploaded(
                base, following - 1, data(base, "log"), data(base, "index"), data(base, "timeindex"),
                data(following, "snapshot"), epochs, data(base, "txnindex"),
            )  # fmt: skip
            into = put(remote, folder.name, number, files)
            for made in into.glob("*.log"):
                stat = (folder / f"{int(made.stem.partition('-')[0]):020d}.log").stat()
                os.utime(made, ns=(stat.st_mtime_ns, stat.st_mtime_ns))
        for path in folder.glob(f"{bases[-1]:020d}.*"):
            if path.suffix != ".snapshot":
                path.unlink()
        for path in folder.glob("*.snapshot"):
            if int(path.stem) > bases[-1]:
                path.unlink()


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    """Make the example archive's closed segments a log directory, and upload them beside it."""
    archive = tmp_path_factory.mktemp("plain") / "archive"
    for folder in (EXAMPLES / "archive").glob("[a-z]*-[0-9]"):
        for copy in (archive, archive.parent / "again", archive.parent / "third"):
            shutil.copytree(folder, copy / folder.name)
    upload(archive, archive.parent / "kafka", put_kafka)
    upload(archive.parent / "again", archive.parent / "aiven", put_aiven)
    upload(archive.parent / "third", archive.parent / "pinterest/backup/1a2b/kafka", put_pinterest)
    return archive


def run(*arguments: object) -> int:
    return cli.main([*map(str, arguments)])


def generation(archive: Path, work: Path) -> dict[str, object]:
    """Compact and restore an archive; return the restored files."""
    settings = ["--config", EXAMPLES / "topics.toml"]
    assert run("compact", archive, "--store", work / "store", "--sealed", *settings, *NOW, *QUIET) == 0
    assert run("verify", "--store", work / "store", *QUIET) == 0
    assert run("restore", "--store", work / "store", "--output", work / "out") == 0
    files = {p.relative_to(work / "out").as_posix(): p.read_bytes() for p in (work / "out").rglob("*") if p.is_file()}
    return {name: data for name, data in files.items() if name.endswith(("log", "index", "snapshot", "-checkpoint"))}


@pytest.mark.parametrize("layout", ["kafka", "aiven"])
def test_generation_of_remote_segments_equals_that_of_the_log_directory(plain, tmp_path, layout, capsys):
    remote = plain.parent / layout
    before = tree(remote)
    expected, actual = generation(plain, tmp_path / "plain"), generation(remote, tmp_path / layout)
    assert actual == expected
    assert len(actual) > 60
    capsys.readouterr()
    assert run("archive-needed", remote, "--store", tmp_path / layout / "store", "--format", "paths", *QUIET) == 0
    objects = capsys.readouterr().out.split()
    kept = {str(p) for p in remote.rglob("*") if p.is_file() and "clicks" not in str(p)}
    assert objects
    assert set(objects) <= kept
    stems = {path.rpartition(".")[0] for path in objects}  # a segment goes with all of its objects
    assert {path for path in kept if path.rpartition(".")[0] in stems} == set(objects)
    assert tree(remote) == before


@pytest.mark.parametrize("given", ["", "tiered+"])
def test_generation_of_pinterest_uploads_equals_that_of_the_log_directory(plain, tmp_path, given, capsys):
    """By themselves, and as copies that may overlap; snapshots of producers and leader epochs are not uploaded."""
    remote = f"{given}{plain.parent / 'pinterest'}"
    actual, expected = (generation(a, tmp_path / f"{i}") for i, a in enumerate((remote, plain)))
    logs = {name for name in expected if name.endswith(("log", "index"))}
    assert len(logs) > 40
    assert {name: actual.get(name) for name in logs} == {name: expected[name] for name in logs}
    capsys.readouterr()
    assert run("verify", remote, "--sealed", *QUIET) == 0
    output = capsys.readouterr().out
    assert "kafka/clicks-0 and 4 more: uploaded by Pinterest's tiered storage (offset.wm), without producer" in output
    assert (f"if segments overlap, give tiered+{plain.parent}" in output) == (given == "")
    assert re.search(r"not checked: \S*orders-0: transaction indexes", output)
    for job in (["lookup", "--offset", "1500", "--topics", "users"], ["inspect", "--key", "user-000058"]):
        texts = []
        for archive in (remote, plain):
            assert run(job[0], archive, *job[1:], *QUIET) == 0
            text = capsys.readouterr().out.replace(str(remote), "A").replace(str(plain), "A")
            texts.append(re.sub(r"backup/1a2b/kafka/|(?m:^(?:note|seconds): .*\n)", "", text))
        assert len(texts[0]) > 200
        assert texts[0] == texts[1]
    rows = read("kafka_log", remote, topics="orders,users", isolationLevel="read_committed")
    assert rows.equals(read("kafka_log", plain, topics="orders,users", isolationLevel="read_committed"))


def shown(text: str, archive: Path) -> str:
    """Return a report without what differs: remote folders, the note on them, and the seconds that the work took."""
    text = text.replace(f"tiered+{archive}", "A").replace(str(archive), "A")
    text = re.sub(rf"[a-z]+-(\d-{TOPIC_ID}|{TOPIC_ID}/\d)/", "", text)
    return re.sub(r"(?m)^(note: .*: segments of tiered storage|seconds: ).*\n", "", text)


@pytest.mark.parametrize("layout", ["kafka", "aiven"])
def test_reading_jobs_give_the_same_as_for_a_log_directory(plain, tmp_path, layout, capsys):
    remote = plain.parent / layout
    assert run("verify", remote, "--sealed", *QUIET) == 0, capsys.readouterr()
    capsys.readouterr()
    for job in (["lookup", "--offset", "1500", "--topics", "users", *QUIET], ["inspect"]):
        outputs = []
        for archive in (remote, plain):
            assert run(job[0], archive, *job[1:]) == 0
            outputs.append(shown(capsys.readouterr().out, archive))
        assert len(outputs[0]) > 200
        assert outputs[0] == outputs[1]


def test_report_names_the_source_once_and_problems_name_the_object_folder(tmp_path):
    put_kafka(tmp_path, "t-0", 1, segment(batches(0, 50)))
    archive = listed(str(tmp_path))
    assert archive.root.uri == f"tiered+{tmp_path}"
    assert archive.notes == [f"t-0-{TOPIC_ID}: segments of tiered storage; the archive is read as tiered+{tmp_path}"]
    assert [(p.path, p.topic_id) for p in archive.partitions.values()] == [(f"t-0-{TOPIC_ID}/t-0", TOPIC_ID)]


def test_recreated_topic_is_uncleanable(tmp_path, capsys):
    put_kafka(tmp_path, "t-0", 1, segment(batches(0, 50)))
    other = put_kafka(tmp_path / "x", "t-0", 2, segment(batches(0, 30)))
    other.rename(tmp_path / "t-0-AAAAAAAAAAAAAAAAAAAAAA")
    (tmp_path / "x").rmdir()
    assert run("verify", tmp_path, "--json", *QUIET) == PROBLEMS
    output = json.dumps(json.loads(capsys.readouterr().out))
    assert "the same partition in t-0-AAAAAAAAAAAAAAAAAAAAAA/t-0" in output


def test_missing_log_is_a_gap_and_encrypted_segment_is_an_error(tmp_path, capsys):
    put_kafka(tmp_path / "a", "t-0", 1, segment(batches(0, 50)))
    put_kafka(tmp_path / "a", "t-0", 2, segment(batches(50, 100)), without=["log"])
    put_kafka(tmp_path / "a", "t-0", 3, segment(batches(100, 150)))
    put_aiven(tmp_path / "b", "t-0", 1, segment(batches(0, 50)), encryption={"dataKey": "x", "aad": "y"})
    defaults = tmp_path / "settings.toml"
    defaults.write_text('[defaults]\n"cleanup.policy" = "compact"\n')
    for place, words in (("a", "gap"), ("b", "an encrypted one")):
        store = tmp_path / f"store-{place}"
        code = run("compact", tmp_path / place, "--store", store, "--config", defaults, "--json", *NOW, *QUIET)
        assert code == PROBLEMS
        assert words in capsys.readouterr().out


def test_similar_names_are_not_read_as_remote_segments(tmp_path):
    folder = tmp_path / f"t-0-{TOPIC_ID}"
    folder.mkdir()
    (folder / "0-too-short.log").write_bytes(b"")
    (folder / f"{'9' * 20}-{TOPIC_ID}.log").write_bytes(b"")
    assert list_archive(open_root(str(tmp_path)), lambda _: True).root.uri == str(tmp_path)


def test_a_later_run_continues_after_a_change_of_leaders(tmp_path, capsys):
    settings = ["--topics", "t", "--cleanup-policy", "compact", *NOW, *QUIET]
    remote, store = tmp_path / "remote", tmp_path / "store"
    put_kafka(remote, "t-0", 1, segment(batches(0, 100)))
    put_kafka(remote, "t-0", 2, segment(batches(100, 200)))
    assert run("compact", remote, "--store", store, *settings) == 0
    assert run("restore", "--store", store, "--output", tmp_path / "first") == 0
    put_kafka(remote, "t-0", 3, segment([*batches(150, 200), *batches(200, 300, 1)], [(0, 0), (1, 200)]))
    put_kafka(remote, "t-0", 4, segment(batches(300, 350, 1), [(0, 0), (1, 200)]))
    moved = remote.rename(tmp_path / "moved")
    assert run("restore", "--store", store, "--output", tmp_path / "again", "--archive", moved) == 0
    assert read_tree(tmp_path / "again") == read_tree(tmp_path / "first")  # the end of segment 2 no longer counts
    moved.rename(remote)
    assert run("compact", remote, "--store", store, *settings) == 0
    assert run("restore", "--store", store, "--output", tmp_path / "second") == 0
    assert run("verify", "--store", store, *QUIET) == 0
    assert "problem" not in capsys.readouterr().err
    offsets = read("kafka_log", tmp_path / "second")["offset"].to_pylist()
    assert offsets == list(range(293, 350))  # keys come again after 7 records; the last segment waits for the next one


def test_log_directories_beside_remote_segments_are_read_too(tmp_path):
    put_kafka(tmp_path, "t-0", 1, segment(batches(0, 50)))
    write_partition(tmp_path / "u-0", "a=1")
    (tmp_path / "again").symlink_to(tmp_path / "u-0")
    archive = listed(str(tmp_path))
    assert [p.path for p in archive.partitions.values()] == [f"t-0-{TOPIC_ID}/t-0", "u-0"]
    assert "again: the same folder as u-0; counted once" in archive.notes


def test_indexes_are_never_replaced_in_tiered_storage(tmp_path, capsys):
    put_kafka(tmp_path / "a", "t-0", 1, segment(batches(0, 50)))
    before = tree(tmp_path)
    assert run("reindex", tmp_path / "a", "--in-place", *QUIET) == 2
    assert "holds tiered storage, which only Kafka writes: use --output" in capsys.readouterr().err
    assert tree(tmp_path) == before


def test_store_inside_remote_segments_is_refused(tmp_path, capsys):
    folder = put_kafka(tmp_path / "a", "t-0", 1, segment(batches(0, 50)))
    assert run("compact", tmp_path / "a", "--store", folder / "store", *NOW, *QUIET) == 2
    assert run("compact", f"tiered+{tmp_path / 'a'}", "--store", folder / "store", *NOW, *QUIET) == 2
    assert "lies in the archive" in capsys.readouterr().err
