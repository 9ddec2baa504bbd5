"""Kernels from the sections of magic 3 to batches, and of batches that take the place of others."""

from __future__ import annotations

import numpy as np

from lastkey.logformat.batches.header_kernels import size_of_header_v3, write_header_v3
from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import IGNORE_ATTRIBUTES_MASK
from lastkey.logformat.primitives.memory_kernels import copy_bytes


@kernel
def sizes_v3(batches: np.ndarray, which: np.ndarray, first_sections: np.ndarray, stored: np.ndarray) -> None:
    """Add the header's bytes to `stored` (int64[n]: bytes of both sections as stored) of the batches in `which`."""
    for i in range(batches.shape[0]):
        if which[i]:
            b = batches[i]
            last_delta = b.last_offset - b.base_offset
            stored[i] += size_of_header_v3(last_delta, b.base_timestamp, b.max_timestamp, first_sections[i])


@kernel
def write_batches_v3(
    batches: np.ndarray,
    which: np.ndarray,
    attributes: np.ndarray,
    first_sections: np.ndarray,
    sizes: np.ndarray,
    sections: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write the batches in `which` as magic 3, one after the other.

    batches: BATCH[n]; attributes: bool[n], whether the records have any; first_sections: int64[n], as in `read_trail`;
    sizes: int64[n], of each result, 0 of the others; sections: uint8, the stored ones; out: uint8[sum(sizes)], written.
    """
    at = 0
    taken = 0
    for i in range(batches.shape[0]):
        if which[i]:
            b = batches[i]
            end = at + sizes[i]
            header = size_of_header_v3(
                b.last_offset - b.base_offset, b.base_timestamp, b.max_timestamp, first_sections[i]
            )
            copy_bytes(out, at + header, sections, taken, sizes[i] - header)
            taken += sizes[i] - header
            bits: int = b.attributes if attributes[i] else b.attributes | IGNORE_ATTRIBUTES_MASK
            write_header_v3(
                out,
                at,
                end,
                b.base_offset,
                b.last_offset,
                b.partition_leader_epoch,
                bits,
                b.base_timestamp,
                b.max_timestamp,
                b.producer_id,
                b.producer_epoch,
                b.base_sequence,
                b.records_count,
                first_sections[i],
            )
            at = end


@kernel
def copy_around(
    raw: np.ndarray,
    raw_position: int,
    batches: np.ndarray,
    which: np.ndarray,
    replaced: np.ndarray,
    sizes: np.ndarray,
    out: np.ndarray,
) -> None:
    """Put `replaced` (uint8: the batches in `which`, one after the other) among the others, which are copied.

    raw: uint8, bytes of the file from raw_position on; batches: BATCH[n]; sizes: int64[n], of each result; out:
    uint8[sum(sizes)], written.
    """
    at = 0
    taken = 0
    for i in range(batches.shape[0]):
        if which[i]:
            copy_bytes(out, at, replaced, taken, sizes[i])
            taken += sizes[i]
        else:
            copy_bytes(out, at, raw, batches[i].position - raw_position, sizes[i])
        at += sizes[i]
