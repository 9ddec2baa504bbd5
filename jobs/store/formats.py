"""Which format of a store its tables are of: 1 had manifests in `log_segments` alone, and commits by Spark. And whether
the commit that decides is whole where it lies in a bucket; on a disk `table.head` looks.
"""

from __future__ import annotations

from functools import lru_cache

from jobs.errors import UsageError
from jobs.store.rows import FORMAT
from jobs.store.table import Version, commit_info
from udfs.storage import open_root


def columns_of(version: Version) -> list[str]:
    """The names of a table's columns; none where there is no table."""
    return [] if version.delta is None else [field.name for field in version.delta.schema().fields]


def format_of(version: Version) -> int:
    """Which format of a store a table of checkpoints is of."""
    if version.delta is None:
        return FORMAT
    told = [field.metadata.get("lastkey.format") for field in version.delta.schema().fields]
    return max((int(number) for number in told if number is not None), default=1)


def check_format(version: Version) -> None:
    """UsageError: a newer one than this version of Lastkey knows."""
    found = format_of(version)
    if found > FORMAT:
        raise UsageError(
            message=f"{version.root.uri}: this store has format {found}, and this version of Lastkey knows {FORMAT} at "
            "the most: use the version that wrote it, or a newer one"
        )


def check_newest(version: Version) -> None:
    """DamagedTableError: the newest commit in a bucket is not what was put there; nothing else would tell. A version is
    looked at once in a process: one GET.
    """
    if not version.root.is_local and version.number >= 0:
        _look(version.root.uri, version.name, version.number)


@lru_cache(256)
def _look(uri: str, name: str, number: int) -> None:
    commit_info(open_root(uri), name, number)
