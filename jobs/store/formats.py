"""Checks of a store's format, and of its newest commit in a bucket; on a disk `table.head` checks that commit."""

from __future__ import annotations

from functools import lru_cache

from lastkey.jobs.errors import UsageError
from lastkey.jobs.store.rows import FORMAT
from lastkey.jobs.store.table import Version, commit_info
from lastkey.udfs.storage import open_root


def check_format(version: Version) -> None:
    """Raise UsageError unless a table of checkpoints has the format that this version of Lastkey knows."""
    if version.delta is None:
        return
    told = [field.metadata.get("lastkey.format") for field in version.delta.schema().fields]
    found = max((int(number) for number in told if number is not None), default=1)
    if found != FORMAT:
        how = "or a newer one" if found > FORMAT else "or let this one begin a new store from the archive"
        raise UsageError(
            message=f"{version.root.uri}: this store has format {found}, and this version of Lastkey reads only format "
            f"{FORMAT}: use the version that wrote it, {how}"
        )


def check_newest(version: Version) -> None:
    """Raise DamagedTableError if the newest commit in a bucket is not as it was put; nothing else would notice. Each
    process checks a version once, with one GET.
    """
    if not version.root.is_local and version.number >= 0:
        _look(version.root.uri, version.name, version.number)


@lru_cache(256)
def _look(uri: str, name: str, number: int) -> None:
    commit_info(open_root(uri), name, number)
