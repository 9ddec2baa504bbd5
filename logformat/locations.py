"""Where a file or folder lies: a path or URI, on which file system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
        found, path = pafs.FileSystem.from_uri(name)
        return found, path
    return pafs.LocalFileSystem(), str(Path(name).expanduser().absolute())
