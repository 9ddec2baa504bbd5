"""Output folder of an export, a folder for each topic and a file that describes them; and the report of it.

The file is written first and has the state "unfinished" until all other files are complete. A run that finds its own
unfinished export deletes it and starts over; any other content of the folder is an error.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pyarrow import fs as pafs

from lastkey.jobs.archive.broker_lock import locked
from lastkey.jobs.command.reporting import JobReport, TextTable, count
from lastkey.jobs.errors import NOT_EMPTY, ConflictError
from lastkey.jobs.store.folders import check_not_inside
from lastkey.logformat.control_characters import visible
from lastkey.logformat.errors import stopped
from lastkey.logformat.names import is_topic
from lastkey.logformat.storage.hadoop import as_hadoop_names_it
from lastkey.logformat.storage.locations import describe_entries
from lastkey.udfs.data_source.log_end import Ends, find_ends
from lastkey.udfs.data_source.pieces import SourcePartition
from lastkey.udfs.problem import Problem
from lastkey.udfs.storage import (
    Root,
    delete_folder,
    exists,
    flush_folder,
    links_below,
    make_folders,
    read_file,
    write_file,
)

MARK: Final = "_lastkey_export.json"  # Spark's readers skip names that begin with "_"
_PART: Final = f"{MARK}.part"
_SUCCESS: Final = "_SUCCESS"  # readers of Hadoop's folders look for it
_NEW_ROWS: Final = "lastkey@rows"  # no topic has such a name
UNFINISHED: Final = "unfinished"
LATEST: Final = "latest"


@dataclass(frozen=True)
class ExportFolder:
    """Folder of an export."""

    root: Root
    request: dict[str, Any]  # options of the export; a rerun needs the same
    run: str = field(default_factory=lambda: uuid.uuid4().hex)  # whose tasks may write

    def topic_uri(self, topic: str) -> str:
        """Return the URI of a topic's folder for Spark."""
        base = f"file://{self.root.base}" if self.root.is_local else as_hadoop_names_it(self.root.uri)
        return f"{base}/{topic}"

    def _check_no_links(self) -> None:
        check_not_inside("--output", self.root)
        if (link := next(links_below(self.root), None)) is not None:
            raise NOT_EMPTY(path=self.root.uri, found=f"{visible(link)}: a symbolic link")

    def begin(self, topics: Sequence[str]) -> None:
        """Take the folder. Raise NOT_EMPTY if it holds anything but this export, unfinished."""
        self._check_no_links()
        found = self.root.filesystem.get_file_info(self.root.base)
        if found.type == pafs.FileType.File:
            raise NOT_EMPTY(path=self.root.uri, found="a file")
        old = self._left()
        for topic in old:
            if exists(self.root, topic):
                delete_folder(self.root, topic)
        self.mark(UNFINISHED, {topic: {} for topic in topics})

    def resume(self) -> None:
        """Take the folder of --latest, new or from an earlier run. Raise NOT_EMPTY if it holds anything else."""
        self._check_no_links()
        mark, there = self.read(), self.root.filesystem.get_file_info(self.root.base)
        if mark.get("state") == LATEST and mark["request"] == self.request:
            return
        if mark:
            raise NOT_EMPTY(path=self.root.uri, found=f"another export: {mark['request']}")
        if there.type == pafs.FileType.File:
            raise NOT_EMPTY(path=self.root.uri, found="a file")
        self._left()
        self.mark(LATEST, {})

    def folders(self) -> set[str]:
        """Return the names of the folders in it."""
        inside = self.root.filesystem.get_file_info(pafs.FileSelector(self.root.base, allow_not_found=True))
        return {info.base_name for info in inside if info.type == pafs.FileType.Directory} - {_NEW_ROWS}

    def new_file(self) -> str:
        """Return a path for rows that a run merges into a table, and deletes."""
        return f"{_NEW_ROWS}/{uuid.uuid4().hex}.parquet"

    def delete_new_files(self) -> None:
        """Delete such files, also those of a run that was killed."""
        if exists(self.root, _NEW_ROWS):
            delete_folder(self.root, _NEW_ROWS)

    def _left(self) -> list[str]:
        """Return the topics of this export, if it was begun before; [] in an empty folder."""
        inside = self.root.filesystem.get_file_info(pafs.FileSelector(self.root.base, allow_not_found=True))
        inside = [info for info in inside if info.base_name != _PART]
        if not inside:
            return []
        mark = self.read()
        others = [info for info in inside if info.base_name not in (MARK, *mark.get("topics", {}))]
        if not mark or others:
            raise NOT_EMPTY(path=self.root.uri, found=describe_entries(others or inside))
        if mark["state"] != UNFINISHED:
            raise NOT_EMPTY(path=self.root.uri, found="a finished export")
        if mark["request"] != self.request:
            raise NOT_EMPTY(path=self.root.uri, found=f"another export that did not end: {mark['request']}")
        return list(mark["topics"])

    def read(self) -> dict[str, Any]:
        """Return the content of the mark file; {} if there is none, or none of this program."""
        if not exists(self.root, MARK):
            return {}
        try:
            mark = json.loads(read_file(self.root, MARK))
        except ValueError:
            return {}
        known = isinstance(mark, dict) and {"state", "request", "topics"} <= mark.keys()
        known = known and all(map(is_topic, mark["topics"]))  # a run deletes folders of these names
        return mark if known else {}

    def check_own(self) -> None:
        """Raise ConflictError if another export has replaced the mark in the folder: a bucket has no lock."""
        if self.read().get("run") != self.run:
            raise ConflictError(path=self.root.uri, expected="no other export into this folder", found="a newer one")

    def finish(self, state: str, topics: dict[str, Any]) -> None:
        """Write the file of a finished export. Raise ConflictError if another one has taken the folder."""
        self.check_own()
        for topic in topics:
            if self.request["format"] != "delta":
                write_file(self.root, f"{topic}/{_SUCCESS}", b"")
            flush_folder(self.root, topic)
        self.mark(state, topics)

    def mark(self, state: str, topics: dict[str, Any]) -> None:
        """Write the file."""
        said = {"lastkey_export": 1, "state": state, "run": self.run, "request": self.request, "topics": topics}
        data = json.dumps(said, indent=1).encode()
        if not self.root.is_local:
            write_file(self.root, MARK, data)  # a bucket shows it whole or not at all
            return
        write_file(self.root, _PART, data)
        self.root.filesystem.move(self.root.full(_PART), self.root.full(MARK))


