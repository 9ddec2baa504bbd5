"""Listing of all files below a root, of any kind and depth, and of the folders that could not be listed."""

from __future__ import annotations

from pyarrow import fs as pafs

from lastkey.logformat.errors import NO_POSITION, unreadable
from lastkey.logformat.storage.locations import text_entries
from lastkey.udfs.key_search.findings import SearchFile
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import Root, folder_identity, is_link, no_files


def list_files(root: Root) -> tuple[list[SearchFile], list[Problem]]:
    """List all files below a root, by path, and the folders, names and entries that hide what they hold. A local folder
    that several names lead to counts once, under its own name.

    Raises FileNotFoundError if the root is no folder, AccessError if its bucket cannot be used.
    """
    found = root.filesystem.get_file_info(root.full("") or "/")
    if found.type != pafs.FileType.Directory:
        raise FileNotFoundError(root.uri)
    files, problems = list[SearchFile](), list[Problem]()
    if root.is_local:
        _walk(root, files, problems)
    else:
        everything = root.filesystem.get_file_info(pafs.FileSelector(root.full(""), recursive=True))
        _add(root, _text(root, "", everything, problems), files)
    files.sort(key=lambda file: file.path)
    return files, problems


def _walk(root: Root, files: list[SearchFile], problems: list[Problem]) -> None:
    seen: set[tuple[int, int] | None] = set()
    folders: list[str] = [""]
    links: list[str] = []
    while folders or links:
        folder = folders.pop() if folders else links.pop(0)  # links last, so that folders keep their own names
        try:
            identity = folder_identity(root, folder)
            if identity in seen:
                continue
            seen.add(identity)
            listed = _text(root, folder, root.filesystem.get_file_info(pafs.FileSelector(root.full(folder))), problems)
            odd = no_files(root, folder, listed)
        except OSError as error:
            problems.append(Problem.of(unreadable(f"{root.uri}/{folder}".rstrip("/"), error, NO_POSITION)))
            continue
        for below in _add(root, listed, files):
            (links if is_link(root, below) else folders).append(below)
        for name, kind in odd.items():
            path = f"{root.uri}/{folder}/{name}" if folder else f"{root.uri}/{name}"
            problems.append(Problem("unreadable", path, NO_POSITION, "a file or a folder", kind))


def _text(root: Root, folder: str, listed: list[pafs.FileInfo], problems: list[Problem]) -> list[pafs.FileInfo]:
    """Return the entries whose names are text; the others, which cannot be opened here, are a problem."""
    entries, others = text_entries(listed)
    if others:
        path = f"{root.uri}/{folder}".rstrip("/")
        problems.append(Problem("unreadable", path, NO_POSITION, "names that are UTF-8", f"{others} that are not"))
    return entries


def _add(root: Root, listed: list[pafs.FileInfo], files: list[SearchFile]) -> list[str]:
    """Add the files of a listing; return the paths of its folders."""
    start = len(root.full("")) + 1 if root.full("") else 0
    folders = []
    for info in listed:
        path = info.path[start:] if start else info.path.lstrip("/")
        if info.type == pafs.FileType.Directory:
            folders.append(path)
        elif info.type == pafs.FileType.File:
            files.append(SearchFile(root.uri, path, int(info.size or 0), (info.mtime_ns or 0) // 1_000_000))
    return folders
