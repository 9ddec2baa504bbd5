"""Values of a run: its constant inputs, and its outcome, which changes during the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lastkey.jobs.archive.listing import Archive
from lastkey.jobs.command.config import TopicSettings
from lastkey.jobs.command.options import CompactOptions
from lastkey.jobs.command.reporting import Phases, Work
from lastkey.jobs.command.stopping import EarlyEndError
from lastkey.jobs.compact.plan_inputs import Erasures
from lastkey.jobs.store.rows import Checkpoint
from lastkey.jobs.store.tables import State
from lastkey.jobs.topics import Key
from lastkey.logformat.listing import Segment
from lastkey.udfs.compact.plan import PartitionInput, PartitionResult


@dataclass(frozen=True)
class ListedArchive:
    """Partitions of an archive that a run processes, and facts about the rest of the archive for its report."""

    archive: Archive
    settings: Mapping[str, TopicSettings]  # by topic
    not_compacted: list[str]  # other topics of the archive
    notes: list[str]
    notes_on_topics: list[str]
    notes_on_settings: list[str]


@dataclass(frozen=True)
class Start:
    """Inputs of a run: its options, the archive's listing, the store's state."""

    run_id: str
    options: CompactOptions
    listing: ListedArchive
    state: State
    checkpoints: Mapping[Key, Checkpoint]
    manifests: Mapping[Key, Sequence[Segment]]
    missing: Mapping[Key, Sequence[Segment]]  # segments that generations use and the archive lacks
    erasures: Erasures
    ends_at: float | None  # end of --max-runtime by the monotonic clock

    @property
    def archive(self) -> Archive:
        """Partitions of the archive that the run takes."""
        return self.listing.archive


@dataclass
class Outcome:
    """Outcome of a run so far. Signals and commits come at any time, from other threads too."""

    results: list[PartitionResult] = field(default_factory=list)
    planned: set[Key] = field(default_factory=set)  # due by the listing
    committed: dict[Key, Checkpoint] = field(default_factory=dict)
    reset: set[Key] = field(default_factory=set)  # start over from the archive, by --reset
    conflict: str = ""  # another run committed first
    ended_early: EarlyEndError | None = None  # the reason
    cut_off: set[Key] = field(default_factory=set)  # at work when --max-runtime was over
    notes: list[str] = field(default_factory=list)
    notes_on_runs: list[str] = field(default_factory=list)  # on other runs
    seconds: dict[str, float] = field(default_factory=Phases)
    work: Work | None = None  # engine and tasks of the run

    @property
    def due(self) -> set[Key]:
        """Partitions that were due: those with a plan, without those whose log showed that they were not due."""
        return self.planned - {partition_key(r) for r in self.results if r.status == "not_due"}


def partition_key(partition: PartitionInput | PartitionResult) -> Key:
    """Return the partition that an input or a result is of."""
    return partition.topic, partition.partition
