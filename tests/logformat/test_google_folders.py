"""Google's store: its listings show folders, whoever uploaded the files, and its refusals are no missing files."""

from __future__ import annotations

import errno

import pytest
from pyarrow import fs as pafs

from lastkey.logformat.access_error import DENIED, LOST, NO_BUCKET, AccessError
from lastkey.logformat.errors import stopped
from lastkey.logformat.google_file import GoogleFile
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


class Refusing:
    """A file system of which every request is refused, as Google's library says it."""

    type_name = "gcs"

    def __init__(self, said, error):
        self.said, self.error = said, error

    def open_output_stream(self, path, **given):
        number = {FileNotFoundError: errno.ENOENT, PermissionError: errno.EACCES}[self.error]
        raise self.error(number, f"google::cloud::Status({self.said}). Detail: [errno {number}] x")

    get_file_info = open_output_stream


UPLOAD = "last message of Refused error_info={reason=, metadata={gcloud-cpp.retry.function=UploadChunk}}"


@pytest.mark.parametrize(
    ("said", "error", "kind"),
    [
        (f"NOT_FOUND: Permanent error, with a {UPLOAD}", FileNotFoundError, LOST),
        (f"PERMISSION_DENIED: Permanent error, with a {UPLOAD}", PermissionError, DENIED),
        (f"UNAUTHENTICATED: Permanent error, with a {UPLOAD}", PermissionError, DENIED),
        (f"NOT_FOUND: Permanent error, with a {UPLOAD.replace('Refused', 'The specified bucket does not exist')}",
         FileNotFoundError, NO_BUCKET),
    ],
)  # fmt: skip
def test_an_upload_that_is_refused_is_the_buckets_fault(said, error, kind):
    """The library says it as of a file that is missing, or that this machine's user may not open."""
    with pytest.raises(OSError) as refused:
        GoogleFolders(Refusing(said, error)).open_output_stream("b/a file")
    assert refused.value.errno is None
    with pytest.raises(AccessError) as found:
        stopped(refused.value, "t-0")
    assert (found.value.kind, found.value.where) == (kind, "gs://b")


def test_a_file_that_may_not_be_read_is_named():
    with pytest.raises(OSError, match=r"'https://storage[.]googleapis[.]com/b/a%20file'") as refused:
        GoogleFile(Refusing("PERMISSION_DENIED: no", PermissionError), "b/a file")
    assert refused.value.errno is None
