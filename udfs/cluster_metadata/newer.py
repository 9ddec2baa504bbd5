"""Changes in an archive's __cluster_metadata since a moment: is a file of policies still up to date?

The offset alone says nothing, since a controller writes a record twice a second whatever happens. So the log is read
from that offset on (without one, all of it, by the records' times), and only records about topics and their settings
count. Of segments before the offset nothing is read: a day of a quiet cluster is 12 MB.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.messages.metadata_changes import MetadataChange
from lastkey.udfs.cluster_metadata.image import BROKER, TOPIC
from lastkey.udfs.cluster_metadata.log_files import FOLDER, MetadataFile, changes_from, list_metadata


def newer_changes(filesystem: Any, folders: Iterable[str], offset: int, time_ms: int) -> str | None:
    """Return in words how the metadata in these folders goes on after an offset (-1: not known) or a time.

    None: there is none, or no topic or setting has changed.
    """
    for folder in folders:
        try:
            files = list_metadata(filesystem, f"{folder}/{FOLDER}")
            said = _newer(files, offset, time_ms)
        except LogFormatError as error:
            return f"it is not known whether they are up to date: {error}"
        if said is not None:
            return f"{folder}/{FOLDER} {said}"
    return None


def _newer(files: list[MetadataFile], offset: int, time_ms: int) -> str | None:
    first, changes = changes_from(files, offset, time_ms)
    ours = [change for change in changes if _matters(change)]
    if ours:
        n, least = len(ours), ours[0]
        what = "1 later change" if n == 1 else f"{n:,} later changes"
        return f"has {what} of topics or settings, from offset {least.offset} on"
    if first > offset >= 0:
        return f"begins at offset {first}: what changed between {offset} and there is not known"
    return None


def _matters(change: MetadataChange) -> bool:
    if change.kind == "Config":
        return change.fields["resourceType"] in (TOPIC, BROKER)
    return change.kind in ("Topic", "RemoveTopic")
