"""Logs of a store's generations, for look-ups: the manifest says which files, and their times."""

from __future__ import annotations

from jobs.command.options import LookupOptions
from jobs.command.typed import check_topics
from jobs.errors import MissingPathError, NoGenerationError
from jobs.spark import session
from jobs.store.paths import generation_folder
from jobs.store.rows import Checkpoint, RunRow
from jobs.store.tables import open_state
from jobs.topics import of_topics
from logformat import names
from logformat.side_files import checkpoints
from udfs.lookup.queries import LogSegment, LookupPlan
from udfs.storage import exists, normal_uri, open_root, read_file


def generation_plans(options: LookupOptions, notes: list[str]) -> list[LookupPlan]:
    """One plan for each partition that has the generation that is asked for; of the others a note."""
    store_uri = normal_uri(options.store or "")
    state = open_state(session.start(brief=True), store_uri, single_writer=options.config.job.single_writer)
    if not state.exists():
        raise MissingPathError(path=store_uri, expected="a store with generations", found="none")
    histories = state.histories()
    runs: dict[tuple[str, int], RunRow] = {}
    current = state.checkpoints()
    check_topics(options.topics, (topic for topic, _ in current), store_uri)
    for key, checkpoint in of_topics(options.topics, current).items():
        found = _of_generation(histories.get(key, []), checkpoint, options.generation)
        if found is None:
            notes.append(f"{key[0]}-{key[1]}: it has no generation {options.generation}; left out")
        else:
            runs[key] = found
    if not runs and options.generation is not None:
        raise NoGenerationError(
            partition="every partition", found=options.generation, reason="never committed",
            expected="one of the generations of the store",
        )  # fmt: skip
    manifests = state.manifests({key: (run.generation_after, run.run_id) for key, run in runs.items()})
    store = open_root(store_uri)
    plans = []
    for key, run in sorted(runs.items()):
        folder = generation_folder(*key, run.generation_after, run.run_id)
        segments = tuple(
            LogSegment(
                s.base_offset, s.size_bytes, s.mtime_ms, "store" if s.root == "store" else "archive", s.path, "store",
                f"{folder}/{names.segment_file(s.base_offset, names.INDEX)}",
                f"{folder}/{names.segment_file(s.base_offset, names.TIME_INDEX)}",
            )
            for s in manifests[key]
        )  # fmt: skip
        if not exists(store, folder):
            notes.append(f"{store_uri}/{folder}: gone, vacuum has taken generation {run.generation_after}; left out")
            continue
        epochs = f"{folder}/{names.LEADER_EPOCH_CHECKPOINT}"
        known = tuple(checkpoints.read_leader_epochs(read_file(store, epochs), epochs)) if exists(store, epochs) else ()
        plans.append(
            LookupPlan(
                *key, normal_uri(run.archive_uri), store_uri, segments, run.log_start_offset, run.next_offset, known
            )
        )
    return plans


def _of_generation(runs: list[RunRow], checkpoint: Checkpoint, generation: int | None) -> RunRow | None:
    wanted = generation or checkpoint.generation
    return next((run for run in runs if run.generation_after == wanted), None)
