"""Locations of files and folders: paths and URIs, their file systems, and the refusal of URIs that hold a secret.

Reports, errors, logs and tables repeat a URI, so it must hold no credentials. The user part of an authority is refused
if it is a secret or may be one (`s3://KEY:SECRET@bucket`). Query parameters with names of secrets (`?secret_key=`) are
refused too. Plain names are allowed: `hdfs://user@host`, `abfs://container@account`, `gs://anonymous@bucket`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs as pafs

from lastkey.logformat.errors import PlaceError
from lastkey.logformat.storage.buckets import ENDPOINTS, bucket_path, parse_bucket

# The start of a URI anywhere in a text; for store schemes also with too few slashes.
_URI: Final = re.compile(
    r"(?:(?P<scheme>[a-z][a-z0-9+.-]*)://|(?<![^=,\s])(?P<store>s3[an]?|gs|gcs|az|hdfs|abfss?|wasbs?):/?)"
    r"(?P<authority>(?:[^/?#,\s]|,(?![a-z][a-z0-9+.-]*:/))*)",
    re.IGNORECASE,
)
_AFTER_SLASHES: Final = re.compile(r"[/\s]+([^/?#,\s]*)")  # s3:///KEY:SECRET@bucket
_PARAMETER: Final = re.compile(r"[?&#;](?P<name>[^=&#;/?\s]+)=(?P<value>[^&#;\s]*)")
_SECRET_NAME: Final = re.compile(
    r"secret|pass|pwd|token|key(?!tab)|cred(?!ential_kind)|^sig$|signature|^sas|auth(?!ority)", re.IGNORECASE
)
# Schemes whose authority may begin with a user or container name, which is no secret.
_NAMED: Final = {"hdfs", "viewfs", "webhdfs", "abfs", "abfss", "wasb", "wasbs", "sftp"}
_BUCKETS: Final = {"s3", "s3a", "s3n", "gs", "gcs", "az"}  # their authority is a bucket's name only, without a colon
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*(?=://)", re.IGNORECASE)
TIERED: Final = "tiered+"  # prefix of a path or URI of tiered storage, see logformat.tiered.view
_OTHER_NAMES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


def secret_error(what: str = "a URI") -> PlaceError:
    """Return the error for a URI that holds credentials, or seems to. It repeats no part of the URI."""
    return PlaceError(
        f"expected {what} without credentials, found some in it (not repeated here); give them by environment "
        "variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; AZURE_STORAGE_ACCOUNT_KEY; "
        "GOOGLE_APPLICATION_CREDENTIALS), a profile (AWS_PROFILE) "
        "or the machine's role; and change those that were typed: shells and process lists keep "
        "them"
    )


def refuse_secrets(text: str) -> None:
    """Raise PlaceError if a URI in `text` holds credentials."""
    if has_secret(text):
        raise secret_error()


def has_secret(text: str) -> bool:
    """Return whether a URI in `text` seems to hold credentials, judged by their place in it."""
    plain = unquote(text)
    is_secret = plain != text and has_secret(plain)
    for uri in _URI.finditer(text):
        scheme, authority = (uri["scheme"] or uri["store"]).lower().removeprefix(TIERED), unquote(uri["authority"])
        behind = _AFTER_SLASHES.match(text, uri.end()) if scheme in _BUCKETS and not authority else None
        is_secret = is_secret or (behind is not None and _is_secret(scheme, unquote(behind[1])))
        is_secret = is_secret or _is_secret(scheme, authority)
        is_secret = is_secret or any(
            _SECRET_NAME.search(unquote(parameter["name"])) or "@" in unquote(parameter["value"])
            for parameter in _PARAMETER.finditer(text, uri.end())
        )
    return is_secret


def _is_secret(scheme: str, authority: str) -> bool:
    user, at, host = authority.rpartition("@")
    if scheme in _BUCKETS:
        return ":" in authority or (bool(at) and (scheme, user) not in (("gs", "anonymous"), ("gcs", "anonymous")))
    port = host.rpartition("]")[2].partition(":")[2]  # after the brackets of IPv6; a secret with a slash ends here
    return ":" in user or (bool(user) and scheme not in _NAMED) or not re.fullmatch("[0-9]*", port)


def canonical(uri: str) -> str:
    """Return the URI with its scheme as we write it: s3a:// and s3n:// are Hadoop's names for s3://."""
    scheme = _SCHEME.match(uri)
    if scheme is None:
        return uri
    name = scheme[0].lower()
    return f"{_OTHER_NAMES.get(name, name)}{uri[scheme.end() :]}"


def locate(path_or_uri: str | Path, filesystem: Any = None) -> tuple[Any, str]:
    """Return the pyarrow file system of a path or URI, and the path on it.

    With `filesystem`, a pyarrow.fs.FileSystem, the path is one of its own. Without, it is a URI (`s3://bucket/folder`)
    or a local path, which may be relative. Raises the same errors as `file_system`.
    """
    name = str(path_or_uri)
    if filesystem is not None:
        return filesystem, name
    refuse_secrets(name)
    if "://" in name:
        return file_system(name)
    return pafs.LocalFileSystem(), str(Path(name).expanduser().absolute())


def file_system(uri: str) -> tuple[Any, str]:
    """Return the file system of a URI or an absolute path, and the path on it: pyarrow's for local files, else an
    `ObjectStore`.

    Region, endpoint and credentials of object stores come from the environment and profiles (`storage.buckets`).

    Raises pyarrow.ArrowInvalid for an invalid URI, PlaceError for a URI with credentials.
    """
    refuse_secrets(uri)
    uri = canonical(uri)
    bucket = parse_bucket(uri)
    if bucket is None:
        if "://" in uri and not uri.startswith("file://"):
            raise pa.ArrowInvalid("none of file://, s3://, gs://, az://, abfs:// and abfss://")
        found, path = pafs.FileSystem.from_uri(uri)
        return found, path
    if "@" in bucket.endpoint:
        raise secret_error(f"an endpoint ({ENDPOINTS[bucket.scheme]})")
    from lastkey.logformat.storage.object_store import ObjectStore  # noqa: PLC0415 - local files need no obstore

    return ObjectStore(bucket), bucket_path(uri)


def text_entries(listed: Iterable[Any]) -> tuple[list[Any], int]:
    """Return the entries of a listing (pyarrow.fs.FileInfo) whose paths are text, and the number of the others.

    Names on a disk are bytes; pyarrow raises at every use of a name that is not UTF-8.
    """
    out = []
    others = 0
    for info in listed:
        try:
            is_text = bool(info.path)
        except UnicodeDecodeError:
            is_text = False
        if is_text:
            out.append(info)
        others += not is_text
    return out, others


def describe_entries(listed: Sequence[Any]) -> str:
    """Describe a folder that should be empty by its first name and the number of other names."""
    found, _ = text_entries(listed)
    name = found[0].base_name if found else "a name that is not UTF-8"
    return f"{name} and {len(listed) - 1} more"
