"""Archives in a notebook, without Spark: objects that display themselves, and pandas DataFrames to work with.

    archive = open_archive("examples/archive", config="examples/topics.toml")
    archive                               # its topics
    archive.profile("users,orders")       # the page of `report`, for some topics
    users = archive["users-0"]
    users.profile()                       # its part for one partition
    users.paths                           # for lastkey.open_segment

Opening reads only names, sizes and the small files beside the logs. All other data is read when you ask for it.
"""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Final

import pandas as pd

from lastkey.jobs.archive.listing import Archive, ArchivedPartition, listed
from lastkey.jobs.command.config import Config, load_config
from lastkey.jobs.command.failures import raises_job_errors
from lastkey.jobs.command.parse import check_location, parse_topics
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import ReportOptions
from lastkey.jobs.command.reporting import counted
from lastkey.jobs.report.archive_report import ArchiveReport
from lastkey.jobs.report.job import is_compacted, profile_archive
from lastkey.jobs.report.page import partition_fragment, report_fragment
from lastkey.jobs.topics import TopicFilter
from lastkey.logformat.control_characters import visible
from lastkey.udfs.report.partition_profile import AGE_NAMES, PartitionProfile, SegmentProfile
from lastkey.udfs.storage import normal_uri

_SHOWN_ROWS: Final = 200  # rows of a displayed table; the DataFrame has all rows


