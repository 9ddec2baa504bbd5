"""Folders that a broker marked -delete, -stray or -future, and that are read as partitions where a user asks for them.

The name without id and mark is that of the partition. The checkpoints beside such a folder do not count: they are those
of the folder that has the name without the mark, and its high watermark would hide the records of this one.
"""

from __future__ import annotations

from typing import Final

from lastkey.jobs.topics import FOLDER_KINDS
from lastkey.logformat import names

FOLDERS_OF: Final = {mark: kind for kind, mark in FOLDER_KINDS.items()}  # --folders that reads a mark


def why_left_out(mark: str) -> str:
    """Return why a marked folder is not read."""
    return f"a folder marked -{mark} (--folders {FOLDERS_OF[mark]})"


def notes_on(parsed: names.PartitionFolder, path: str) -> list[str]:
    """Return the note on a folder that is read though it is marked; none for others."""
    if not parsed.mark:
        return []
    note = f"{path}: read as partition {parsed.topic}-{parsed.partition}, without the checkpoints beside it"
    is_cut = len(path.rpartition("/")[2]) >= names.MAX_NAME and parsed.mark != names.FUTURE
    return [f"{note}; the broker may have cut the topic's name to fit" if is_cut else note]
