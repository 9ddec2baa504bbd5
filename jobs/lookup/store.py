"""Plans of a look-up in a store's generations: the manifest names the files and their times."""

from __future__ import annotations

from dataclasses import replace

from lastkey.jobs.command.parse import check_topics
from lastkey.jobs.command.read_options import LookupOptions
from lastkey.jobs.store.generations import (
    file_names,
    nobody_has,
    open_store,
    readable_at,
    snapshots,
)
from lastkey.jobs.topics import select_topics
from lastkey.logformat import names
from lastkey.logformat.errors import LogFormatError
from lastkey.logformat.side_files import checkpoints
from lastkey.udfs.lookup.queries import LookupPlan
from lastkey.udfs.storage import normal_uri, read_file


def generation_plans(options: LookupOptions, notes: list[str]) -> list[LookupPlan]:
    """Return a plan for each partition that has the wanted generation; add a note on each of the others."""
    tables = open_store(options.store or "")
    store = tables.root
    store_uri = store.uri
    current = tables.checkpoints()
    check_topics(options.topics, (topic for topic, _ in current), store_uri)
    wanted = select_topics(options.topics, current)
    checkpoints_by_key = wanted if options.generation is None else readable_at(store, wanted, options.generation)
    notes += [
        f"{topic}-{partition}: it has no generation {options.generation}; left out"
        for topic, partition in wanted
        if (topic, partition) not in checkpoints_by_key
    ]
    if not checkpoints_by_key and options.generation is not None:
        raise nobody_has(options.generation)
    generations = [checkpoint for _, checkpoint in sorted(checkpoints_by_key.items())]
    manifests = tables.manifests(generations)
    plans = []
    for checkpoint in generations:
        folder = checkpoint.folder
        archive_uri = normal_uri(checkpoint.archive_uri)
        segments = tuple(
            replace(
                s,
                root=store_uri if s.root == "store" else archive_uri,
                index=f"{folder}/{names.segment_file(s.base_offset, names.INDEX)}",
                time_index=f"{folder}/{names.segment_file(s.base_offset, names.TIME_INDEX)}",
                side_root=store_uri,
            )
            for s in manifests[checkpoint.key]
        )
        files = file_names(store, checkpoint)
        if not files:
            notes.append(f"{store_uri}/{folder}: vacuum has deleted generation {checkpoint.generation}; left out")
            continue
        located = tuple((offset, store_uri, path) for offset, path in snapshots(checkpoint, files))
        epochs = f"{folder}/{names.LEADER_EPOCH_CHECKPOINT}"
        epochs_known: tuple[checkpoints.EpochEntry, ...] = ()
        try:
            epochs_known = tuple(checkpoints.read_leader_epochs(read_file(store, epochs), epochs))
        except FileNotFoundError:
            pass
        except LogFormatError as error:
            notes.append(f"{error}; leader epochs unknown")
        plans.append(
            LookupPlan(
                *checkpoint.key,
                archive_uri,
                segments,
                checkpoint.log_start_offset,
                checkpoint.next_offset,
                epochs_known,
                located,
            )
        )
    return plans
