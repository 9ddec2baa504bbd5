"""Choice of the copies of segments that form a log: leader changes, unclean elections, incomplete uploads."""

from __future__ import annotations

import re

import pytest
from pyarrow import fs as pafs

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.tiered.view import TieredFileSystem
from tests.builders.remote import TOPIC_ID, batches, chunk_sizes, put_aiven, put_kafka, segment, segment_id


@pytest.fixture(params=[put_kafka, put_aiven], ids=["kafka", "aiven"])
def put(request):
    return request.param


class Shown:
    """The partition t-0 as the view shows it."""

    def __init__(self, root, put) -> None:
        inner = f"t-0-{TOPIC_ID}" if put is put_kafka else f"t-{TOPIC_ID}/0"
        self.path = f"{root}/{inner}/t-0"
        self.view = TieredFileSystem(pafs.LocalFileSystem(), str(root))

    def files(self) -> dict[str, int]:
        listed = self.view.get_file_info(pafs.FileSelector(self.path))
        return {info.base_name: info.size for info in listed}

    def logs(self) -> bytes:
        out = b""
        for name, size in sorted(self.files().items()):
            if name.endswith(".log"):
                with self.view.open_input_file(f"{self.path}/{name}") as file:
                    out += file.read(size)
        return out

    def starts(self) -> list[int]:
        return [int(name[:20]) for name in sorted(self.files()) if name.endswith(".log")]

    def notes(self) -> str:
        return "\n".join(self.view.notes(self.path))


def data(*parts) -> bytes:
    return b"".join(b.data for part in parts for b in part)


def test_remote_segments_are_listed_with_names_of_a_broker(tmp_path, put):
    one, two = segment(batches(0, 100)), segment(batches(100, 150))
    put(tmp_path, "t-0", 1, one)
    put(tmp_path, "t-0", 2, two)
    shown = Shown(tmp_path, put)
    assert shown.files() == {
        "00000000000000000000.log": len(one.log), "00000000000000000000.index": len(one.index),
        "00000000000000000000.timeindex": len(one.time_index), "00000000000000000100.log": len(two.log),
        "00000000000000000100.index": len(two.index), "00000000000000000100.timeindex": len(two.time_index),
        "00000000000000000100.snapshot": 10, "00000000000000000150.snapshot": 10,
        "leader-epoch-checkpoint": len(two.epochs), "partition.metadata": 43,
    }  # fmt: skip
    assert shown.logs() == one.log + two.log
    for kind, bytes_ in (("index", two.index), ("timeindex", two.time_index), ("log", two.log)):
        with shown.view.open_input_file(f"{shown.path}/{100:020d}.{kind}") as file:
            assert file.size() == len(bytes_)
            assert file.read(len(bytes_)) == bytes_
    assert shown.notes() == ""


def test_duplicate_upload_of_a_segment_is_used_once(tmp_path, put):
    for number in (1, 2):
        put(tmp_path, "t-0", number, segment(batches(0, 100)))
    put(tmp_path, "t-0", 3, segment(batches(100, 150)))
    shown = Shown(tmp_path, put)
    assert shown.logs() == data(batches(0, 150))
    assert "1 copies of segments left out" in shown.notes()


def test_copies_with_different_boundaries_are_joined(tmp_path, put):
    epochs = [(0, 0), (1, 80)]
    later = [*batches(60, 80), *batches(80, 160, 1)]
    put(tmp_path, "t-0", 1, segment(batches(0, 60)))
    put(tmp_path, "t-0", 2, segment([*batches(50, 80), *batches(80, 100, 1)], epochs))
    put(tmp_path, "t-0", 3, segment(later, epochs))
    shown = Shown(tmp_path, put)
    assert shown.logs() == data(batches(0, 60), later)
    assert shown.starts() == [0, 60, 100]
    before = shown.files()
    put(tmp_path, "t-0", 4, segment([*batches(140, 160, 1), *batches(160, 200, 2)], [*epochs, (2, 160)]))
    assert {name: size for name, size in shown.files().items() if name in before and name[0] == "0"} == {
        name: size for name, size in before.items() if name[0] == "0"
    }  # a new leader changes nothing of what was shown before


