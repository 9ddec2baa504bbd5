"""Google's store with listings that show folders, as those of other buckets do.

pyarrow shows a folder there only if somebody made an empty object of its name, as most programs that upload files do
not. So a folder is listed with all below it, and the names in it are taken from that.
"""

from __future__ import annotations

from typing import Any

from pyarrow import fs as pafs

from lastkey.logformat.google_file import GoogleUpload
from lastkey.logformat.io_counts import RequestCounter


class GoogleFolders(RequestCounter):
    """pyarrow's file system of Google's store, but for its listings and the errors of writing; it counts requests."""

    def get_file_info(self, asked: Any) -> Any:
        """Return the entries that a selector, a path or a list of paths asks for."""
        ask = self.__getattr__("get_file_info")
        if not isinstance(asked, pafs.FileSelector) or asked.recursive:
            return ask(asked)
        whole = pafs.FileSelector(asked.base_dir, asked.allow_not_found, recursive=True)
        found, start = {}, len(asked.base_dir.rstrip("/")) + 1
        for info in ask(whole):
            name, slash, _ = info.path[start:].partition("/")
            if name not in found:
                path = info.path[: start + len(name)]
                found[name] = pafs.FileInfo(path, pafs.FileType.Directory) if slash else info
        return list(found.values())

    def open_output_stream(self, path: str, **given: Any) -> GoogleUpload:
        """Open a new file for writing."""
        return GoogleUpload(self.__getattr__("open_output_stream"), path, **given)
