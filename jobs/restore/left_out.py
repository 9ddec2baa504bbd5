"""Partitions that a restore leaves out, because the store has no generation of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lastkey.jobs.archive.listing import Archive
from lastkey.jobs.command.reporting import counted, size
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import TopicFilter, select_topics
from lastkey.logformat.errors import NO_POSITION
from lastkey.logformat.names import partition_folder
from lastkey.udfs.problem import Problem

_HINT = (
    "compact takes the partition in once it is due (--force cleans all that it can, with --sealed the last segment "
    "too); or copy the folder from the archive"
)


def left_out(tables: State, topics: TopicFilter, archives: Mapping[str, Archive | None]) -> Iterator[Problem]:
    """Yield a problem for each partition that the archive has and of which the store has no generation. If an archive
    cannot be read, the states of the last runs say which partitions it had. A topic that no run was asked to compact is
    no part of the store.

    archives: listings by URI; None: the archive cannot be read.
    """
    checkpoints, states = tables.checkpoints(), select_topics(topics, tables.states())
    topics_of_store = {topic for topic, _ in (*checkpoints, *states)}
    read = [archive for archive in archives.values() if archive is not None]
    folders = {one.key: one for archive in read for one in archive.without_segments if one.notes}
    folders |= {key: one for archive in read for key, one in archive.partitions.items()}
    wanted = folders.keys() if len(read) == len(archives) else folders.keys() | states.keys()
    for key in sorted(wanted - checkpoints.keys()):
        if key[0] not in topics_of_store:
            continue
        archived, state, hint = folders.get(key), states.get(key), ""
        if archived is not None and archived.problem is not None:
            why = str(archived.problem)
        elif state is not None and state.reason:
            why = f"uncleanable in the last run: {state.reason}"
        elif archived is None:
            why, hint = "the archive cannot be read", _HINT
        elif not archived.segments:
            why = "; ".join(archived.notes)
        else:
            n_bytes = sum(s.size_bytes for s in archived.segments)
            why, hint = f"the archive has {counted(len(archived.segments), 'segment')}, {size(n_bytes)}", _HINT
        yield Problem(
            "no_generation", partition_folder(*key), NO_POSITION, "a generation to restore", f"none; {why}", hint=hint
        )