def test_partly_used_copy_has_no_indexes(tmp_path, put):
    epochs = [(0, 0), (1, 100)]
    put(tmp_path, "t-0", 1, segment(batches(0, 100)))
    put(tmp_path, "t-0", 2, segment([*batches(60, 100), *batches(100, 160, 1)], epochs))
    shown = Shown(tmp_path, put)
    assert shown.logs() == data(batches(0, 100), batches(100, 160, 1))
    assert shown.starts() == [0, 100]
    assert not {f"{100:020d}.index", f"{100:020d}.timeindex"} & set(shown.files())
    assert {f"{0:020d}.index", f"{100:020d}.snapshot", f"{160:020d}.snapshot"} <= set(shown.files())


def test_records_lost_by_an_unclean_election_are_ignored(tmp_path, put):
    put(tmp_path, "t-0", 1, segment(batches(0, 100)))
    put(tmp_path, "t-0", 2, segment(batches(100, 200, tag="lost")))
    put(tmp_path, "t-0", 3, segment([*batches(100, 120, tag="lost"), *batches(120, 180, 1)], [(0, 0), (1, 120)]))
    shown = Shown(tmp_path, put)
    assert shown.logs() == data(batches(0, 100), batches(100, 120, tag="lost"), batches(120, 180, 1))
    assert "offsets 120 to 199 of leader epoch 0 left out" in shown.notes()


def test_copy_beyond_the_log_of_the_newest_leader_is_ignored(tmp_path, put):
    put(tmp_path, "t-0", 1, segment(batches(0, 100)))
    put(tmp_path, "t-0", 2, segment([*batches(100, 120), *batches(120, 140, 2)], [(0, 0), (2, 120)]))
    put(tmp_path, "t-0", 3, segment(batches(120, 400, 1), [(0, 0), (1, 120)]))
    assert Shown(tmp_path, put).logs() == data(batches(0, 120), batches(120, 140, 2))


def test_two_leaders_of_one_epoch_are_a_problem(tmp_path, put):
    put(tmp_path, "t-0", 1, segment(batches(0, 100, 1), [(0, 0), (1, 50)]))
    put(tmp_path, "t-0", 2, segment(batches(0, 120, 1), [(0, 0), (1, 60)]))
    with pytest.raises(LogFormatError, match="overlap: expected leader epoch 0 at offset 50, found leader epoch 1"):
        Shown(tmp_path, put).files()


def test_different_records_at_equal_offsets_and_epoch_are_a_problem(tmp_path, put):
    put(tmp_path, "t-0", 1, segment(batches(0, 100)))
    put(tmp_path, "t-0", 2, segment(batches(50, 150, tag="other")))
    with pytest.raises(LogFormatError, match="the same batch before offset 100 in both copies, found two dif") as e:
        Shown(tmp_path, put).files()
    assert segment_id(1) in str(e.value)
    assert segment_id(2) in str(e.value)
    assert "move those of the other one out of the archive" in str(e.value)


def test_copies_with_different_batch_boundaries_are_a_problem(tmp_path, put):
    put(tmp_path, "t-0", 1, segment(batches(0, 100, each=10)))
    put(tmp_path, "t-0", 2, segment(batches(45, 145)))
    with pytest.raises(LogFormatError, match="the same batch before offset 100 in both copies, found two different"):
        Shown(tmp_path, put).files()
    put(tmp_path, "t-0", 2, segment(batches(45, 145, each=10)))
    with pytest.raises(LogFormatError, match="a batch that begins at offset 100, found one of offsets 95 to 104"):
        Shown(tmp_path, put).files()


def test_incomplete_upload_is_noted_and_replaces_no_complete_one(tmp_path):
    put_kafka(tmp_path, "t-0", 1, segment(batches(0, 100)))
    put_kafka(tmp_path, "t-0", 2, segment(batches(0, 80)), without=["snapshot", "leader_epoch_checkpoint"])
    put_kafka(tmp_path, "t-0", 3, segment(batches(100, 150)), without=["snapshot"])
    shown = Shown(tmp_path, put_kafka)
    assert shown.logs() == data(batches(0, 150))
    assert f"0-{segment_id(2)}: no .leader_epoch_checkpoint, .snapshot" in shown.notes()
    assert "or lost objects; left out" in shown.notes()
    assert "or lost objects; its log is used" in shown.notes()


