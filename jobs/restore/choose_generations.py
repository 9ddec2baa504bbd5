"""Plan of a restore: the generations, and the check that all their files are there, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from lastkey.jobs.archive.listing import Archive, list_archive
from lastkey.jobs.archive.places import Place, check_apart, check_outside, is_same
from lastkey.jobs.command.new_log_directory import abbreviate_paths
from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.reporting import counted, moment, size
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.errors import MISSING_FILE, MISSING_SIDE_FILE, NO_GENERATION, UsageError
from lastkey.jobs.store.erasures import check_nothing_comes_back
from lastkey.jobs.store.generations import list_each, list_generations, readable_at
from lastkey.jobs.store.rows import Checkpoint, Commit
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import Key, TopicFilter, select_topics
from lastkey.logformat import names
from lastkey.logformat.errors import NO_POSITION
from lastkey.logformat.listing import Segment
from lastkey.logformat.names import partition_folder
from lastkey.udfs.problem import Problem
from lastkey.udfs.segments import side_checksums
from lastkey.udfs.storage import Root, absent, sizes_in


def choose(tables: State, topics: TopicFilter, generation: int | None) -> list[Checkpoint]:
    """Return the partitions of the wanted topics, each at one generation (None: its current one)."""
    current = _current(tables, topics)
    if generation is None or all(row.generation == generation for row in current.values()):
        return [row for _, row in sorted(current.items())]
    readable = readable_at(tables.root, current, generation)
    for key, row in sorted(current.items()):
        if key not in readable:
            raise NO_GENERATION(
                partition=names.partition_folder(*key),
                found=generation,
                reason="never committed" if generation > row.generation else "its files are gone",
                expected=_listed(_still_there(tables.root, row)),
            )
    return [row for _, row in sorted(readable.items())]


def _current(tables: State, topics: TopicFilter) -> dict[Key, Checkpoint]:
    rows = tables.checkpoints()
    check_topics(topics, (topic for topic, _ in rows), tables.root.uri)
    current = select_topics(topics, rows)
    if not current:
        raise UsageError(message=f"{tables.root.uri}: the store holds no generation")
    return current


def choose_at_time(tables: State, topics: TopicFilter, at_ms: int, notes: list[str]) -> list[Checkpoint]:
    """Return the partitions of the wanted topics, each at the generation that was current at a time; note those that
    had none then. Raise NO_GENERATION if that generation was deleted, or if a deleted one may have been current then.
    """
    chosen, firsts, at = [], [], moment(at_ms)
    current = _current(tables, topics)
    for key, generations in sorted(list_each(tables.root, current).items()):
        name, row = names.partition_folder(*key), current[key]
        commits = [commit for _, commit in generations if isinstance(commit, Commit)]
        if back := next((pair for pair in pairwise(commits) if pair[0].run.started_ms < pair[1].run.started_ms), None):
            newer, older = (f"generation {commit.checkpoint.generation} ({_time(commit)})" for commit in back)
            doubt = f"{name}: a clock was wrong: {newer} was made after {older}, so {at} may be the time of another"
            latest = max(commit.run.started_ms for commit in commits)
            notes += [f"{doubt}; --generation chooses one"] if at_ms < latest else []
        then = next((commit for commit in commits if commit.run.started_ms <= at_ms), None)
        after = commits[commits.index(then) - 1 if then is not None else -1] if commits else None  # its successor
        if then is None and after is not None and after.checkpoint.generation == 1:
            firsts.append(after)
            notes.append(f"{name}: left out: it had no generation at {at}; its first is of {_time(after)}")
        elif then is not None and then.checkpoint.generation == row.generation:
            chosen.append(row)
        elif then is None or after is None or after.parent != then.folder or not _has_logs(tables.root, then):
            raise _deleted_since(tables.root, name, then, after, at)
        else:
            check_nothing_comes_back(then.checkpoint, row)
            chosen.append(then.checkpoint)
    if not chosen:
        first = min(firsts, key=lambda commit: commit.run.started_ms)
        raise NO_GENERATION(
            partition="every partition", found=1, reason=f"not yet committed at {at}",
            expected=f"a time from {_time(first)} on",
        )  # fmt: skip
    return chosen


def _deleted_since(store: Root, name: str, then: Commit | None, after: Commit | None, at: str) -> UsageError:
    """Return the error for a deleted generation. then, after: those that are left, made before `at` and later."""
    near = [commit for commit in (then, after) if commit is not None and _has_logs(store, commit)]
    left = (f"--generation {commit.checkpoint.generation} of {_time(commit)}" for commit in near)
    return NO_GENERATION(
        partition=name,
        found=after.run.generation_before if after is not None else "",
        reason=f"it or an older one was current at {at}, and its files are gone",
        expected=" or ".join(left) or "another, but none is left",
    )


def _time(commit: Commit) -> str:
    return moment(commit.run.started_ms)


def before_resets(tables: State, targets: Sequence[Checkpoint]) -> Iterator[str]:
    """Yield a note for each generation from before a reset: the archive may have changed since."""
    current = tables.checkpoints()
    for target in targets:
        of = target.back_to or target.generation
        if of == current[target.key].generation:
            continue
        later = [
            number
            for number, commit in list_generations(tables.root, current[target.key])
            if number > of and isinstance(commit, Commit) and commit.checkpoint.chain != target.chain
        ]
        if later:
            yield (
                f"{target.name}: generation {target.generation} is from before the --reset that started over with "
                f"generation {min(later)}; what the archive holds now may not continue it"
            )


def list_apart(output: Root, archives: Mapping[str, Root], options: RestoreOptions) -> dict[str, Archive | None]:
    """List each archive once (None: it cannot be read). Raise UsageError if the output is inside one."""
    written = Place("--output", output.uri)
    listed: dict[str, Archive | None] = {}
    for root in archives.values():
        if any(is_same(root.uri, known) for known in listed):
            continue
        check_apart(written, Place("the archive", root.uri))
        try:
            listed[root.uri] = list_archive(root, options.topics.takes)
        except OSError:
            listed[root.uri] = None
    for archive in filter(None, listed.values()):
        check_outside(written, archive)
    return listed


def check_files(
    tables: State,
    store: Root,
    archives: Mapping[str, Root],
    targets: Sequence[Checkpoint],
    manifests: Mapping[Key, Sequence[Segment]],
) -> dict[Key, list[str]]:
    """Return each partition's side files. Raise, before anything is written, if a file of a manifest is not there."""
    side_files: dict[Key, list[str]] = {}
    missing: list[str] = []
    for target in targets:
        here = sizes_in(store, target.folder)
        absent_files = absent(
            store,
            [
                (path, size)
                for path, size in _logs(manifests[target.key], "store")
                if here.get(path.removeprefix(f"{target.folder}/"), -1) < size  # others are in older folders
            ],
        )
        absent_files += [f"{target.folder}/{name}" for name in _absent_beside(here, manifests[target.key])]
        if absent_files:
            row = tables.checkpoints()[target.key]
            if row.run_id == target.run_id:  # this is the current generation: its files must be there
                missing += [f"{store.uri}/{path}" for path in absent_files]
                continue
            raise NO_GENERATION(
                partition=target.name,
                found=target.generation,
                reason=f"its files are gone ({absent_files[0]})",
                expected=_listed(_still_there(store, row)),
            )
        side_files[target.key] = sorted(side_checksums(s.side_files for s in manifests[target.key]))
        archive = archives[target.archive_uri]
        missing += [f"{archive.uri}/{path}" for path in absent(archive, _logs(manifests[target.key], "archive"))]
    if missing:
        has_log = any(path.endswith(f".{names.LOG}") for path in missing)
        raise (MISSING_FILE if has_log else MISSING_SIDE_FILE)(
            path=abbreviate_paths(list(dict.fromkeys(missing))),
            expected="the files that the generation names",
            found="no such file, or another size",
        )
    return side_files


