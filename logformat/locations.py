"""Where a file or folder lies: a path or URI, on which file system."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyarrow import fs as pafs


def locate(path_or_uri: str | Path, filesystem: Any = None) -> tuple[Any, str]:
    """The pyarrow file system of a path or URI, and the path on it.

    filesystem: a pyarrow.fs.FileSystem; the path is then one of its own. Without: a URI (`s3://bucket/folder`), or a
    local path, which may be relative.
    """
    name = str(path_or_uri)
    if filesystem is not None:
        return filesystem, name
    if "://" in name:
        return file_system(name)
    return pafs.LocalFileSystem(), str(Path(name).expanduser().absolute())


def file_system(uri: str) -> tuple[Any, str]:
    """The same of a URI or an absolute path; pyarrow.ArrowInvalid for one that cannot be.

    S3: the region, the endpoint (AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, for stores that speak S3) and credentials come
    from the environment, as for Amazon's own tools; pyarrow.fs by itself looks at no endpoint there.
    """
    scheme, _, rest = uri.partition("://")
    if scheme == "s3" and rest and "?" not in rest and "@" not in rest:
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
        return _s3(rest.partition("/")[0], endpoint), unquote(rest).rstrip("/")
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


@cache
def _s3(bucket: str, endpoint: str) -> Any:
    """Kept, since each new one asks where its bucket is."""
    if not endpoint:
        return pafs.FileSystem.from_uri(f"s3://{bucket}")[0]
    at = urlsplit(endpoint)
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    return pafs.S3FileSystem(endpoint_override=at.netloc or endpoint, scheme=at.scheme or "https", region=region)
