"""Output of a conversion while it is written: a killed run leaves no half that looks whole, and the next one goes on.

  convert.part           beside the partitions, written first, removed last: says what is converted
  <topic>-<n>.part       folder of a partition, until all that it will hold is there; then it gets its own name
  <base>.log.part, ...   files of a segment that is being written; it is whole once its log and both indexes have names

Names that end so are no log's for a listing, and a broker that finds such a folder does not start. In a bucket nothing
gets another name, but an object appears whole or not at all. So there the files have their names at once, and
`<topic>-<n>.part` is an object beside the folder, which a listing leaves out until that object is deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from pyarrow import fs as pafs

from lastkey.logformat import names
from lastkey.udfs.storage import Root, exists, flush, flush_folder, read_file, write_file

MARK = f"convert{names.PART}"
_KINDS = (names.LOG, names.INDEX, names.TIME_INDEX)


def mark(output: Root, told: str) -> bool:
    """Note in a folder what is converted, and return True; False if it is marked with anything else.

    A mark that is only the beginning of this one is from a run that was killed while it wrote it, so before all else.
    It is replaced, as the file may have another name too.
    """
    found = read_file(output, MARK) if (is_marked := exists(output, MARK)) else b""
    if found == told.encode() or not told.encode().startswith(found):
        return found == told.encode()
    if is_marked:
        unmark(output)
    write_file(output, MARK, told.encode())
    if output.is_local:
        flush(output, "")
    return True


def unmark(output: Root) -> None:
    """Note that all is there."""
    output.filesystem.delete_file(output.full(MARK))


def whole_segments(output: Root, folder: str) -> dict[int, int]:
    """Return base offset -> bytes of the log of each segment that is whole."""
    found = output.filesystem.get_file_info(pafs.FileSelector(output.full(folder), allow_not_found=True))
    sizes = {info.base_name: int(info.size) for info in found if info.type == pafs.FileType.File}
    parsed = ((names.parse_segment_file(name), size) for name, size in sizes.items())
    return {
        file.base: size
        for file, size in parsed
        if file is not None
        and file.kind == names.LOG
        and all(names.segment_file(file.base, kind) in sizes for kind in _KINDS)
    }


def open_folder(output: Root, folder: str, bases: Iterable[int]) -> str | None:
    """Return the folder to write a partition's segments to; None if it is whole, and has all of them.

    A whole folder lacks a segment whose log could not be read. It is opened again, to read that log once more.
    """
    part = f"{folder}{names.PART}"
    if exists(output, folder) and not exists(output, part):
        if set(bases) <= whole_segments(output, folder).keys():
            return None
        if output.is_local:
            os.rename(output.full(folder), output.full(part))  # noqa: PTH104 - as all of this module, by whole paths
    if output.is_local:
        return part
    write_file(output, part, b"")
    return folder


def close_folder(output: Root, folder: str) -> None:
    """Give a partition's folder, in which all is flushed, its own name."""
    part = f"{folder}{names.PART}"
    if not output.is_local:
        output.filesystem.delete_file(output.full(part))
        return
    flush(output, part)
    os.rename(output.full(part), output.full(folder))  # noqa: PTH104 - as above
    flush_folder(output, folder.rpartition("/")[0])


def being_written(output: Root, path: str) -> str:
    """Return the name that a file has until `give_name`."""
    return f"{path}{names.PART}" if output.is_local else path


def give_name(output: Root, path: str) -> None:
    """Give a file that is flushed its own name."""
    if output.is_local:
        os.replace(output.full(being_written(output, path)), output.full(path))  # noqa: PTH105 - as above