def taken(root: Root) -> AbstractContextManager[object]:
    """Make a local folder, and lock it against other runs; elsewhere do nothing."""
    if not root.is_local or root.filesystem.get_file_info(root.base).type == pafs.FileType.File:
        return nullcontext()
    make_folders(Path(root.base))
    return locked([Path(root.base)])


@dataclass
class ExportedTopic:
    """Row of the report for one topic: what was read and written."""

    topic: str
    partitions: int
    records: int = 0
    tombstones: int = 0
    problems: int = 0
    inserted: int = 0  # rows of a table with --latest
    updated: int = 0
    deleted: int = 0


@dataclass
class ExportReport(JobReport):
    """Report of `export`."""

    job = "export"
    done = "{topics:topic} as {format} in {output}"
    facts = "output format latest topics"
    text_tables = (
        TextTable("topics", "topic partitions records tombstones problems inserted updated deleted", total="topic"),
    )

    output: str
    format: str
    latest: bool = False
    topics: list[ExportedTopic] = field(default_factory=list)


def ends_of_partition(partition: SourcePartition) -> tuple[Ends | None, Problem | None]:
    """Return the offsets at which reading begins and ends (None: not known), and the problem that prevents it."""
    if partition.problem is not None:
        return None, partition.problem
    try:
        return find_ends(partition, committed=True), None
    except Exception as found:  # any error: the problem names the partition
        problem = Problem.of(stopped(found, partition.name))
    try:
        return find_ends(partition, committed=True, quarantine=True), problem
    except Exception:  # unknown, as before
        return None, problem


def open_notes(partition: SourcePartition, ends: Ends | None) -> list[str]:
    """Return a note if records at the end are left out."""
    if ends is None or ends.end >= ends.log_end or not ends.certain:
        return []
    why = "an open transaction, or the high watermark, is there"
    return [f"{partition.name}: ends at offset {count(ends.end)} of {count(ends.log_end)}: {why}"]
