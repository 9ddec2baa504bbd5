"""File and folder names of a Kafka log directory, made and parsed only here; and the rules that select the files of a
log.

A partition's folder is `<topic>-<partition>`; the topic may hold "-", so the LAST one counts. A file of the log is
`<base>.<kind>`, the base an offset of 20 digits; a suffix after the kind shows at which step a swap stopped.

Source: LocalLog.parseTopicPartitionName, LogFileUtils and LogLoader (4.3.0; KAFKA.md, "Log directory"). Difference:
Kafka parses any number before the first dot as an offset; here a name that Kafka would not write is not a file of the
log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

MAX_OFFSET: Final = 2**63 - 1
MAX_PARTITION: Final = 2**31 - 1
MAX_NAME: Final = 255  # characters of a -delete or -stray folder's name; the topic is cut to fit
MAX_TOPIC: Final = 249

LOG: Final = "log"
INDEX: Final = "index"
TIME_INDEX: Final = "timeindex"
TXN_INDEX: Final = "txnindex"
SNAPSHOT: Final = "snapshot"  # producer state after all data below its offset; belongs to no single segment
SEGMENT_KINDS: Final = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
KINDS: Final = (*SEGMENT_KINDS, SNAPSHOT)

DELETED: Final = ".deleted"  # to be removed soon
CLEANED: Final = ".cleaned"  # under construction
SWAP: Final = ".swap"  # finished, about to replace other files
SUFFIXES: Final = (DELETED, CLEANED, SWAP)
PART: Final = ".part"
TMP: Final = ".tmp"
UNFINISHED: Final = (TMP, PART)  # endings of a file that is being written or copied

DELETE: Final = "delete"  # folder marks: being deleted
STRAY: Final = "stray"  # a replica that should not be here
FUTURE: Final = "future"  # a replica on its way to another disk
FOLDER_MARKS: Final = (DELETE, STRAY, FUTURE)

LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
UPLOADED: Final = "offset.wm"  # progress of Pinterest's uploader; beside segments without any other side file
PARTITION_SIDE_FILES: Final = (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, UPLOADED)

CLEANER_OFFSET_CHECKPOINT: Final = "cleaner-offset-checkpoint"
RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
OFFSET_CHECKPOINTS: Final = (
    CLEANER_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, LOG_START_OFFSET_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT,
)  # fmt: skip
META_PROPERTIES: Final = "meta.properties"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
LOCK: Final = ".lock"
REMOTE_INDEX_CACHE: Final = "remote-log-index-cache"
CLUSTER_METADATA: Final = "__cluster_metadata"  # KRaft's own log: never compacted by the cleaner
KAFKAS_OWN: Final = frozenset(  # topics that brokers keep for themselves
    ("__consumer_offsets", "__transaction_state", "__share_group_state", CLUSTER_METADATA, "__remote_log_metadata")
)

_DIRECTORY_FILES = frozenset((*OFFSET_CHECKPOINTS, META_PROPERTIES, CLEAN_SHUTDOWN, LOCK))

REBUILT: Final = "missing, to be rebuilt from the log"  # begins the note on missing index files

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>[0-9]{1,10})")
_MARKED = re.compile(r"(?P<name>.+)\.(?P<id>[^.\s]+)-(?P<mark>delete|stray|future)")
_SEGMENT_FILE = re.compile(
    r"(?P<base>[0-9]{20})\.(?P<kind>log|index|timeindex|txnindex|snapshot)(?P<suffix>\.deleted|\.cleaned|\.swap)?"
)
_CACHED_INDEX = re.compile(r"[0-9]+_[A-Za-z0-9_-]{22}\.(index|timeindex|txnindex)(\.deleted|\.tmp)?")


@dataclass(frozen=True)
class PartitionFolder:
    """A folder that holds one partition's log. Kafka may have cut the topic where the mark is "delete" or "stray"."""

    topic: str
    partition: int
    mark: str = ""  # "" or one of FOLDER_MARKS
    mark_id: str = ""  # 32 hex digits in a marked folder's name


@dataclass(frozen=True)
class SegmentFile:
    """A file of the log. The `base` of a snapshot is the first offset that it does not cover."""

    base: int
    kind: str  # one of KINDS
    suffix: str = ""  # "" or one of SUFFIXES


