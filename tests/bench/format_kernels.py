"""Kernels that encode records on the way from magic 2 to magic 3, one change after the other (`format_savings`)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from lastkey.logformat.batches.header_kernels import size_of_header_v3
from lastkey.logformat.batches.span_kernels import Run
from lastkey.logformat.jit import inline, kernel
from lastkey.logformat.primitives.memory_kernels import copy_bytes
from lastkey.logformat.primitives.varint_kernels import size_of_varlong, write_varlong

# Parts that a record loses at each step
NO_ATTRIBUTES: Final = 0
NO_LENGTH: Final = 1
STEPS: Final = 2  # steps and gaps instead of deltas


@kernel
def encode_rows(run: Run, step: int, out: np.ndarray, ends: np.ndarray) -> None:
    """Encode the records of the wanted batches, one body behind the other.

    out: uint8[all their bodies, and 10 bytes more a record], written; ends: int64[n], written: end of each body (of the
    one before it for the others).
    """
    at = 0
    for i in range(run.bodies.shape[0]):
        body = run.bodies[i]
        if run.wanted[i]:
            if body.in_scratch:
                at = _encode(run.scratch, body, run.spans, step, out, at)
            else:
                at = _encode(run.raw, body, run.spans, step, out, at)
        ends[i] = at


@inline
def _encode(buf: np.ndarray, body: Any, spans: np.ndarray, step: int, out: np.ndarray, at: int) -> int:
    timestamp = 0
    offset = -1
    for row in range(body.first_span, body.first_span + body.n_records):
        span = spans[row]
        time: int = span.timestamp_delta
        number: int = span.offset_delta
        if step == STEPS:
            time -= timestamp
            number -= offset + 1
        rest: int = span.end - span.rest
        if step == NO_ATTRIBUTES:
            at = write_varlong(out, at, size_of_varlong(time) + size_of_varlong(number) + rest)
        at = write_varlong(out, at, time)
        at = write_varlong(out, at, number)
        copy_bytes(out, at, buf, span.rest, rest)
        at += rest
        timestamp = span.timestamp_delta
        offset = span.offset_delta
    return at


@kernel
def header_sizes(batches: np.ndarray, out: np.ndarray) -> None:
    """Measure headers of magic 3 for BATCH[n], without the size of a first section: out int64[n], written."""
    for i in range(batches.shape[0]):
        b = batches[i]
        out[i] = size_of_header_v3(b.last_offset - b.base_offset, b.base_timestamp, b.max_timestamp, 0) - 1
