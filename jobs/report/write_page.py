"""The file of a page: where it may lie, and how it is written."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from lastkey.jobs.command.whole_file import PAGE, Kind, check_file
from lastkey.jobs.errors import UsageError
from lastkey.logformat.errors import is_full
from lastkey.udfs.storage import normal_uri, open_root, write_file


def checked_output(
    asked: str,
    archives: Iterable[str | None],
    stores: Iterable[str | None],
    kind: Kind = PAGE,
) -> str:
    """Return the URI of the page. Raise UsageError, before anything is read, if the page cannot be written there, or
    may not (`check_file`).
    """
    output = normal_uri(asked)
    root = open_root(output.rpartition("/")[0] or "/")
    is_folder = root.filesystem.get_file_info(root.full(output.rpartition("/")[2])).type.name == "Directory"
    if is_folder or asked.endswith("/"):
        raise UsageError(message=f"--output: expected a file to write to, found the folder {output}")
    check_file("--output", output, kind, archives, stores)
    if root.is_local:
        folder = Path(output)
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not os.access(folder, os.W_OK) or (str(folder) != output and not folder.is_dir()):
            raise _unwritable(output, f"that {folder} is not {'a folder' if folder.is_file() else 'writable'}")
    return output


def _unwritable(output: str, found: str) -> UsageError:
    return UsageError(message=f"--output {output}: expected a file that can be written, found {found}")


def write_page(output: str, page: bytes, kind: Kind = PAGE) -> None:
    """Write the whole page or none of it: on a disk under another name first, so that an old page stays until then.
    Raise UsageError if the name belongs to something else by then.
    """
    root = open_root(os.path.dirname(output) or "/")  # noqa: PTH120 - a URI too
    path = Path(output)
    try:
        if not root.is_local:
            write_file(root, output.rpartition("/")[2], page)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.new")
        try:
            write_file(open_root(str(path.parent)), new.name, page)
            check_file("--output", output, kind)  # again: a run takes a while
            new.replace(path)
        finally:
            new.unlink(missing_ok=True)
    except OSError as error:
        if is_full(error):
            raise
        raise _unwritable(output, str(error).split(" Detail:")[0]) from error