def partition_folder(topic: str, partition: int, mark: str = "", mark_id: str = "") -> str:
    """Return the name of a partition's folder, cut to 255 characters for "delete" and "stray" as in Kafka."""
    if not is_topic(topic):
        raise ValueError(f"not a topic name: {topic!r}")
    if not 0 <= partition <= MAX_PARTITION:
        raise ValueError(f"not a partition: {partition}")
    if not mark:
        return f"{topic}-{partition}"
    if mark not in FOLDER_MARKS or not mark_id:
        raise ValueError(f"not a folder mark: {mark!r} {mark_id!r}")
    ending = f"-{partition}.{mark_id}-{mark}"
    return (topic if mark == FUTURE else topic[: MAX_NAME - len(ending)]) + ending


def is_topic(name: str) -> bool:
    """Return whether Kafka would allow a topic of this name."""
    return len(name) <= MAX_TOPIC and name not in (".", "..") and _TOPIC.fullmatch(name) is not None


def parse_partition_folder(name: str) -> PartitionFolder | None:
    """Parse the name of a partition's folder. Return None for a name that Kafka gives to no partition."""
    mark = mark_id = ""
    marked = _MARKED.fullmatch(name)
    if marked is not None:
        name, mark, mark_id = marked["name"], marked["mark"], marked["id"]
    parts = _FOLDER.fullmatch(name)  # .+ is greedy, so this is the last "-"
    if parts is None or not is_topic(parts["topic"]) or int(parts["partition"]) > MAX_PARTITION:
        return None
    return PartitionFolder(parts["topic"], int(parts["partition"]), mark, mark_id)


def segment_file(base: int, kind: str, suffix: str = "") -> str:
    """Return the name of a file of the log, such as `00000000000000000042.index`."""
    if not 0 <= base <= MAX_OFFSET:
        raise ValueError(f"not an offset: {base}")
    if kind not in KINDS or (suffix and suffix not in SUFFIXES):
        raise ValueError(f"not a kind of file: {kind!r} {suffix!r}")
    return f"{base:020d}.{kind}{suffix}"


def parse_segment_file(name: str) -> SegmentFile | None:
    """Parse the name of a file of the log. Return None for any other name."""
    parts = _SEGMENT_FILE.fullmatch(name)
    if parts is None or int(parts["base"]) > MAX_OFFSET:
        return None
    return SegmentFile(int(parts["base"]), parts["kind"], parts["suffix"] or "")


def is_directory_file(name: str) -> bool:
    """Return whether a name belongs to a broker's own file in a log directory, outside of the partitions' folders: a
    checkpoint of offsets, its identity, or the temporary file of one of these.
    """
    return name in _DIRECTORY_FILES or (name.endswith(TMP) and name.removesuffix(TMP) in _DIRECTORY_FILES)


def is_unfinished_side_file(name: str) -> bool:
    """Return whether this is the file from which a broker renames a side file of a partition."""
    return name.endswith(TMP) and name.removesuffix(TMP) in PARTITION_SIDE_FILES


def is_cached_index(name: str) -> bool:
    """Return whether REMOTE_INDEX_CACHE has files of this name: copies of a remote segment's indexes.

    Source: RemoteIndexCache (4.3.0).
    """
    return _CACHED_INDEX.fullmatch(name) is not None


@dataclass(frozen=True)
class PartitionFile:
    """A file that is part of the log. `name` is its present name in the folder, suffix included."""

    name: str
    size: int  # bytes


@dataclass
class Resolution:
    """The files of a partition's folder by their role, the same that Kafka would give them at its start."""

    segments: dict[int, dict[str, PartitionFile]] = field(default_factory=dict)  # base -> kind -> file, bases ascending
    snapshots: dict[int, PartitionFile] = field(default_factory=dict)  # offset -> file, ascending
    orphans: dict[int, PartitionFile] = field(default_factory=dict)  # base -> an index whose .log is missing, ascending
    side_files: dict[str, int] = field(default_factory=dict)  # PARTITION_SIDE_FILES present -> size
    ignored: dict[str, str] = field(default_factory=dict)  # name -> why it is not part of the log
    notes: list[str] = field(default_factory=list)  # for the user: missing indexes, a swap that was finished here


NextOffset = Callable[[str], int] | Mapping[int, int]


