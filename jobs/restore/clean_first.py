"""Cleaning before a restore (`--full-clean`): of the partitions of which a broker would clean a part again."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lastkey.jobs.archive.places import is_same
from lastkey.jobs.command.config import Config, TopicSettings
from lastkey.jobs.command.functions import imported
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.errors import NOT_CLEANED, RUNNING_MEANWHILE, ConflictError, RunningError, UsageError
from lastkey.jobs.store.generations import current_commits
from lastkey.jobs.store.rows import Checkpoint, RunRow
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import Key, TopicFilter
from lastkey.logformat.listing import Segment
from lastkey.udfs.segments import cleaner_checkpoint
from lastkey.udfs.storage import normal_uri

if TYPE_CHECKING:
    from lastkey.jobs.compact.report import CompactReport


def clean_first(
    tables: State,
    options: RestoreOptions,
    targets: Sequence[Checkpoint],
    manifests: Mapping[Key, Sequence[Segment]],
    progress: Progress,
) -> CompactReport | None:
    """Commit a new generation, with all cleaned, of each topic with a partition that is not clean as a broker means it;
    return the report of that run. None: there is no such topic. NOT_CLEANED: a partition is uncleanable.
    UsageError: the archive has moved.
    """
    behind = [t for t in targets if cleaner_checkpoint(manifests[t.key], t.first_dirty_offset) < t.first_dirty_offset]
    if not behind:
        return None
    archive, topics = behind[0].archive_uri, sorted({t.topic for t in behind})  # a store serves one archive
    if options.archive is not None and not is_same(normal_uri(options.archive), archive):
        raise UsageError(
            message=f"--full-clean: expected the archive of this store, {archive}, found --archive {options.archive}; "
            "move it back, or leave out --full-clean, and the broker cleans"
        )
    asked = CompactOptions(
        archive=archive,
        store=tables.root.uri,
        now_ms=time.time_ns() // 1_000_000,
        config=_with_settings_of_runs(options.config, tables, topics),
        topics=TopicFilter(tuple(topics)),
        force=True,
    )
    try:
        cleaned: CompactReport = imported("compact").run(asked, progress)
    except RunningError as error:
        raise RUNNING_MEANWHILE(**error.fields) from error
    if cleaned.conflict:
        raise ConflictError(path=tables.root.uri, expected="no other run on these topics", found=cleaned.conflict)
    for problem in cleaned.problems:
        raise NOT_CLEANED(**{name: getattr(problem, name) for name in ("path", "position", "expected", "found")})
    return cleaned


def _with_settings_of_runs(config: Config, tables: State, topics: Collection[str]) -> Config:
    """Return settings in which each topic without a cleanup.policy of its own has those of its last run."""
    rows = (row for key, row in tables.checkpoints().items() if key[0] in topics)
    runs = [commit.run for commit in current_commits(tables.root, rows)]
    last = {run.topic: run for run in sorted(runs, key=lambda run: run.now_ms)}
    of_runs = {topic: _parse_settings(run) for topic, run in last.items() if not config.topic_settings(topic).compacts}
    return replace(config, topics={**of_runs, **config.topics})


def _parse_settings(run: RunRow) -> dict[str, Any]:
    settings: dict[str, Any] = json.loads(run.settings)
    expires = settings["retention_ms"] >= 0 or settings["retention_bytes"] >= 0
    policy = ("compact",) * settings["compacts"] + ("delete",) * expires
    return {name: value for name, value in settings.items() if name in TopicSettings.__dataclass_fields__} | {
        "cleanup_policy": policy
    }
