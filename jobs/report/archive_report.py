"""Report of an archive, as JSON, as text and as rows of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations, takewhile
from typing import Any, ClassVar, Final

from lastkey.jobs.archive.places import is_same, lies_in
from lastkey.jobs.command.reporting import JobReport, TextTable, by_rule, counted, labelled, size
from lastkey.jobs.errors import UsageError
from lastkey.jobs.store.generations import open_store
from lastkey.jobs.store.rows import RunRow
from lastkey.jobs.topics import Key
from lastkey.udfs.report.codec_sizes import CODEC_COLUMNS, CodecBytes, sum_of_logs
from lastkey.udfs.report.partition_profile import PartitionProfile


def _if_compacted(show: Callable[[PartitionProfile, int], str]) -> Callable[[PartitionProfile], str]:
    """Return a function of what a compaction leaves of a topic that is not compacted."""
    return lambda p: "" if p.compacted or p.bytes_if_compacted is None else show(p, p.bytes_if_compacted)


def _shown(p: PartitionProfile, after: int) -> str:
    return ("~" if p.bytes_after_is_estimate else "") + size(after)


def _saved(p: PartitionProfile, after: int) -> str:
    return ("~" if p.bytes_after_is_estimate else "") + saved(p.size_bytes, after)


@dataclass(frozen=True)
class TopicCodecs:
    """Bytes of a topic as it is, and with each codec."""

    topic: str
    bytes: int
    codecs: tuple[CodecBytes, ...]


def _with_codec(topic: TopicCodecs, codec: str) -> str:
    [found] = [one for one in topic.codecs if one.codec == codec]
    return size(found.bytes) + (f" ± {100 * found.error_bytes / found.bytes:.1f} %" if found.error_bytes else "")


CODECS: Final = TextTable(
    "codec_bytes",
    f"topic bytes:now {' '.join(CODEC_COLUMNS)}",
    {codec: partial(_with_codec, codec=codec) for codec in CODEC_COLUMNS},
    title="bytes by codec, if all batches had it (± three standard errors of a sample; compression.type, recompress):",
)
PARTITIONS: Final = TextTable(
    "good",
    "partition policy records distinct_keys:keys dead tombstones dirty size_bytes:size would_be saved "
    "other:if_compacted other_saved:saved",
    {
        "policy": lambda p: "compact" if p.compacted else "delete",
        "records": lambda p: p.total("records"),
        "dead": lambda p: p.total("dead_records"),
        "tombstones": lambda p: p.total("tombstones"),
        "dirty": lambda p: f"{100 * p.dirty_ratio:.0f} %" if p.compacted else "",
        "would_be": lambda p: _shown(p, p.total("bytes_after")) if p.compacted else "",
        "saved": lambda p: _saved(p, p.total("bytes_after")) if p.compacted else "",
        "other": _if_compacted(_shown),
        "other_saved": _if_compacted(_saved),
    },
)


@dataclass
class ArchiveReport(JobReport):
    """Report of an archive, partition by partition."""

    job = "report"
    facts = "archive store output now_ms savings=_savings partitions=profiles history=_history codec_bytes"
    text_tables = (PARTITIONS, CODECS)

    archive: str
    now_ms: int
    store: str | None = None
    output: str = ""
    profiles: list[PartitionProfile] = field(default_factory=list)  # by topic and partition
    archived_bytes: dict[Key, int] = field(default_factory=dict)  # size of `.log` files in the archive, by listing
    history: dict[Key, list[RunRow]] = field(default_factory=dict)  # history of the store, newest first

    @property
    def places(self) -> list[tuple[str, str, str | None]]:
        """Short name, URI and store of each archive."""
        return [("", self.archive, self.store)]

    @property
    def problems(self) -> list[Any]:
        """Problems of the report, including those of partitions that were profiled."""
        return [*self.other_problems, *(p.problem for p in self.profiles if p.problem is not None)]

    def total(self, column: str) -> int:
        """Sum a column over all segments."""
        return sum(p.total(column) for p in self.profiles)

    @property
    def good(self) -> list[PartitionProfile]:
        """Profiles of the partitions that could be read."""
        return [p for p in self.profiles if p.problem is None]

    @property
    def codec_bytes(self) -> list[TopicCodecs]:
        """Bytes of each topic with each codec, the largest topic first; topics without data are left out."""
        by_topic: dict[str, list[PartitionProfile]] = {}
        for p in self.good:
            by_topic.setdefault(p.topic_label(), []).append(p)
        rows = [
            TopicCodecs(name, sum(p.size_bytes for p in of), sum_of_logs((p.size_bytes, p.codec_bytes) for p in of))
            for name, of in by_topic.items()
        ]
        return sorted((row for row in rows if row.codecs), key=lambda row: -row.bytes)

    def savings(self, *, by_settings: bool) -> tuple[int, int]:
        """Return the bytes of all partitions, and how many of them a compaction would save: in the topics that the
        settings compact, or in every topic.
        """
        size, after = sum(p.size_bytes for p in self.good), self.total("bytes_after")
        if not by_settings:
            after = sum(p.size_bytes if p.bytes_if_compacted is None else p.bytes_if_compacted for p in self.good)
        return size, size - after

    def about(self) -> str:
        """Return ~ if the report has estimates, else ""."""
        return "~" if any(p.bytes_after_is_estimate for p in self.good) else ""

    @property
    def _savings(self) -> dict[str, int]:
        (n, by_settings), (_, all_of_them) = self.savings(by_settings=True), self.savings(by_settings=False)
        return {"bytes": n, "by_settings_bytes": by_settings, "if_all_compacted_bytes": all_of_them}

    def _savings_lines(self) -> list[str]:
        """Return the savings by the settings, and those of compacting every topic, unless the settings compact all."""
        out, compacted = [], sum(p.compacted for p in self.good)
        for by_settings, what in ((True, "by the settings"), (False, "if every topic were compacted")):
            before, gain = self.savings(by_settings=by_settings)
            share = f" ({saved(before, before - gain)})" if before else ""
            out.append(
                f"a compaction would save, {what}: {self.about() if gain else ''}{size(gain)} of {size(before)}{share}"
            )
            if compacted == len(self.good):
                return out
        others = counted(len(self.good) - compacted, "partition")
        out.append(
            f"no settings say cleanup.policy compact for {others}: give --config FILE, or --topics GLOB with "
            "--cleanup-policy compact"
        )
        return out

    @property
    def _history(self) -> list[RunRow]:
        return [run for key in sorted(self.history) for run in self.history[key]]

    def _lines(self) -> Iterable[str]:
        yield from self._savings_lines() if self.good else ()
        yield from labelled("would expire", (f"{p.name()}: {by_rule(p.expiring)}" for p in self.profiles if p.expiring))

    def _outcome(self) -> str:
        none = "no partition that could be read" if self.problems else "no partition in the archive"
        read = f"{counted(len(self.good), 'partition')}, {size(sum(p.size_bytes for p in self.good))}"
        return (read if self.good else none) + (f"; the page: {self.output}" if self.output else "")


def most_to_gain(report: ArchiveReport) -> str:
    """Return text with the partition for which a compaction would save the most bytes, one of a compacted topic if
    there is any; "" if none would.
    """
    gains = [
        (p.compacted, p.size_bytes - p.bytes_if_compacted, p) for p in report.good if p.bytes_if_compacted is not None
    ]
    compacted, gain, best = max((one for one in gains if one[1] > 0), key=lambda one: one[:2], default=(True, 0, None))
    if best is None:
        return ""
    about = "about " if best.bytes_after_is_estimate else ""
    share = saved(best.size_bytes, best.size_bytes - gain)
    condition = "" if compacted else " if cleanup.policy of its topic were compact"
    would_save = f"A compaction would save {about}{size(gain)} of {size(best.size_bytes)} ({share}){condition}."
    return f"Most to gain: {best.name()}. {would_save}"


def saved(before: int, after: int) -> str:
    """Return the share that is saved."""
    return f"{100 * (before - after) / before:.1f} %" if before else ""


@dataclass(frozen=True)
class NamedArchive:
    """Report of one archive, with its short name."""

    facts: ClassVar[str] = "name *=report"
    name: str
    report: ArchiveReport


@dataclass
class SeveralArchives(ArchiveReport):
    """Report of several archives."""

    facts = "archives=_archives output now_ms savings=_savings"

    parts: dict[str, ArchiveReport] = field(default_factory=dict)  # by short name

    @property
    def places(self) -> list[tuple[str, str, str | None]]:
        """Short name, URI and store of each archive."""
        return [(name, part.archive, part.store) for name, part in self.parts.items()]

    @property
    def problems(self) -> list[Any]:
        """Problems of all archives."""
        return [f"{name}: {problem}" for name, part in self.parts.items() for problem in part.problems]

    def _lines(self) -> Iterable[str]:
        yield from (f"{name}: {uri}" + (f", with {store}" if store else "") for name, uri, store in self.places)
        yield from super()._lines()

    @property
    def _archives(self) -> list[NamedArchive]:
        return [NamedArchive(name, part) for name, part in self.parts.items()]

    def join(self) -> None:
        """Add the reports of the archives to this one."""
        for name, part in self.parts.items():
            part.profiles = [replace(p, archive=name) for p in part.profiles]
            self.profiles += part.profiles
            self.archived_bytes |= {(f"{name}/{key[0]}", key[1]): n for key, n in part.archived_bytes.items()}
            self.history |= {(f"{name}/{key[0]}", key[1]): rows for key, rows in part.history.items()}
            self.notes += [f"{name}: {note}" for note in part.notes]
            for phase, seconds in part.seconds.items():
                self.seconds[phase] = self.seconds.get(phase, 0) + seconds


def check_distinct(archives: Sequence[str]) -> None:
    """Raise UsageError if an archive is, or is inside, another one: its partitions would count twice."""
    for inner, outer in permutations(archives, 2):
        if lies_in(inner, outer):
            raise UsageError(message=f"report: {inner} is or lies in {outer}, and would count twice; leave one out")


def short_names(uris: Sequence[str]) -> list[str]:
    """Return the distinguishing parts of URIs: "one" and "two" for /b/one/data and /b/two/data."""
    parts = [uri.split("/") for uri in uris]
    backwards = [of[_n_shared(parts) :][::-1] for of in parts]
    names = ["/".join(of[_n_shared(backwards) :][::-1]) for of in backwards]
    return names if all(names) else list(uris)


def _n_shared(parts: Sequence[Sequence[str]]) -> int:
    """Return with how many equal names all begin."""
    return len(list(takewhile(lambda same: len(set(same)) == 1, zip(*parts, strict=False))))


def match_stores(archives: Sequence[str], stores: Sequence[str]) -> dict[str, str]:
    """Return the store of each archive, as far as given. UsageError: a store without archive, or two stores for one."""
    store_by_archive: dict[str, str] = {}
    for store in stores:
        served = sorted({c.archive_uri for c in open_store(store).checkpoints().values()})
        mine = [archive for archive in archives if any(is_same(uri, archive) for uri in served)]
        if not mine:
            serves = f"serves the archive {served[0]}" if served else "holds no generation"
            raise UsageError(message=f"{store}: this store {serves}; expected one of {', '.join(archives)}")
        if mine[0] in store_by_archive:
            raise UsageError(
                message=f"--store: {store_by_archive[mine[0]]} and {store} both serve {mine[0]}; leave one out"
            )
        store_by_archive[mine[0]] = store
    return store_by_archive
