"""Listings of Google's store: they show folders, whoever uploaded the files."""

from __future__ import annotations

import pytest
from pyarrow import fs as pafs

from lastkey.logformat.google_folders import GoogleFolders


class FilesAlone:
    """A disk that shows no folders, as Google's store does; "made" is one of which somebody made an object."""

    type_name = "gcs"

    def get_file_info(self, asked):
        found = pafs.LocalFileSystem().get_file_info(asked)
        if not isinstance(asked, pafs.FileSelector):
            return found
        return [info for info in found if info.is_file or info.base_name == "made"]


def listed(filesystem, folder, **given):
    infos = filesystem.get_file_info(pafs.FileSelector(str(folder), **given))
    return sorted((info.path, info.base_name, info.type, info.size) for info in infos)


def test_a_folder_shows_what_a_disk_shows(tmp_path):
    for name in ("a/b/c/x", "a/y", "made/z", "a/made/z", "ab"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    google = GoogleFolders(FilesAlone())
    for folder in ("", "a", "a/b", "a/b/c", "made"):
        assert listed(google, tmp_path / folder) == listed(pafs.LocalFileSystem(), tmp_path / folder)
    assert len(listed(google, tmp_path, recursive=True)) == 7
    assert google.get_file_info(str(tmp_path / "ab")).is_file
    assert google.type_name == "gcs"
    assert listed(google, tmp_path / "none", allow_not_found=True) == []
    with pytest.raises(FileNotFoundError):
        listed(google, tmp_path / "none")
