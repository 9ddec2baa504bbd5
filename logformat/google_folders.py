"""Google's store with listings that show folders, as those of other buckets do.

pyarrow shows a folder there only if somebody made an empty object of its name, as most programs that upload files do
not. So a folder is listed with all below it, and the names in it are taken from that.
"""

from __future__ import annotations

from typing import Any

from pyarrow import fs as pafs


class GoogleFolders:
    """pyarrow's file system of Google's store, but for its listings."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__.get("_filesystem"), name)

    def get_file_info(self, asked: Any) -> Any:
        """Return the entries that a selector, a path or a list of paths asks for."""
        if not isinstance(asked, pafs.FileSelector) or asked.recursive:
            return self._filesystem.get_file_info(asked)
        whole = pafs.FileSelector(asked.base_dir, asked.allow_not_found, recursive=True)
        found, start = {}, len(asked.base_dir.rstrip("/")) + 1
        for info in self._filesystem.get_file_info(whole):
            name, slash, _ = info.path[start:].partition("/")
            if name not in found:
                path = info.path[: start + len(name)]
                found[name] = pafs.FileInfo(path, pafs.FileType.Directory) if slash else info
        return list(found.values())

    def equals(self, other: Any) -> bool:
        """Return whether the other one leads to the same server."""
        return bool(self._filesystem.equals(other._filesystem))