@raises_job_errors
def open_archive(
    path_or_uri: str | os.PathLike[str], *, config: str | Config | None = None, now_ms: int | None = None
) -> OpenedArchive:
    """Open an archive: a broker's log directory, or a folder that holds several. Raise MissingPathError if it does not
    exist.

    config: a settings file, or settings; they define which topics are compacted. now_ms: the clock for ages, lags and
    horizons; default: now.
    """
    uri = normal_uri(check_location("path_or_uri", path_or_uri))
    settings = config if isinstance(config, Config) else load_config(config)
    archive = listed(uri)
    return OpenedArchive(uri, archive, settings, now_ms if now_ms is not None else time.time_ns() // 1_000_000)


@dataclass(frozen=True, repr=False)
class OpenedArchive(Mapping[str, "OpenedPartition"]):
    """Archive as listed. Index it with a partition's folder name, `<topic>-<partition>`."""

    uri: str
    archive: Archive
    config: Config
    now_ms: int

    def __getitem__(self, name: str) -> OpenedPartition:
        for archived in self.archive.partitions.values():
            if f"{archived.topic}-{archived.partition}" == name:
                return OpenedPartition(self, archived)
        near = difflib.get_close_matches(name, list(self), 3, 0.3)
        raise KeyError(f"no partition {name!r}" + (f"; did you mean {' or '.join(near)}?" if near else ""))

    def __iter__(self) -> Iterator[str]:
        return iter([f"{topic}-{partition}" for topic, partition in sorted(self.archive.partitions)])

    def __len__(self) -> int:
        return len(self.archive.partitions)

    @property
    def partitions(self) -> pd.DataFrame:
        """Row for each partition: topic, partition, segments, bytes, policy (of settings or a broker), path."""
        rows = [
            (p.topic, p.partition, len(p.segments), sum(s.size_bytes for s in p.segments), self._policy(p), p.path)
            for _, p in sorted(self.archive.partitions.items())
        ]
        return pd.DataFrame(rows, columns=["topic", "partition", "segments", "bytes", "policy", "path"])

    def _policy(self, archived: ArchivedPartition) -> str:
        """Return the policy of a partition's topic, of settings or a broker."""
        return "compact" if is_compacted(self.config, archived) else "delete"

    @property
    def topics(self) -> pd.DataFrame:
        """Row for each topic: partitions, segments, bytes, policy."""
        return self.partitions.groupby("topic").agg(
            partitions=("partition", "size"),
            segments=("segments", "sum"),
            bytes=("bytes", "sum"),
            policy=("policy", "first"),
        )

    def profile(self, topics: str | None = None, *, exclude: str | None = None) -> ProfiledArchive:
        """Profile the partitions of some topics (globs, separated by commas; None: all), as the job `report` does."""
        include, less = ([] if globs is None else [globs] for globs in (topics, exclude))
        wanted = parse_topics(include, less, option="{}")
        return ProfiledArchive(**vars(profile_archive(self._options(wanted), Silent())))

    def _options(self, topics: TopicFilter) -> ReportOptions:
        return ReportOptions(self.uri, "", now_ms=self.now_ms, config=self.config, topics=topics)

    def __repr__(self) -> str:
        return f"OpenedArchive({self.uri!r}: {counted(len(self), 'partition')})"

    def _repr_html_(self) -> str:
        return _html(self.topics)


@dataclass(frozen=True, repr=False)
class OpenedPartition:
    """Partition of an archive."""

    opened: OpenedArchive
    archived: ArchivedPartition

    @property
    def name(self) -> str:
        """`<topic>-<partition>`."""
        return f"{self.archived.topic}-{self.archived.partition}"

    @property
    def paths(self) -> list[str]:
        """Paths or URIs of the `.log` files, in log order."""
        return [f"{self.opened.uri}/{s.path}" for s in self.archived.segments]

    @property
    def segments(self) -> pd.DataFrame:
        """Row for each listed segment: base_offset, bytes, modified, path."""
        found = self.archived.segments
        return pd.DataFrame(
            {
                "base_offset": [s.base_offset for s in found],
                "bytes": [s.size_bytes for s in found],
                "modified": pd.to_datetime([s.mtime_ms for s in found], unit="ms", utc=True),
                "path": [s.path for s in found],
            }
        )

    def profile(self) -> ProfiledPartition:
        """Read the partition once, and return its profile."""
        options = self.opened._options(TopicFilter((self.archived.topic,)))
        report = profile_archive(options, Silent(), self.archived.partition)
        if report.profiles:
            return ProfiledPartition(report.profiles[0])
        a = self.archived  # no segment to read, or listing it failed
        problem = report.problems[0] if report.problems else None
        return ProfiledPartition(
            PartitionProfile(a.topic, a.partition, is_compacted(self.opened.config, a), 0, problem)
        )

    def __repr__(self) -> str:
        return f"OpenedPartition({self.name!r}: {counted(len(self.archived.segments), 'segment')})"

    def _repr_html_(self) -> str:
        return _html(self.segments)


class ProfiledArchive(ArchiveReport):
    """Report of `report`. A cell that ends with it shows the page."""

    def _repr_html_(self) -> str:
        return report_fragment(self)


@dataclass(frozen=True)
class ProfiledPartition:
    """Profile of a partition, with its tables. A cell that ends with it shows this part of the page."""

    found: PartitionProfile

    @property
    def segments(self) -> pd.DataFrame:
        """Row for each segment, with the columns of SegmentProfile."""
        names = [f.name for f in fields(SegmentProfile) if f.name not in ("codecs", "tombstone_ages")]
        return pd.DataFrame([[getattr(s, name) for name in names] for s in self.found.segments], columns=names)

    @property
    def tombstones(self) -> pd.Series[int]:
        """Tombstones by age."""
        ages = [sum(s.tombstone_ages[i] for s in self.found.segments) for i in range(len(AGE_NAMES))]
        return pd.Series(ages, index=list(AGE_NAMES), name="tombstones")

    @property
    def codecs(self) -> pd.DataFrame:
        """Batches, stored bytes, decompressed bytes and their ratio, by codec."""
        rows = [{"codec": codec, **asdict(c)} for s in self.found.segments for codec, c in s.codecs.items()]
        table = (
            pd.DataFrame(rows, columns=["codec", "batches", "stored_bytes", "uncompressed_bytes"])
            .groupby("codec")
            .sum()
        )
        return table.assign(ratio=table.uncompressed_bytes / table.stored_bytes)

    @property
    def hot_keys(self) -> pd.DataFrame:
        """Keys with the most records: records, sha256 (first 16 digits), text."""
        return pd.DataFrame([asdict(key) for key in self.found.hot_keys], columns=["records", "sha256", "text"])

    def _repr_html_(self) -> str:
        return partition_fragment(self.found)


def _html(table: pd.DataFrame) -> str:
    return visible(
        table.to_html(
            border=0,
            formatters={"bytes": "{:,}".format},
            max_rows=_SHOWN_ROWS,
            show_dimensions=len(table) > _SHOWN_ROWS,
        )
    )
