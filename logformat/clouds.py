"""Object stores, the one place that tells them apart: S3, Azure Blob Storage and Google Cloud Storage.

A module for each (`s3_access`, `azure_access`, `gcs_access`) knows its settings, how to give them to the two libraries
that use them (pyarrow and delta-rs), and the words in which these report a failed request. Each offers the same names:

  SCHEMES, ENDPOINT, endpoint()      of its URIs; the variable of its endpoint, and what that is
  SIGNS                              kind of failure -> pattern in the libraries' words; the first that matches decides
  is_ours, bucket_of, file_system    of a URI: do we read it; its bucket; pyarrow's file system, and the path on it
  url_of(URI)                        the server (not of S3, for which both libraries have limits of time)
  delta_options(URI)                 what delta-rs needs beside the environment
  is_said, blamed, named_at          is a message about it; the bucket that it names, and a probe of that

A commit is a put that fails if the file exists, everywhere and by delta-rs alone; nothing else of ours writes a file
that another process may write.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
from pyarrow import fs as pafs

from lastkey.logformat import azure_access, gcs_access, s3_access, silent_servers
from lastkey.logformat.access_error import (
    BAD_REQUEST,
    BUSY,
    DENIED,
    EXPIRED,
    NO_BUCKET,
    NO_CREDENTIALS,
    UNREACHABLE,
    UNUSABLE,
    AccessError,
    in_one_line,
)

_CONNECT_SECONDS: Final = 5  # delta-rs
_REQUEST_SECONDS: Final = 8  # delta-rs: one request with its answer, which is small
_RETRY_SECONDS: Final = 8  # delta-rs: no attempt begins later
_RETRIES: Final = 6  # delta-rs
_ANSWERED: Final[set[str]] = set()
# No server refused the file then, so even if it answers the next question, no archive may be called damaged for that
_NO_FILES_OWN: Final = (UNREACHABLE, BUSY, EXPIRED, NO_CREDENTIALS)
_OF_HDFS: Final = re.compile(
    r"Unable to load lib(?:jvm|hdfs)|load libhdfs failed|HDFS connection failed|Generic HdfsObjectStore error"
)


_CLOUDS: Final[tuple[ModuleType, ...]] = (azure_access, gcs_access, s3_access)  # S3's words are the least of its own
_TYPES: Final = ("abfs", "gcs", "s3")  # pyarrow's names of their file systems


def cloud_of(uri: str) -> ModuleType | None:
    """Return the object store that a URI names in a way that we read; None for any other, such as one with `?`."""
    scheme = uri.partition("://")[0]
    found = next((cloud for cloud in _CLOUDS if scheme in cloud.SCHEMES), None)
    return found if found is not None and "?" not in uri and found.is_ours(uri) else None


def is_bucket(uri: str) -> bool:
    """Return whether a URI, in canonical spelling, names an object store, even with `?`."""
    return any(uri.startswith(f"{scheme}://") for cloud in _CLOUDS for scheme in cloud.SCHEMES)


def make_folder(filesystem: Any, path: str) -> None:
    """Make a folder and those above it that are missing. A bucket has none: there a file needs nothing above it, and
    pyarrow would write an empty object for each level, and first ask for each.
    """
    if filesystem.type_name not in _TYPES:
        filesystem.create_dir(path, recursive=True)


def bucket_address(uri: str) -> tuple[str, ...] | None:
    """Return what tells a bucket from all others, however its URI is spelled; None for what is no bucket of ours."""
    cloud = cloud_of(uri)
    if cloud is None:
        return None
    return ("az", *azure_access.address(uri)) if cloud is azure_access else (cloud.SCHEMES[0], cloud.bucket_of(uri))


def delta_place(uri: str, base: str) -> tuple[str, dict[str, str] | None]:
    """Return the URI of a folder for delta-rs and the options that it needs beside those in the environment; base: the
    path on the file system of the URI.
    """
    cloud = cloud_of(uri)
    if cloud is None:
        return uri, None
    scheme = "az" if cloud is azure_access else cloud.SCHEMES[0]
    options = cloud.delta_options(uri) | {
        "timeout": f"{_REQUEST_SECONDS}s",
        "connect_timeout": f"{_CONNECT_SECONDS}s",
        "retry_timeout": f"{_RETRY_SECONDS}s",
        "max_retries": str(_RETRIES),
    }
    return f"{scheme}://{quote(base)}", options


def access_error(said: str, *, of_one_file: bool = False) -> AccessError | None:
    """Return the AccessError that a library's words mean for the bucket as a whole, or None if they mean something
    else.

    of_one_file: the words are about one file, and only that file may be out of reach, so ask the bucket. Ask it also if
    an answer came without a body, as to HEAD. This takes a few seconds, no more than any request that fails.
    """
    if _OF_HDFS.search(said):
        found = in_one_line(said) if "↳" in said else said.partition("\n")[0]
        return AccessError(UNUSABLE, "hdfs://", re.sub(r"^(?:\w+: )?(?:Unknown error: )?", "", found).rstrip("."))
    cloud = next((cloud for cloud in _CLOUDS if cloud.is_said(said)), None)
    kind = _kind(cloud, said) if cloud is not None else None
    if cloud is None or kind is None:
        return None
    where, ask = cloud.blamed(said)
    if of_one_file or "No response body" in said or kind == BAD_REQUEST:
        now = ask() if ask is not None else None
        if now is None and of_one_file and kind not in _NO_FILES_OWN:
            return None
        if now is not None and "bucket is located in" not in said:
            kind, said = _kind(cloud, now) or kind, now
    kind, found = DENIED if kind == BAD_REQUEST else kind, in_one_line(said)
    if cloud is s3_access:
        kind, found = s3_access.judged(kind, found)
    return AccessError(kind, where, found)


def check_bucket(uri: str, filesystem: Any) -> None:
    """Raise AccessError if the bucket of a URI does not exist. A listing below it would look empty instead."""
    cloud = cloud_of(uri)
    if cloud is None or isinstance(filesystem, pafs.LocalFileSystem):
        return
    if filesystem.get_file_info(cloud.bucket_of(uri)).type == pafs.FileType.NotFound:
        raise AccessError(NO_BUCKET, cloud.named_at(uri), "404")


def check_answer(uri: str) -> None:
    """Raise AccessError unless the server of a URI answers something, asked once a process: the libraries for Azure and
    Google would need a minute to find that out.
    """
    cloud = cloud_of(uri)
    if cloud is None or cloud is s3_access:
        return
    url = cloud.url_of(uri)
    if url in _ANSWERED:
        return
    if why := silent_servers.why_no_answer(url):
        raise AccessError(UNREACHABLE, cloud.named_at(uri), why)
    _ANSWERED.add(url)


def watch_server(uri: str) -> None:
    """See to it that requests to the server of a URI end, even if it falls silent; pyarrow's to S3 do by themselves."""
    cloud = cloud_of(uri)
    if cloud is not None and cloud is not s3_access:
        silent_servers.watch(cloud.url_of(uri))


def check_uri(uri: str) -> None:
    """Raise pyarrow.ArrowInvalid for a URI of an object store that names no bucket."""
    if is_bucket(uri) and not uri.partition("://")[2].strip().partition("/")[0]:
        raise pa.ArrowInvalid("no bucket")


def _kind(cloud: ModuleType, said: str) -> str | None:
    return next((kind for kind, signs in cloud.SIGNS if re.search(signs, said)), None)
