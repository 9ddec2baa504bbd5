"""crc32c against published values and google-crc32c; its kernels out of the disk cache."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lastkey.logformat.primitives import crc32c as module
from lastkey.logformat.primitives.crc32c import crc32c_extend, crc32c_range

RFC_3720 = [  # appendix B.4
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


@pytest.mark.parametrize(("data", "expected"), RFC_3720)
def test_crc32c_has_the_published_values(data, expected):
    assert crc32c_extend(0, np.frombuffer(data, np.uint8)) == expected
    assert crc32c_range(np.frombuffer(b"abc" + data + b"xyz", np.uint8), 3, 3 + len(data)) == expected


@settings(deadline=None)  # the first example compiles
@given(st.binary(min_size=1, max_size=400), st.data())
def test_crc32c_accepts_read_only_and_writable_arrays(data, draw):
    start = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(start, len(data)))
    expected = google_crc32c.value(data[start:end])
    assert crc32c_range(np.frombuffer(data, np.uint8), start, end) == expected
    assert crc32c_range(np.frombuffer(bytearray(data), np.uint8), start, end) == expected


@pytest.mark.parametrize(
    "features", [{}, {"avx": True, "pclmul": True}, {"avx": True, "pclmul": True, "vpclmulqdq": True}]
)
def test_crc32c_functions_of_each_processor_give_the_published_values(features):
    function = module._function(module._LIBRARY, features)
    function.restype = ctypes.c_uint32
    for data, expected in RFC_3720:
        assert function(data, len(data), ctypes.c_uint32(0xFFFFFFFF)) ^ 0xFFFFFFFF == expected


def test_crc32c_of_each_size_extends_that_of_the_previous_size():
    for size in (*range(600), 4095, 100_003):
        data = np.random.default_rng(size).bytes(size)
        checksum = crc32c_extend(0x8A9136AA, np.frombuffer(data, np.uint8))
        assert checksum == google_crc32c.extend(0x8A9136AA, data), size


def test_crc32c_of_more_bytes_than_one_library_call_accepts():
    part, expected = bytes(1 << 27), 7
    for _ in range(16):
        expected = google_crc32c.extend(expected, part)
    assert crc32c_extend(7, np.zeros((1 << 31) + 5, np.uint8)) == google_crc32c.extend(expected, bytes(5))


KERNELS = """
import numpy as np
from lastkey.logformat.primitives.crc32c import crc32c_range
from lastkey.logformat.jit import kernel

@kernel
def both(buf):
    return crc32c_range(buf, 0, 9) + crc32c_range(buf, 9, len(buf))
"""

RUN = """
import numpy as np, kernels
assert kernels.both(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283
print(sum(kernels.both.stats.cache_hits.values()), sum(kernels.both.stats.cache_misses.values()))
"""


@pytest.mark.slow
def test_new_process_loads_kernels_from_the_disk_cache(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    root = Path(module.__file__).parents[2]
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)]),
    }
    seen = [
        subprocess.run([sys.executable, "-c", RUN], env=environment, check=True, capture_output=True, text=True).stdout
        for _ in range(2)
    ]
    assert [line.split() for line in seen] == [["0", "1"], ["1", "0"]]