def _absent_beside(here: Mapping[str, int], segments: Sequence[Segment]) -> Iterator[str]:
    """Yield names of side files that are missing, or shorter than their segments' rows state. `here`: name -> bytes."""
    yield from sorted(side_checksums(s.side_files for s in segments).keys() - here.keys())
    for s in segments:
        wanted = (names.INDEX, s.offset_index_bytes), (names.TIME_INDEX, s.time_index_bytes)
        for kind, n_bytes in (*wanted, (names.TXN_INDEX, s.txn_index_bytes)):
            name = names.segment_file(s.base_offset, kind)
            if here.get(name, -1 if kind == names.INDEX else 0) < (n_bytes or 0):
                yield name


def _logs(segments: Iterable[Segment], root: str) -> list[tuple[str, int]]:
    """Return paths and bytes of the segments in the store, or in the archive."""
    return [(s.path, s.size_bytes) for s in segments if s.root == root]


def _still_there(store: Root, row: Checkpoint) -> list[int]:
    """Return the generations of one partition whose logs in the store are all there."""
    found = list_generations(store, row)
    return [number for number, commit in found if isinstance(commit, Commit) and _has_logs(store, commit)]


def _has_logs(store: Root, commit: Commit) -> bool:
    return not absent(store, _logs(commit.segments, "store"))


def _listed(generations: Iterable[int]) -> str:
    known = sorted(generations)
    return "one of: " + ", ".join(map(str, known)) if known else "another, but none is left"


_HINT = (
    "compact takes the partition in once it is due (--force cleans all that it can, with --sealed the last segment "
    "too); or copy the folder from the archive"
)


def left_out(tables: State, topics: TopicFilter, archives: Mapping[str, Archive | None]) -> Iterator[Problem]:
    """Yield a problem for each partition of the archive without a generation in the store. If an archive cannot be
    read, the states of the last runs show which partitions it had. A topic that no run was asked to compact is no part
    of the store.

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
