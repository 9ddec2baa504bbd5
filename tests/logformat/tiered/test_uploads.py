"""Copies of segments as Pinterest's uploader leaves them: without leader epochs, which their batches know."""

from __future__ import annotations

import pytest
from pyarrow import fs as pafs

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.tiered.view import TieredFileSystem
from tests.builders.remote import batches, put_kafka, put_pinterest, segment


class Shown:
    """The partition t-0 as the view shows it."""

    def __init__(self, root) -> None:
        self.path = f"{root}/t-0"
        self.view = TieredFileSystem(pafs.LocalFileSystem(), str(root))

    def files(self) -> dict[str, int]:
        return {i.base_name: i.size for i in self.view.get_file_info(pafs.FileSelector(self.path))}

    def log(self) -> bytes:
        out = b""
        for name, size in sorted(self.files().items()):
            if name.endswith(".log"):
                with self.view.open_input_file(f"{self.path}/{name}") as file:
                    out += file.read(size)
        return out


def data(*parts) -> bytes:
    return b"".join(b.data for part in parts for b in part)


def test_segments_without_copies_keep_their_names_and_indexes(tmp_path):
    for first in (0, 50):
        put_pinterest(tmp_path, "t-0", first, segment(batches(first, first + 50)))
    shown = Shown(tmp_path)
    assert [*shown.files()] == [*(f"{o:020d}.{k}" for o in (0, 50) for k in ("index", "log", "timeindex")), "offset.wm"]
    assert shown.log() == data(batches(0, 100))
    assert shown.view.get_file_info(f"{shown.path}/{50:020d}.log").size == len(segment(batches(50, 100)).log)
    assert shown.view.get_file_info([f"{tmp_path}/t-1", shown.path])[0].type == pafs.FileType.NotFound


def test_uploads_of_two_brokers_are_joined_to_one_log(tmp_path):
    put_pinterest(tmp_path, "t-0", 1, segment(batches(0, 80)))
    put_pinterest(tmp_path, "t-0", 1, segment(batches(80, 160)))
    later = [*batches(160, 200), *batches(200, 260, 1)]
    put_pinterest(tmp_path, "t-0", 2, segment([*batches(120, 160), *later]))
    shown = Shown(tmp_path)
    assert shown.log() == data(batches(0, 160), later)
    assert [name for name in shown.files() if name.endswith("log")] == [f"{o:020d}.log" for o in (0, 80, 160)]
    put_pinterest(tmp_path, "t-0", 2, segment(batches(100, 150)))
    assert len(shown.files()) == 8  # the last one is cut, so without indexes
    assert [*map(str, shown.view.notes(shown.path))] == [
        "1 copies of segments overlap the ones before, after changes of leaders, and count from where those end: the "
        "first 00000000000000000120 from offset 160",
        "1 copies of segments left out, the first 00000000000000000100: after a change of leaders the others hold the "
        "same offsets",
    ]


@pytest.mark.parametrize("epochs", [(0, 1), (2, 3)])
def test_newest_leader_decides_after_an_unclean_election(tmp_path, epochs):
    """Two elections in the same log: the copies after the second contain no offsets of the first leader."""
    old, new = epochs
    put_pinterest(tmp_path, "t-0", 1, segment(batches(0, 100)))
    put_pinterest(tmp_path, "t-0", 1, segment(batches(100, 200, old)))
    put_pinterest(tmp_path, "t-0", 2, segment([*batches(110, 140, old), *batches(140, 180, new)]))
    put_pinterest(tmp_path, "t-0", 2, segment(batches(180, 300, new)))
    put_pinterest(tmp_path, "t-0", 3, segment([*batches(220, 240, new), *batches(240, 260, new + 1)]))
    shown = Shown(tmp_path)
    parts = batches(0, 100), batches(100, 140, old), batches(140, 240, new), batches(240, 260, new + 1)
    assert shown.log() == data(*parts)
    notes = "\n".join(shown.view.notes(shown.path))
    assert f"offsets 140 to 199 of leader epoch {old} left out" in notes
    assert f"offsets 240 to 299 of leader epoch {new} left out" in notes


def test_differing_uploads_of_one_epoch_are_a_problem(tmp_path):
    put_pinterest(tmp_path, "t-0", 1, segment(batches(0, 100)))
    put_pinterest(tmp_path, "t-0", 2, segment(batches(60, 150, tag="other")))
    with pytest.raises(LogFormatError, match="the same batch before offset 100 in both copies, found two dif"):
        Shown(tmp_path).files()


def test_log_directory_beside_uploads_is_listed_unchanged(tmp_path):
    put_pinterest(tmp_path, "t-1", 1, segment(batches(0, 50)))
    put_kafka(tmp_path, "t-2", 1, segment(batches(0, 50)))
    folder = put_pinterest(tmp_path, "t-0", 1, segment(batches(0, 50)))
    (folder / "offset.wm").rename(folder / "leader-epoch-checkpoint")
    (folder / f"{0:020d}.txnindex").touch()
    shown = Shown(tmp_path)
    assert {*shown.files()} == {path.name for path in folder.iterdir()}
    assert shown.log() == data(batches(0, 50))
    assert shown.view.objects(f"{shown.path}/{0:020d}.log") == [f"{shown.path}/{0:020d}.log"]
    assert shown.view.get_file_info(f"{shown.path}/{0:020d}.txnindex").type == pafs.FileType.File
