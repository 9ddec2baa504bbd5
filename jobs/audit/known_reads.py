"""Rows of `audit_reads` that are still valid for a log, and those that can be deleted.

- A file with the same size and time has the same records. A read that failed because of another file, a permission or a
  setting is the exception: each audit repeats it, even if the file itself does not change.
- A file that has only grown, and has the last batch that was read of it, holds the same records up to there. So does a
  file with a gap after it, which may be filled by now.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from lastkey.jobs.store.audits import AuditRead
from lastkey.logformat.listing import Segment
from lastkey.udfs.audit.entries import batch_end
from lastkey.udfs.storage import absent, open_root

NO_PROBLEMS: Final = "[]"
_OF_BYTES: Final = frozenset({"crc", "codec", "compressed", "varint", "record", "count"})  # damage in the file


def that_count(reads: Sequence[AuditRead], listed: Segment) -> list[AuditRead]:
    """Return a file's reads that are valid for its current state, each limited to its valid offsets."""
    same = [read for read in reads if (read.size_bytes, read.mtime_ms) == (listed.size_bytes, listed.mtime_ms)]
    whole = [read for read in same if all(_is_lasting(problem, read) for problem in json.loads(read.problems))]
    begun = [read for read in reads if read.size_bytes < listed.size_bytes and read.problems == NO_PROBLEMS]
    if any(read.size_bytes >= listed.size_bytes and read not in same for read in reads):
        begun = []  # it has not only grown since then: it was rewritten
    begun += [read for read in same if read not in whole and _has_only_gaps(read)]
    newest = max(begun, key=lambda read: read.last_position, default=None)
    if newest is None or newest.last_position < 0:
        return whole
    end = batch_end(listed.root, listed.path, listed.size_bytes, newest.last_position, newest.last_crc) or 0
    there = [read for read in begun if read.start_offset < end]
    return [*whole, *(replace(read, end_offset=min(read.end_offset, end), problems=NO_PROBLEMS) for read in there)]


def _is_lasting(problem: Mapping[str, object], read: AuditRead) -> bool:
    return problem["kind"] in _OF_BYTES and problem["path"] == f"{read.root}/{read.path}"


def _has_only_gaps(read: AuditRead) -> bool:
    return all(problem["kind"] == "gap" for problem in json.loads(read.problems))


def replaced(reads: Sequence[AuditRead], new: Sequence[AuditRead], used: Collection[int]) -> set[int]:
    """Return the ids of unused reads whose offsets later reads cover."""
    by_file: dict[tuple[str, str], list[AuditRead]] = defaultdict(list)
    for read in new:
        by_file[read.root, read.path].append(read)
    return {
        old.read_id
        for old in reads
        for one in by_file.get((old.root, old.path), ())
        if old.read_id not in used
        and (old.start_offset < one.end_offset and one.start_offset < old.end_offset)
        and (old.keys_hidden == one.keys_hidden or old.secret_id != one.secret_id)
    }


def doubled(reads: Sequence[AuditRead], used: Mapping[int, AuditRead]) -> set[int]:
    """Return the ids of reads that are unused because two concurrent audits read the same. used: by id."""
    same = {_without_id(read) for read in used.values()}
    return {read.read_id for read in reads if read.read_id not in used and _without_id(read) in same}


def _without_id(read: AuditRead) -> AuditRead:
    return replace(read, read_id=0, entries_id=0, file="")


def absent_reads(reads: Sequence[AuditRead], listed: Mapping[str, Collection[str]]) -> set[int]:
    """Return the ids of reads whose files are missing. listed: paths that are there, by root; others are looked for."""
    out = set[int]()
    for root, paths in listed.items():
        others = [read for read in reads if read.root == root and read.path not in paths]
        gone = set(absent(open_root(root), [(read.path, 0) for read in others]))
        out |= {read.read_id for read in others if read.path in gone}
    return out
