"""Kernel of keyed digests of records (SipHash)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lastkey.logformat.jit import kernel
from lastkey.logformat.primitives.siphash_kernels import siphash128


@kernel
def digest_spans(
    raw: NDArray[np.uint8],
    scratch: NDArray[np.uint8],
    bodies: np.ndarray,
    spans: np.ndarray,
    k0: np.uint64,
    k1: np.uint64,
    low: NDArray[np.uint64],
    high: NDArray[np.uint64],
) -> None:
    """Hash every record's bytes from the key on: key, value and headers, each with its length.

    bodies: BODY[n]; spans: SPAN[m], those of the bodies in order; k0, k1: SipHash key; low, high: uint64[m], written.
    """
    for i in range(bodies.shape[0]):
        body = bodies[i]
        for row in range(body.first_span, body.first_span + body.n_records):
            if body.in_scratch:
                low[row], high[row] = siphash128(scratch, spans[row].rest, spans[row].end, k0, k1)
            else:
                low[row], high[row] = siphash128(raw, spans[row].rest, spans[row].end, k0, k1)