def test_partial_log_is_used_up_to_its_last_complete_batch(tmp_path):
    put_kafka(tmp_path, "t-0", 1, segment(batches(0, 100)))
    folder = put_kafka(tmp_path, "t-0", 2, segment(batches(100, 150)), without=["index", "timeindex", "snapshot"])
    log = folder / f"100-{segment_id(2)}.log"
    log.write_bytes(log.read_bytes()[:-20])
    put_kafka(tmp_path, "t-0", 3, segment(batches(100, 200)))
    assert Shown(tmp_path, put_kafka).logs() == data(batches(0, 200))


def test_remote_side_files_without_a_log_are_a_problem(tmp_path, put):
    put(tmp_path, "t-0", 1, segment(batches(0, 100)))
    put(tmp_path, "t-0", 2, segment(batches(100, 150)), without=["log"])
    shown = Shown(tmp_path, put)
    assert shown.starts() == [0]
    assert f"{100:020d}.index" in shown.files()
    assert "no .log: an upload that did not end, or lost objects; left out" in shown.notes()


@pytest.mark.parametrize("compressed", [True, False])
def test_readable_log_without_a_manifest_is_used(tmp_path, compressed):
    put_aiven(tmp_path, "t-0", 1, segment(batches(0, 100)))
    put_aiven(tmp_path, "t-0", 2, segment(batches(100, 150)), compressed=compressed, without=["rsm-manifest"])
    shown = Shown(tmp_path, put_aiven)
    assert shown.logs() == data(batches(0, 100 if compressed else 150))
    assert "no .rsm-manifest: an upload that did not end, or lost objects" in shown.notes()
    listed = shown.view.get_file_info(pafs.FileSelector(str(tmp_path), recursive=True))
    assert len([info for info in listed if "-stray/" in info.path]) == compressed  # also ignored copies


def test_later_uploads_are_found(tmp_path, put):
    put(tmp_path, "t-0", 1, segment(batches(0, 100)))
    shown = Shown(tmp_path, put)
    assert shown.starts() == [0]
    put(tmp_path, "t-0", 2, segment(batches(100, 150)))
    with shown.view.open_input_file(f"{shown.path}/{100:020d}.log") as file:
        assert file.read(10_000) == data(batches(100, 150))
    assert shown.starts() == [0, 100]


def test_recursive_listing_includes_ignored_uploads(tmp_path, put):
    put(tmp_path, "t-0", 1, segment(batches(0, 100)))
    put(tmp_path, "t-0", 2, segment(batches(0, 150)))
    shown = Shown(tmp_path, put)
    listed = shown.view.get_file_info(pafs.FileSelector(str(tmp_path), recursive=True))
    strays = [info for info in listed if "-stray/" in info.path]
    assert [info.path for info in strays] == [f"{shown.path}.{segment_id(2)}-stray/{0:020d}.log"]
    with shown.view.open_input_file(strays[0].path) as file:
        assert file.read(strays[0].size) == data(batches(0, 150))
    assert shown.view.get_file_info(strays[0].path).size == strays[0].size


