"""The local log directory of a tiered topic: without its remote segments, and beside them as one log."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from lastkey.jobs.archive.listing import listed
from lastkey.jobs.command import cli
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.names import segment_file
from tests.builders.remote import NO_PRODUCERS, TOPIC_ID, Uploaded, batches, put_aiven, put_kafka, segment
from tests.builders.sources import read
from tests.builders.trees import read_tree, tree

NOW = ["--now", "1800000000000"]
QUIET = ["--engine", "threads", "--quiet"]
EPOCHS = ((0, 0), (1, 100))
LOG = [segment(batches(base, base + 50, int(base >= 100)), EPOCHS[: 1 + (base >= 100)]) for base in range(0, 300, 50)]


def put_local(root: Path, files: Sequence[Uploaded], start: int | None = 0, topic_id: str = TOPIC_ID) -> Path:
    """Write segments as a broker has them in its log directory; start: its checkpoint of the log start."""
    folder = root / "t-0"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in files:
        kinds = {"log": file.log, "index": file.index, "timeindex": file.time_index, "snapshot": NO_PRODUCERS}
        for kind, data in kinds.items():
            (folder / segment_file(file.start, kind)).write_bytes(data)
    (folder / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 100\n")
    (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
    if start is not None:
        (root / "log-start-offset-checkpoint").write_text(f"0\n1\nt 0 {start}\n")
    return folder


def put_remote(root: Path, files: Sequence[Uploaded], put=put_kafka) -> None:
    for file in files:
        put(root, "t-0", 1 + file.start, file)


def run(*arguments: object) -> int:
    return cli.main([*map(str, arguments)])


def compact(archive: Path, store: Path, *more: str) -> int:
    policy = ["--cleanup-policy", "compact", "--topics", "t", "--force"]
    return run("compact", archive, "--store", store, *policy, *NOW, *QUIET, *more)


def restored(store: Path, output: Path) -> dict[str, bytes]:
    """Return the files of a generation, without the checkpoints beside its folder."""
    assert run("verify", "--store", store, *QUIET) == 0
    assert run("restore", "--store", store, "--output", output) == 0
    files = read_tree(output / "t-0")
    return {name: data for name, data in files.items() if name != "partition.metadata"}


def whole_log(tmp_path: Path) -> dict[str, bytes]:
    """Return the generation that is made of the log directory before anything was deleted from it."""
    put_local(tmp_path / "whole", LOG, None)
    assert compact(tmp_path / "whole", tmp_path / "whole-store") == 0
    return restored(tmp_path / "whole-store", tmp_path / "whole-out")


def test_note_names_the_missing_remote_segments(tmp_path, capsys):
    """The local segments are a log that begins there; a query for the beginning fails."""
    archive, store = tmp_path / "archive", tmp_path / "store"
    put_local(archive, LOG[2:])
    before = tree(archive)
    assert run("verify", archive, *QUIET) == 0
    assert compact(archive, store) == 0
    output = capsys.readouterr().out
    note = "note: t-0: offsets 0 to 99 are in remote storage, which this archive lacks: put the folder of the remote"
    assert output.count(note) == 2
    entries = "the archive is still needed: entries that no job reads: "
    assert f"{entries}t-0: offsets 0 to 99 are in remote storage" in output
    assert run("archive-needed", archive, "--store", store, "--format", "paths", *QUIET) == 0
    assert capsys.readouterr().out == ""
    files = restored(store, tmp_path / "out")
    assert min(files) == segment_file(100, "index")
    assert not (tmp_path / "out/log-start-offset-checkpoint").read_text().endswith("t 0 0\n")
    assert files["leader-epoch-checkpoint"] == b"0\n1\n1 100\n"
    assert tree(archive) == before
    with pytest.raises(
        LogFormatError, match=r"a segment at offset 0, found a first segment at 100; the topic has tier"
    ):
        read("kafka_log", archive)
    assert read("kafka_log", archive, startingOffsets=json.dumps({"t": {"0": 100}}))["offset"][0].as_py() == 100


def test_later_run_requires_remote_storage_for_deleted_local_segments(tmp_path, capsys):
    """The generation uses archived segments that the broker deleted, and then lacks offsets that only remote storage
    has: the log is neither replaced nor cut short.
    """
    archive, store = tmp_path / "archive", tmp_path / "store"
    put_local(archive, LOG[2:4])
    assert compact(archive, store) == 0
    put_local(archive, LOG[5:])
    capsys.readouterr()
    assert compact(archive, store) == 3
    output = capsys.readouterr().out
    assert "t-0        gap" in output
    assert (
        "(the topic has tiered storage: put the folder of the remote storage, where they are, into the archive)"
        in output
    )
    assert run("verify", "--store", store, *QUIET) in {0, 3}


@pytest.mark.parametrize("put", [put_kafka, put_aiven])
@pytest.mark.parametrize(("uploaded", "first"), [(5, 2), (4, 4), (5, 0), (3, 1)])
def test_local_and_remote_segments_join_into_one_log(tmp_path, capsys, put, uploaded, first):
    expected = whole_log(tmp_path)
    archive = tmp_path / "archive"
    put_remote(archive / "remote", LOG[:uploaded], put)
    put_local(archive / "broker", LOG[first:])
    before = tree(archive)
    capsys.readouterr()
    assert run("verify", archive, *QUIET) == 0
    output = capsys.readouterr().out
    assert "in remote storage" not in output
    both = uploaded - first
    assert (f"{both} segments lie in both and are read once, from offset {50 * first} on" in output) == (both > 0)
    assert compact(archive, tmp_path / "store") == 0
    assert restored(tmp_path / "store", tmp_path / "out") == expected
    assert read("kafka_log", archive)["offset"].to_pylist() == list(range(300))
    assert tree(archive) == before


def test_later_runs_continue_as_segments_move_to_remote_storage(tmp_path, capsys):
    archive, store = tmp_path / "archive", tmp_path / "store"
    put_remote(archive, LOG[:2])
    put_local(archive / "broker", LOG[1:4])
    assert compact(archive, store) == 0
    put_remote(archive, LOG[2:4])
    put_local(archive / "broker", LOG[4:5])
    assert compact(archive, store) == 0
    put_remote(archive, LOG[4:5])
    put_local(archive / "broker", LOG[5:])
    assert compact(archive, store) == 0
    assert "uncleanable" not in capsys.readouterr().out
    assert restored(store, tmp_path / "out").keys() == whole_log(tmp_path).keys()
    put_local(archive / "broker", LOG[4:])  # an older copy of the log directory would be one of the same log
    assert run("verify", archive, *QUIET) == 0


def test_segment_in_both_copies_stays_needed(tmp_path, capsys):
    """Only one copy of a segment that lies in both places is read; the copies are not compared."""
    archive, store = tmp_path / "archive", tmp_path / "store"
    put_remote(archive, LOG[:5])
    put_local(archive / "broker", LOG[3:])
    assert compact(archive, store) == 0
    output = capsys.readouterr().out
    entries = "the archive is still needed: entries that no job reads: "
    assert f"{entries}broker/t-0/{segment_file(150, 'log')}, broker/t-0/{segment_file(200, 'log')}" in output
    assert run("archive-needed", archive, "--store", store, "--format", "paths", *QUIET) == 0
    assert capsys.readouterr().out == ""


def changed(one: Uploaded, **options: str) -> Uploaded:
    return segment(batches(one.start, one.last + 1, 1, **options), EPOCHS)


@pytest.mark.parametrize(
    ("local", "expected"),
    [
        ([*LOG[2:4], changed(LOG[4], tag="longer"), LOG[5]], "expected a segment of"),
        ([LOG[3], segment(batches(200, 230, 1)), segment(batches(230, 300, 1))], "expected a segment of"),
        ([segment(batches(120, 200, 1)), *LOG[4:]], "expected no segment that begins at offset 120"),
        ([LOG[2], *LOG[4:]], "expected a segment that begins at offset 150"),
    ],
)
def test_different_local_log_beside_remote_segments_is_uncleanable(tmp_path, capsys, local, expected):
    put_remote(tmp_path / "a", [*LOG[:4], LOG[4]])
    put_local(tmp_path / "a/broker", local)
    assert run("verify", tmp_path / "a", *QUIET) == 3
    output = capsys.readouterr().out
    assert "problem: broker/t-0: duplicate: " in output
    assert expected in output
    assert f"as in t-0-{TOPIC_ID}/t-0" in output


def test_different_leader_epochs_or_topic_id_mean_a_different_log(tmp_path, capsys):
    put_remote(tmp_path / "a", LOG[:5])
    folder = put_local(tmp_path / "a/broker", LOG[3:], topic_id="CCCCCCCCCCCCCCCCCCCCCA")
    assert run("verify", tmp_path / "a", *QUIET) == 3
    assert f"expected topic id {TOPIC_ID}, as in" in capsys.readouterr().out
    put_local(tmp_path / "a/broker", LOG[3:])
    (folder / "leader-epoch-checkpoint").write_text("0\n3\n0 0\n1 100\n2 180\n")
    assert run("verify", tmp_path / "a", *QUIET) == 3
    assert "expected leader epochs (epoch, offset) ((0, 0), (1, 100)), as in" in capsys.readouterr().out


def test_local_copy_is_used_while_an_upload_is_incomplete(tmp_path):
    cut = LOG[4]
    put_remote(tmp_path / "a", LOG[:4])
    cut = Uploaded(cut.start, cut.last, cut.log[:200], cut.index, cut.time_index, cut.snapshot, cut.epochs)
    put_kafka(tmp_path / "a", "t-0", 9, cut, without=["index", "timeindex", "snapshot", "leader_epoch_checkpoint"])
    put_local(tmp_path / "a/broker", LOG[3:])
    partition = listed(str(tmp_path / "a")).partitions["t", 0]
    assert [s.path.partition("/")[0] for s in partition.segments] == [f"t-0-{TOPIC_ID}"] * 4 + ["broker"] * 2
    assert run("verify", tmp_path / "a", *QUIET) == 0


def test_two_log_directories_beside_the_remote_segments_are_duplicates(tmp_path, capsys):
    put_remote(tmp_path / "a", LOG[:5])
    for broker in ("one", "two"):
        put_local(tmp_path / "a" / broker, LOG[3:])
    assert run("verify", tmp_path / "a", *QUIET) == 3
    assert "expected one folder for each partition, found the same partition in one/t-0" in capsys.readouterr().out
