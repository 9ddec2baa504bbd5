"""Partitions of which every batch that can be has magic 3."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np

from lastkey.logformat.batches import walk_kernels as walk
from lastkey.logformat.batches.chunks import NO_END, Chunk
from lastkey.logformat.layout import BATCH
from lastkey.logformat.writing.formats import Converter, Magic
from tests.builders.trees import files_in


def converted(data: bytes, magic: Magic) -> bytes:
    """Return a sound log in another format."""
    raw = np.frombuffer(data, np.uint8)
    rows = np.empty(len(raw) // 26 + 1, BATCH)
    n, end, _, _, _ = walk.walk_batches(raw, len(raw), 0, -1, NO_END, walk.CHECK_ALL, rows)
    parts = Converter(magic).convert(Chunk(0, raw, rows[:n]))
    return b"".join(part.data.tobytes() for part in parts) + data[end:]


def as_v3(source: Path, target: Path) -> Path:
    """Copy a partition's folder, or a log directory, in magic 3, and return the copy. The files keep their times, and
    lose their indexes, which tell positions.
    """
    shutil.copytree(source, target)
    for log in files_in(target, "**/*.log"):
        times = log.stat()
        log.write_bytes(converted(log.read_bytes(), 3))
        os.utime(log, ns=(times.st_mtime_ns, times.st_mtime_ns))
        for kind in (".index", ".timeindex"):
            log.with_suffix(kind).unlink(missing_ok=True)
    return target