def resolve_leftovers(files: Iterable[tuple[str, int]], next_offset: NextOffset) -> Resolution:
    """Decide which files of a partition's folder make up its log, for any moment at which the broker was stopped.

    files: (name, size in bytes). next_offset: last offset + 1 of a `.log.swap` (its base, if empty), as a function of
    the file's name or a mapping from its base; called only for the swap files that count.

    The rules are LogLoader's, in its order (KAFKA.md, "Broker start"): a `.deleted` file goes; a `.cleaned` file goes,
    and with it every `.swap` at or above the lowest `.cleaned` base (the renaming had not ended); the offsets that the
    remaining `.log.swap` files span replace all other files there, snapshots too; then each `.swap` takes its final
    name. An index file without its log is removed. A broker leaves no such file, so it is reported as an orphan. It is
    no orphan if a `.deleted` log shows that the broker was deleting the index too.
    """
    sizes = dict(files)
    out = Resolution()
    parsed: dict[str, SegmentFile] = {}
    for name in sorted(sizes):
        file = parse_segment_file(name)
        if file is not None:
            parsed[name] = file
        elif name in PARTITION_SIDE_FILES:
            out.side_files[name] = sizes[name]
        else:
            out.ignored[name] = "unfinished" if name.endswith(UNFINISHED) else "not a file of a log"

    finals, replaced, n_swap = _final_files(parsed, next_offset)
    out.ignored |= replaced
    if n_swap:
        out.notes.append(f"{n_swap} .swap files count as final: a swap was interrupted")

    # A broker renames the .log first, then its indexes: a crash in between leaves these files.
    going = {file.base for file in parsed.values() if file.kind == LOG and file.suffix == DELETED}
    for (base, kind), name in sorted(finals.items()):
        if kind == SNAPSHOT:
            out.snapshots[base] = PartitionFile(name, sizes[name])
        elif (base, LOG) in finals:
            out.segments.setdefault(base, {})[kind] = PartitionFile(name, sizes[name])
        else:
            out.ignored[name] = "an index without its log"
            if base not in going:
                out.orphans.setdefault(base, PartitionFile(name, sizes[name]))
    for base, segment in out.segments.items():
        missing = [segment_file(base, kind) for kind in (INDEX, TIME_INDEX) if kind not in segment]
        if missing:
            out.notes.append(f"{REBUILT}: {', '.join(missing)}")
    return out


def _final_files(
    parsed: Mapping[str, SegmentFile], next_offset: NextOffset
) -> tuple[dict[tuple[int, str], str], dict[str, str], int]:
    """Return ((base, kind) -> the file that gets this name, other files -> reason of their removal, number of .swap
    files).
    """
    cleaned = [file.base for file in parsed.values() if file.suffix == CLEANED]
    lowest_cleaned = min(cleaned, default=MAX_OFFSET + 1)
    swap: dict[str, SegmentFile] = {}
    plain: dict[str, SegmentFile] = {}
    ignored: dict[str, str] = {}
    for name, file in parsed.items():
        if file.suffix == DELETED:
            ignored[name] = "already replaced or expired"
        elif file.suffix == CLEANED:
            ignored[name] = "unfinished output of the cleaner"
        elif file.suffix == SWAP and file.base >= lowest_cleaned:
            ignored[name] = f"swap not begun: a .cleaned file at {lowest_cleaned} remains"
        else:
            (swap if file.suffix == SWAP else plain)[name] = file
    low, high = _swapped_range(swap, next_offset)
    finals = {(file.base, file.kind): name for name, file in swap.items()}
    for name, file in plain.items():
        if low <= file.base < high:
            ignored[name] = f"replaced by the .swap files of offsets {low} to {high - 1}"
        elif (file.base, file.kind) in finals:
            ignored[name] = f"replaced by {finals[file.base, file.kind]}"
        else:
            finals[file.base, file.kind] = name
    return finals, ignored, len(swap)


def _swapped_range(swap: Mapping[str, SegmentFile], next_offset: NextOffset) -> tuple[int, int]:
    """Return the offsets [low, high) that the `.log.swap` files replace; an empty range if there are none."""
    low, high = MAX_OFFSET, 0
    for name, file in swap.items():
        if file.kind == LOG:
            end = next_offset(name) if callable(next_offset) else next_offset[file.base]
            low, high = min(low, file.base), max(high, end)
    return low, high
