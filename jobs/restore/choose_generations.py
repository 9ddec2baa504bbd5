"""Plan of a restore: the generations, and the check that all their files are there, before anything is written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from pyarrow import fs as pafs

from lastkey.jobs.archive.listing import Archive, list_archive
from lastkey.jobs.archive.places import Place, check_apart, check_outside, is_same
from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.reporting import moment
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.errors import MISSING_FILE, MISSING_SIDE_FILE, NO_GENERATION, UsageError
from lastkey.jobs.store.erasures import check_nothing_comes_back
from lastkey.jobs.store.generations import Generation, check_runs, generation_of, runs_at
from lastkey.jobs.store.rows import Checkpoint, RunRow
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import Key, TopicFilter, of_topics
from lastkey.logformat import names
from lastkey.logformat.listing import Segment
from lastkey.udfs.segments import side_checksums
from lastkey.udfs.storage import Root, absent, sizes_in

_NAMED = 10  # files that an error names


def choose(tables: State, topics: TopicFilter, generation: int | None) -> list[Generation]:
    """Return the partitions of the wanted topics, each at one generation (None: its current one)."""
    current = _current(tables, topics)
    if generation is None or all(row.generation == generation for row in current.values()):
        return [generation_of(row) for _, row in sorted(current.items())]
    chains = tables.histories({topic for topic, _ in current})
    runs = runs_at(current, chains, generation)
    for key in sorted(current):
        if key not in runs:
            raise NO_GENERATION(
                partition=names.partition_folder(*key),
                found=generation,
                reason="never committed",
                expected=_listed(_still_there(tables, chains[key])),
            )
    for key, run in sorted(runs.items()):
        check_nothing_comes_back(run, current[key])
    return [generation_of(run) for _, run in sorted(runs.items())]


def _current(tables: State, topics: TopicFilter) -> dict[Key, Checkpoint]:
    rows = tables.checkpoints()
    check_topics(topics, (topic for topic, _ in rows), tables.root.uri)
    current = of_topics(topics, rows)
    if not current:
        raise UsageError(message=f"{tables.root.uri}: the store holds no generation")
    return current


def choose_as_of(tables: State, topics: TopicFilter, at_ms: int, notes: list[str]) -> list[Generation]:
    """Return the partitions of the wanted topics, each at the generation that was current at a time; note those that
    had none then. Raise NO_GENERATION where it is gone.
    """
    current = _current(tables, topics)
    chains = tables.histories({topic for topic, _ in current})
    check_runs(current, chains)
    chosen, at = [], moment(at_ms)
    for key, row in sorted(current.items()):
        name, chain = names.partition_folder(*key), chains[key]
        then = next((run for run in chain if run.started_ms <= at_ms), None)
        if back := next((pair for pair in pairwise(chain) if pair[0].started_ms < pair[1].started_ms), None):
            newer, older = (f"generation {run.generation_after} ({_time(run)})" for run in back)
            said = f"{name}: a clock was wrong: {newer} was made after {older}, so {at} may be the time of another"
            notes += [f"{said}; --generation chooses one"] if at_ms < max(run.started_ms for run in chain) else []
        if then is not None and then.generation_after == row.generation:
            chosen.append(generation_of(row))
        elif then is None and chain[-1].generation_after == 1:
            notes.append(f"{name}: left out: it had no generation at {at}; its first is of {_time(chain[-1])}")
        else:
            there = set(_still_there(tables, chain))
            left = {run.generation_after: run for run in chain if run.generation_after in there}
            if then is None or then.generation_after not in left:
                raise _gone_since(name, then, chain, left, at)
            check_nothing_comes_back(then, row)
            chosen.append(generation_of(then))
    if not chosen:
        first = min((chain[-1] for chain in chains.values()), key=lambda run: run.started_ms)
        raise NO_GENERATION(
            partition="every partition", found=1, reason=f"not yet committed at {at}",
            expected=f"a time from {_time(first)} on",
        )  # fmt: skip
    return chosen


def _gone_since(
    name: str, then: RunRow | None, chain: Sequence[RunRow], left: Mapping[int, RunRow], at: str
) -> UsageError:
    """Return the error for a generation that is gone; then: its run, if that is still known."""
    oldest = min(left, default=0)
    return NO_GENERATION(
        partition=name,
        found=then.generation_after if then is not None else f"before {chain[-1].generation_after}",
        reason=f"it was current at {at}, and its files are gone",
        expected=f"a time from {_time(left[oldest])} on, when generation {oldest} was made, the oldest that is left"
        if left
        else "another, but none is left",
    )


def _time(run: RunRow) -> str:
    return moment(run.started_ms)


def before_resets(tables: State, targets: Sequence[Generation]) -> Iterator[str]:
    """Yield a note for each generation from before a reset: the archive may now hold another log, or a part of it."""
    chains = tables.histories({t.topic for t in targets})
    for target in targets:
        later = [r.generation_after for r in chains[target.key] if r.anew and r.generation_after > target.of]
        if later:
            yield (
                f"{target.name}: generation {target.generation} is from before the --reset that started over with "
                f"generation {min(later)}; what the archive holds now may not continue it"
            )


def list_apart(output: Root, archives: Mapping[str, Root], options: RestoreOptions) -> dict[str, Archive | None]:
    """List each archive once (None: it cannot be read). Raise UsageError if the output lies in one."""
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
    targets: Sequence[Generation],
    manifests: Mapping[Key, Sequence[Segment]],
) -> dict[Key, list[str]]:
    """Return each partition's side files. Raise, before anything is written, if a file of a manifest is not there."""
    side_files: dict[Key, list[str]] = {}
    missing: list[str] = []
    for target in targets:
        here = sizes_in(store, target.folder)
        gone = absent(
            store,
            [
                (path, size)
                for path, size in _logs(manifests[target.key], "store")
                if here.get(path.removeprefix(f"{target.folder}/"), -1) < size  # others lie in older folders
            ],
        )
        gone += [f"{target.folder}/{name}" for name in _absent_beside(here, manifests[target.key])]
        if gone:
            chain = tables.histories({target.topic}).get(target.key, [])
            if chain and chain[0].run_id == target.run_id:  # this is the current generation: its files must be there
                missing += [f"{store.uri}/{path}" for path in gone]
                continue
            raise NO_GENERATION(
                partition=target.name,
                found=target.generation,
                reason=f"its files are gone ({gone[0]})",
                expected=_listed(_still_there(tables, chain)),
            )
        written = side_checksums(s.side_files for s in manifests[target.key])
        side_files[target.key] = sorted(written or filter(_may_be_ours, here))
        archive = archives[target.archive_uri]
        missing += [f"{archive.uri}/{path}" for path in absent(archive, _logs(manifests[target.key], "archive"))]
    if missing:
        has_log = any(path.endswith(f".{names.LOG}") for path in missing)
        raise (MISSING_FILE if has_log else MISSING_SIDE_FILE)(
            path=some_of(list(dict.fromkeys(missing))),
            expected="the files that the generation names",
            found="no such file, or another size",
        )
    return side_files