def test_recursive_listing_includes_undecidable_uploads(tmp_path):
    put_kafka(tmp_path, "t-0", 1, segment(batches(0, 100)))
    put_kafka(tmp_path, "t-0", 2, segment(batches(50, 150, tag="other")))
    put_aiven(tmp_path, "t-1", 3, segment(batches(0, 50)), encryption={"dataKey": "x", "aad": "y"})
    put_kafka(tmp_path, "t-2", 4, segment(batches(0, 50)))
    view = TieredFileSystem(pafs.LocalFileSystem(), str(tmp_path))
    listed = view.get_file_info(pafs.FileSelector(str(tmp_path), recursive=True))
    logs = sorted(info.path for info in listed if info.path.endswith(".log"))
    strays = [path for path in logs if "-stray/" in path]
    assert (len(logs), len(strays)) == (4, 3)
    for path in strays:
        if segment_id(3) in path:
            with pytest.raises(LogFormatError, match="an encrypted one"):
                view.open_input_file(path)
        else:
            with view.open_input_file(path) as file:
                assert len(file.read(1 << 20)) == view.get_file_info(path).size


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("chunk", [100, 4096, 1 << 20])
def test_log_is_read_from_chunks_of_any_size(tmp_path, compressed, chunk):
    one = segment(batches(0, 300))
    put_aiven(tmp_path, "t-0", 1, one, chunk=chunk, compressed=compressed)
    shown = Shown(tmp_path, put_aiven)
    with shown.view.open_input_file(f"{shown.path}/{0:020d}.log") as file:
        for position, size in ((0, 7), (95, 300), (len(one.log) - 3, 10), (4090, 20), (1, len(one.log))):
            file.seek(position)
            assert file.read(size) == one.log[position : position + size]


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({"version": "2"}, "expected a manifest of version 1, found version 2"),
        ({"encryption": {"dataKey": "x", "aad": "y"}}, "expected a segment without encryption, found an encrypted one"),
        ({"chunkIndex": {}}, "expected the chunks and indexes of a segment"),
        ({"chunkIndex": {"type": "fixed", "originalChunkSize": 1, "originalFileSize": 1 << 31}}, "chunks and indexes"),
        ({"chunkIndex": {"type": "other", "originalChunkSize": 9, "originalFileSize": 9}}, "chunks of type 'other'"),
        (
            {"chunkIndex": {"type": "variable", "originalChunkSize": 4096, "originalFileSize": 9000,
                            "transformedChunks": chunk_sizes([5])}},
            "the sizes of 1 chunks, of 3 in the log",
        ),
        ({"segmentIndexes": {"offset": {"position": -1, "size": 8}}}, "offset with 8 bytes at -1"),
        ({"segmentIndexes": {"offset": {"position": 0, "size": 1 << 40}}}, "offset with 1099511627776 bytes at 0"),
        ({"segmentIndexes": []}, "expected the chunks and indexes of a segment"),
    ],
)  # fmt: skip
def test_invalid_manifest_is_an_error_with_its_path(tmp_path, manifest, words):
    folder = put_aiven(tmp_path, "t-0", 1, segment(batches(0, 100)), **manifest)
    with pytest.raises(LogFormatError, match=re.escape(words)) as e:
        Shown(tmp_path, put_aiven).files()
    assert str(e.value).startswith(f"{folder}/{0:020d}-{segment_id(1)}.rsm-manifest")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"1", b"\xff", b'{"version": "1"}', b'{"version": "1", "chunkIndex": 3}']
)
def test_malformed_manifest_is_an_error(tmp_path, text):
    folder = put_aiven(tmp_path, "t-0", 1, segment(batches(0, 100)))
    next(folder.glob("*.rsm-manifest")).write_bytes(text)
    with pytest.raises(LogFormatError, match="side_file: expected"):
        Shown(tmp_path, put_aiven).files()


def test_damaged_chunk_or_short_object_is_reported(tmp_path):
    one = segment(batches(0, 300))
    folder = put_aiven(tmp_path, "t-0", 1, one)
    shown = Shown(tmp_path, put_aiven)
    assert shown.starts() == [0]
    log = next(folder.glob("*.log"))
    whole = log.read_bytes()
    log.write_bytes(bytes(len(whole)))
    message = "expected a zstd frame of 4096 bytes, found chunk 0 in bytes 0 to"
    with shown.view.open_input_file(f"{shown.path}/{0:020d}.log") as file, pytest.raises(OSError, match=message):
        file.read(10)
    log.write_bytes(whole[:-1])
    assert shown.starts() == [0]
    with pytest.raises(LogFormatError, match="as the manifest says, found end of file"):
        shown.view.open_input_file(f"{shown.path}/{0:020d}.log")
