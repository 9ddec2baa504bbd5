"""Kernels that lay out the bodies of batches before and after decompression, and their rows among the spans."""

from __future__ import annotations

from typing import Final

import numpy as np

from lastkey.logformat.batches.span_kernels import MIN_RECORD_SIZE
from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import BATCH_OVERHEAD, CODEC_MASK, CODEC_SNAPPY
from lastkey.logformat.primitives.small_body_kernels import MOST_COMPRESSED

ONE_BY_ONE: Final = -1  # the way to decompress a body whose codec's library takes one a call


@kernel
def lay_bodies(
    batches: np.ndarray,
    wanted: np.ndarray,
    raw_position: int,
    many: np.ndarray,
    backwards: bool,
    bodies: np.ndarray,
    rows: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    ways: np.ndarray,
) -> tuple[int, int, int, int]:
    """Lay out the bodies as stored in the file, whose bytes begin at raw_position.

    batches: BATCH[n]; wanted: bool[n]; many: bool[8], by codec, whether its library takes many bodies a call. Written:
    bodies: BODY[n], but for first_span, and without records of the unwanted; of the wanted bodies that are compressed,
    in the order in which they are decompressed, rows, starts, ends: int64[m], and ways: int8[m], the codec if it takes
    many a call, else ONE_BY_ONE; with room for n.
    Returns (m; the numbers of wanted batches of magic 3, of magic 0 and 1 without codec, and of those that do not state
    their base offset).
    """
    n = batches.shape[0]
    m = n_v3 = n_plain = n_wrappers = 0
    for step in range(n):
        i = n - 1 - step if backwards else step
        batch = batches[i]
        body = bodies[i]
        start = batch.position - raw_position + BATCH_OVERHEAD
        end = batch.position - raw_position + batch.size
        body.start = start
        body.end = end
        body.base_offset = batch.base_offset
        body.base_timestamp = batch.base_timestamp
        body.in_scratch = False
        body.n_records = 0
        if not wanted[i]:
            continue
        body.n_records = batch.records_count
        codec = batch.attributes & CODEC_MASK
        n_v3 += batch.magic == 3
        n_plain += batch.magic < 2 and codec == 0
        n_wrappers += batch.base_offset < 0
        if codec != 0:
            at_once = many[codec] or (codec == CODEC_SNAPPY and end - start <= MOST_COMPRESSED)
            rows[m] = i
            starts[m] = start
            ends[m] = end
            ways[m] = codec if batch.magic == 2 and at_once else ONE_BY_ONE
            m += 1
    return m, n_v3, n_plain, n_wrappers


@kernel
def enter_unpacked(bodies: np.ndarray, rows: np.ndarray, ends: np.ndarray) -> None:
    """Enter in bodies: BODY[], at rows: int64[m], that they are in the scratch one after the other, up to ends:
    int64[m].
    """
    start = 0
    for k in range(rows.shape[0]):
        body = bodies[rows[k]]
        body.start = start
        body.end = ends[k]
        body.in_scratch = True
        start = ends[k]


@kernel
def lay_spans(bodies: np.ndarray, wanted: np.ndarray) -> tuple[int, int]:
    """Set first_span of bodies: BODY[n], one after the other. wanted: bool[n].

    Returns (number of spans, row of the first wanted body that cannot hold as many records as it claims, else -1).
    """
    n_spans = 0
    for i in range(bodies.shape[0]):
        body = bodies[i]
        if wanted[i] and body.n_records > (body.end - body.start) // MIN_RECORD_SIZE:
            return n_spans, i
        body.first_span = n_spans
        n_spans += body.n_records
    return n_spans, -1
