"""A partition's folder, opened for searches as its files alone tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyarrow import fs as pafs

from lastkey.logformat import names
from lastkey.logformat.batches.chunks import MAX_BATCH_BYTES
from lastkey.logformat.listing import list_partition_files
from lastkey.logformat.search.partition_log import PartitionLog
from lastkey.logformat.side_files import checkpoints
from lastkey.logformat.side_files.small_files import read_small_file
from lastkey.logformat.storage.locations import locate


def open_partition(
    folder: str | Path, *, end_offset: int | None = None, max_batch_bytes: int = MAX_BATCH_BYTES
) -> PartitionLog:
    """Open a partition's folder, with the leader epochs in it and the log start beside it."""
    filesystem, path = locate(folder)
    parsed = names.parse_partition_folder(path.rpartition("/")[2])
    topic, partition = (parsed.topic, parsed.partition) if parsed is not None else (None, None)

    def read(file: str, parse: Callable[[bytes, str], Any]) -> Any:
        found = filesystem.get_file_info(file).type == pafs.FileType.File
        return parse(read_small_file(filesystem, file), file) if found else {}

    starts = read(f"{path.rpartition('/')[0]}/{names.LOG_START_OFFSET_CHECKPOINT}", checkpoints.read_offset_checkpoint)
    return PartitionLog(
        list(list_partition_files(filesystem, path, path).segments(path, "")),
        log_start_offset=starts.get((topic, partition)),
        topic=topic,
        partition=partition,
        leader_epochs=list(read(f"{path}/{names.LEADER_EPOCH_CHECKPOINT}", checkpoints.read_leader_epochs)),
        end_offset=end_offset,
        max_batch_bytes=max_batch_bytes,
        place=lambda root: (filesystem, root),
    )
