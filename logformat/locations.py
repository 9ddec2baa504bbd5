"""Where a file or folder lies: a path or URI, on which file system; and no URI with a secret in it.

A URI is repeated in reports, errors, logs and tables, so credentials have no place there. The user part of an authority
is refused where it is one, or may be (`s3://KEY:SECRET@bucket`), and so are parameters of a query that are named like a
secret (`?secret_key=`). What stays is a name: `hdfs://user@host`, `abfs://container@account`, `gs://anonymous@bucket`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs as pafs

from logformat.s3_access import bucket_of, s3_access, s3_filesystem

# Wherever a URI begins, in a text too; of stores also with too few slashes
_URI: Final = re.compile(
    r"(?:(?P<scheme>[a-z][a-z0-9+.-]*)://|(?<![^=,\s])(?P<store>s3[an]?|gs|hdfs|abfss?|wasbs?):/?)"
    r"(?P<authority>(?:[^/?#,\s]|,(?![a-z][a-z0-9+.-]*:/))*)",
    re.IGNORECASE,
)
_AFTER_SLASHES: Final = re.compile(r"[/\s]+([^/?#,\s]*)")  # s3:///KEY:SECRET@bucket
_PARAMETER: Final = re.compile(r"[?&#;](?P<name>[^=&#;/?\s]+)=(?P<value>[^&#;\s]*)")
_SECRET_NAME: Final = re.compile(
    r"secret|pass|pwd|token|key(?!tab)|cred(?!ential_kind)|^sig$|signature|^sas|auth(?!ority)", re.IGNORECASE
)
# Schemes whose authority may begin with a name, which is no secret
_NAMED: Final = {"hdfs", "viewfs", "webhdfs", "abfs", "abfss", "wasb", "wasbs", "sftp"}
_BUCKETS: Final = {"s3", "s3a", "s3n", "gs"}  # with nothing but a bucket's name, in which there is no colon


class SecretInUriError(ValueError):
    """A URI that holds credentials, or seems to. What it says does not repeat any of it."""

    def __init__(self, what: str = "a URI") -> None:
        self.what = what
        super().__init__(what)

    def __str__(self) -> str:
        return (
            f"expected {self.what} without credentials, found some in it (not repeated here); give them by environment "
            "variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY; GOOGLE_APPLICATION_CREDENTIALS), a profile "
            "(AWS_PROFILE) or the machine's role; and change those that were typed: shells and process lists keep them"
        )


def refuse_secrets(text: str) -> None:
    """SecretInUriError where a URI in `text` holds credentials."""
    if has_secret(text):
        raise SecretInUriError


def has_secret(text: str) -> bool:
    """Whether there is a URI with credentials in `text`, as far as they can be told by their place."""
    plain = unquote(text)
    found = plain != text and has_secret(plain)
    for uri in _URI.finditer(text):
        scheme, authority = (uri["scheme"] or uri["store"]).lower(), unquote(uri["authority"])
        behind = _AFTER_SLASHES.match(text, uri.end()) if scheme in _BUCKETS and not authority else None
        found = found or (behind is not None and _is_secret(scheme, unquote(behind[1])))
        found = found or _is_secret(scheme, authority)
        found = found or any(
            _SECRET_NAME.search(unquote(parameter["name"])) or "@" in unquote(parameter["value"])
            for parameter in _PARAMETER.finditer(text, uri.end())
        )
    return found


def _is_secret(scheme: str, authority: str) -> bool:
    user, at, host = authority.rpartition("@")
    if scheme in _BUCKETS:
        return ":" in authority or (bool(at) and (scheme, user) != ("gs", "anonymous"))
    port = host.rpartition("]")[2].partition(":")[2]  # behind the brackets of IPv6; a secret with a slash ends here
    return ":" in user or (bool(user) and scheme not in _NAMED) or not re.fullmatch("[0-9]*", port)


def without_secrets(uri: str) -> str:
    """The same URI as it is given without its credentials; for what was stored before they were refused."""
    if not has_secret(uri):
        return uri
    scheme, _, rest = uri.partition("://")
    if not rest:
        return f"{uri.partition(':')[0]}://***"
    address, _, query = rest.partition("?")
    authority, slash, path = address.partition("/")
    user, _, host = authority.rpartition("@")
    name = unquote(user).partition(":")[0]
    kept = [p for p in query.split("&") if p and not has_secret(f"{scheme}://host?{p}")]
    plain = f"{scheme}://{name + '@' if name and scheme in _NAMED else ''}{host}{slash}{path}"
    plain += f"?{'&'.join(kept)}" if kept else ""
    return f"{scheme}://***" if has_secret(plain) else plain


def locate(path_or_uri: str | Path, filesystem: Any = None) -> tuple[Any, str]:
    """The pyarrow file system of a path or URI, and the path on it.

    filesystem: a pyarrow.fs.FileSystem; the path is then one of its own. Without: a URI (`s3://bucket/folder`), or a
    local path, which may be relative.
    """
    name = str(path_or_uri)
    if filesystem is not None:
        return filesystem, name
    refuse_secrets(name)
    if "://" in name:
        return file_system(name)
    return pafs.LocalFileSystem(), str(Path(name).expanduser().absolute())


def file_system(uri: str) -> tuple[Any, str]:
    """The same of a URI or an absolute path; pyarrow.ArrowInvalid for one that cannot be, SecretInUriError.

    S3: region, endpoint and credentials come from the environment and the profile (`logformat.s3_access`).
    """
    refuse_secrets(uri)
    scheme, _, rest = uri.partition("://")
    if scheme == "s3" and not rest.strip().partition("/")[0]:
        raise pa.ArrowInvalid("no bucket")
    if scheme == "s3" and rest and "?" not in rest:
        if "@" in s3_access().endpoint:
            raise SecretInUriError("an endpoint (AWS_ENDPOINT_URL)")
        return s3_filesystem(bucket_of(uri)), unquote(rest).rstrip("/")
    found, path = pafs.FileSystem.from_uri(uri)
    return found, path


def text_entries(listed: Iterable[Any]) -> tuple[list[Any], int]:
    """Of a listing (pyarrow.fs.FileInfo) the entries whose paths are text, and how many others there are.

    Names on a disk are bytes; of one that is no UTF-8 pyarrow raises wherever it is looked at.
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


def first_of(listed: Sequence[Any]) -> str:
    """What is in a folder that should be empty, in short: the first name, and how many others there are."""
    found, _ = text_entries(listed)
    name = found[0].base_name if found else "a name that is no UTF-8"
    return f"{name} and {len(listed) - 1} more"
