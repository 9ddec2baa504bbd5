"""Tables as delta-rs opens them: URI, options, and its panic at a damaged one as an error; and new tables of users."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa
from deltalake import DeltaTable, Schema

from lastkey.jobs.errors import DAMAGED_TABLE, ConflictError
from lastkey.jobs.store.commit_file import DataFile, created, encode_commit
from lastkey.logformat.storage.access_error import in_one_line
from lastkey.logformat.storage.buckets import delta_place
from lastkey.udfs.storage import Root, make_folder, put_if_absent

READABLE: Final = "commits and checkpoints that delta-rs can read"


def table_at(root: Root, path: str, version: int | None = None) -> DeltaTable:
    """Open the table at a path below a root (None: its newest version) with delta-rs."""
    base, options = f"file://{quote(root.base)}", None
    if not root.is_local:
        base, options = delta_place(root.filesystem.bucket, root.base)
    return DeltaTable(f"{base}/{path}", version, storage_options=options)


def open_table(root: Root, name: str, version: int | None = None) -> DeltaTable:
    """Open a table (None: its newest version) with delta-rs. Raise DAMAGED_TABLE if delta-rs panics."""
    try:
        return table_at(root, f"state/{name}", version)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # raised at a damaged checkpoint; cannot be imported
            raise
        found = in_one_line(str(error))
        raise DAMAGED_TABLE(path=f"{root.uri}/state/{name}/_delta_log", expected=READABLE, found=found) from error


def data_files(root: Root, name: str) -> set[str]:
    """Return the data files of a table's newest version, as paths below the table's folder."""
    return {unquote(path) for path in pa.table(open_table(root, name).get_add_actions())["path"].to_pylist()}


def create_table(root: Root, folder: str, schema: pa.Schema, files: Sequence[DataFile]) -> None:
    """Make a user's Delta table of these files in their folder, by its first commit. Raise ConflictError if there is a
    table.
    """
    actions = [*created(Schema.from_arrow(schema).to_json()), *(file.added() for file in files)]
    commit = encode_commit(folder, 0, actions, {})
    make_folder(root, log := f"{folder}/_delta_log")
    if not put_if_absent(root, f"{log}/{0:020}.json", commit):
        raise ConflictError(
            path=f"{root.uri}/{folder}", expected="no other run on this table", found="its first commit"
        )
