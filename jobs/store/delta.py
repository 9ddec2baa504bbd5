"""Where delta-rs finds a table, and what it makes of one that is damaged."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from deltalake import DeltaTable

from jobs.errors import DamagedTableError
from logformat.s3_access import bucket_of, delta_options, in_one_line
from udfs.storage import Root

READABLE: Final = "commits and checkpoints that delta-rs can read"


def uri_of(root: Root, name: str) -> str:
    """Where a table lies, as delta-rs wants it."""
    scheme = "file" if root.is_local else root.filesystem.type_name
    base = f"{scheme}://{quote(root.base)}" if scheme in ("file", "s3") else root.uri
    return f"{base}/state/{name}"


def storage_options(root: Root) -> dict[str, str] | None:
    """What delta-rs is told beside what it finds in the environment."""
    return delta_options(bucket_of(root.uri)) if root.filesystem.type_name == "s3" else None


def opened(root: Root, name: str, version: int | None = None) -> DeltaTable:
    """A table (None: its newest version), as delta-rs reads it. DamagedTableError: at what it panics; else its own."""
    try:
        return DeltaTable(uri_of(root, name), version, storage_options=storage_options(root))
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust, at a damaged checkpoint; it cannot be imported
            raise
        found = in_one_line(str(error))
        raise DamagedTableError(path=f"{root.uri}/state/{name}/_delta_log", expected=READABLE, found=found) from error