def _may_be_ours(name: str) -> bool:
    """Return whether a file may be a side file of a generation of an older version, whose manifest names none."""
    file = names.parse_segment_file(name)
    return name in names.PARTITION_SIDE_FILES or (file is not None and not file.suffix and file.kind != names.LOG)


def some_of(paths: Sequence[str]) -> str:
    """Return paths for an error, only the first ones if there are many."""
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(paths[:_NAMED]) + more


def _absent_beside(here: Mapping[str, int], segments: Sequence[Segment]) -> Iterator[str]:
    """Yield names of side files that are missing, or shorter than their segments' rows say. `here`: name -> bytes."""
    yield from sorted(side_checksums(s.side_files for s in segments).keys() - here.keys())
    for s in segments:
        wanted = (names.INDEX, s.offset_index_bytes), (names.TIME_INDEX, s.time_index_bytes)
        for kind, size in (*wanted, (names.TXN_INDEX, s.txn_index_bytes)):
            name = names.segment_file(s.base_offset, kind)
            if here.get(name, -1 if kind == names.INDEX else 0) < (size or 0):
                yield name


def _logs(segments: Iterable[Segment], root: str) -> list[tuple[str, int]]:
    """Return paths and bytes of the segments in the store, or in the archive."""
    return [(s.path, s.size_bytes) for s in segments if s.root == root]


def _still_there(tables: State, chain: Sequence[RunRow]) -> list[int]:
    """Return the generations of one partition whose files in the store are all there."""
    runs = {((row.topic, row.partition), row.generation_after, row.run_id): row for row in chain}
    there = []
    for run, segments in tables.segments_of(runs).items():
        folder = tables.root.filesystem.get_file_info(tables.root.full(generation_of(runs[run]).folder))
        if folder.type == pafs.FileType.Directory and not absent(tables.root, _logs(segments, "store")):
            there.append(runs[run].generation_after)
    return there


def _listed(generations: Iterable[int]) -> str:
    known = sorted(generations)
    return "one of: " + ", ".join(map(str, known)) if known else "another, but none is left"
