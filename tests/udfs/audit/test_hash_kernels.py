"""Kernels of HMAC-SHA256 of many values: equal to what Python's own module gives."""

from __future__ import annotations

import hmac
import random

import numpy as np
import pyarrow as pa
import pytest

from lastkey.logformat.primitives.binary_arrays import spans_of
from lastkey.udfs.audit.hash_kernels import hmac_values, states_of


@pytest.mark.parametrize("size", [0, 16, 64, 65, 200])
def test_as_hashlib(size: int) -> None:
    """Values of every size around a block, and larger ones; keys of a block, less and more."""
    draw = random.Random(size)
    key, values = draw.randbytes(size), [draw.randbytes(n) for n in [*range(140), 1000, 65_536]]
    out = np.empty((len(values), 32), np.uint8)
    data, at = spans_of(pa.array(values, pa.binary()))
    hmac_values(data, at, states_of(key), out)
    assert [row.tobytes() for row in out] == [hmac.digest(key, value, "sha256") for value in values]
