"""Objects of tiered storage, by their names: the copies of segments in a partition's remote folder.

| written by | folder | objects |
|---|---|---|
| Kafka's LocalTieredStorage | `<topic>-<partition>-<topic id>` | `<offset>-<segment id>.log`, `.index`, ... |
| Aiven's plugin | `<topic>-<topic id>/<partition>` | `<offset>-<segment id>.log`, `.indexes`, `.rsm-manifest` |
| Pinterest's uploader | `<topic>-<partition>`, with `offset.wm` | `<20 digits>.log`, `.index`, `.timeindex` |

Source: RemoteTopicPartitionDirectory and RemoteLogSegmentFileset (Kafka 4.3.0); ObjectKeyFactory (Aiven 1.1.1).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from lastkey.logformat import names

EPOCHS: Final = "leader_epoch_checkpoint"
INDEXES: Final = "indexes"  # all side files of a segment in one object
MANIFEST: Final = "rsm-manifest"
# without one of these an upload has not ended, or objects were lost; a .txnindex exists only where it is needed
COMPLETE: Final = {
    "kafka": (names.LOG, names.INDEX, names.TIME_INDEX, EPOCHS, names.SNAPSHOT),  # each uploaded after the one before
    "aiven": (names.LOG, INDEXES, MANIFEST),
    "pinterest": (names.LOG, names.INDEX, names.TIME_INDEX),
}

_ID = "[a-zA-Z0-9_-]{21}[AQgw]"  # 16 bytes in base64: the last character holds 2 bits, so no name ends in a number
_FOLDER = re.compile(rf"(?P<topic>.+)-(?P<partition>[0-9]{{1,10}})-(?P<id>{_ID})")
_TOPIC = re.compile(rf"(?P<topic>.+)-(?P<id>{_ID})")
_NUMBER = re.compile("[0-9]{1,10}")
_OBJECT = re.compile(
    rf"(?P<start>[0-9]{{1,20}})-(?P<id>{_ID})\."
    rf"(?P<kind>{'|'.join((*names.KINDS, EPOCHS, INDEXES, MANIFEST))})"
)


@dataclass(frozen=True)
class RemotePartition:
    """A partition, by the path of the folder that holds its remote segments."""

    topic: str
    partition: int
    topic_id: str  # empty: unknown
    layout: str  # a key of COMPLETE

    @property
    def folder(self) -> str:
        """Name of the partition's folder in a log directory."""
        return names.partition_folder(self.topic, self.partition)


@dataclass(frozen=True)
class UploadedCopy:
    """The objects of one uploaded copy of a segment."""

    start: int  # its first offset, by the name
    segment_id: str  # empty: a copy is known by its offset
    layout: str
    objects: dict[str, Any] = field(compare=False)  # kind -> pyarrow.fs.FileInfo

    @property
    def name(self) -> str:
        """Path of its objects, without the kind."""
        path: str = next(iter(self.objects.values())).path
        return path.rpartition(".")[0]

    @property
    def lacks(self) -> list[str]:
        """Kinds of objects that a finished upload has, and this one does not."""
        return [kind for kind in COMPLETE[self.layout] if kind not in self.objects]


def remote_partition(path: str) -> RemotePartition | None:
    """Return the partition whose remote segments a folder holds, from the folder's path; None for any other folder. A
    folder of Pinterest's uploader is named like a partition's folder.
    """
    above, _, name = path.rpartition("/")
    if match := _FOLDER.fullmatch(name):
        topic, number, layout = match["topic"], match["partition"], "kafka"
    elif _NUMBER.fullmatch(name) and (match := _TOPIC.fullmatch(above.rpartition("/")[2])):
        topic, number, layout = match["topic"], name, "aiven"
    elif (plain := names.parse_partition_folder(name)) is not None and not plain.mark:
        return RemotePartition(plain.topic, plain.partition, "", "pinterest")
    else:
        return None
    if not names.is_topic(topic) or int(number) > names.MAX_PARTITION:
        return None
    return RemotePartition(topic, int(number), match["id"], layout)


def _object(layout: str, name: str) -> tuple[int, str, str] | None:
    """Return offset, segment id and kind of an object of a remote segment, by its name; None for any other file."""
    if layout == "pinterest":
        file = names.parse_segment_file(name)
        return None if file is None or file.suffix or file.kind not in COMPLETE[layout] else (file.base, "", file.kind)
    match = _OBJECT.fullmatch(name)
    if match is None or int(match["start"]) > names.MAX_OFFSET:
        return None
    return int(match["start"]), match["id"], match["kind"]


def holds_segments(path: str, files: Iterable[str]) -> bool:
    """Return whether a folder with these files holds a partition's remote segments, and cannot be a log directory's."""
    found = remote_partition(path)
    return found is not None and bool(found.topic_id) and any(_object(found.layout, name) for name in files)


def group_copies(partition: RemotePartition, files: Iterable[Any]) -> list[UploadedCopy]:
    """Return the copies of segments that these files (pyarrow.fs.FileInfo) make up, by offset and id."""
    objects_by_copy: dict[tuple[int, str], dict[str, Any]] = {}
    for info in files:
        if (named := _object(partition.layout, info.base_name)) is not None:
            start, segment_id, kind = named
            objects_by_copy.setdefault((start, segment_id), {})[kind] = info
    return [
        UploadedCopy(start, name, partition.layout, objects)
        for (start, name), objects in sorted(objects_by_copy.items())
    ]
