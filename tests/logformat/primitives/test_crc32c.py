"""crc32c against published values and google-crc32c's own Python version; its kernels out of the disk cache."""

from __future__ import annotations

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
def test_published_values(data, expected):
    assert crc32c_extend(0, np.frombuffer(data, np.uint8)) == expected
    assert crc32c_range(np.frombuffer(b"abc" + data + b"xyz", np.uint8), 3, 3 + len(data)) == expected


@settings(deadline=None)  # the first example compiles
@given(st.binary(min_size=1, max_size=400), st.data())
def test_ranges_of_readonly_and_writable_arrays(data, draw):
    start = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(start, len(data)))
    expected = google_crc32c.value(data[start:end])
    assert crc32c_range(np.frombuffer(data, np.uint8), start, end) == expected
    assert crc32c_range(np.frombuffer(bytearray(data), np.uint8), start, end) == expected


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
def test_kernels_come_from_the_disk_cache_in_a_new_process(tmp_path):
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


def test_a_missing_library_is_an_error_that_says_where_it_was_sought(monkeypatch):
    monkeypatch.setattr(module, "_candidates", lambda: iter(()))
    with pytest.raises(ImportError, match=r"crc32c_extend: looked for google_crc32c\.libs/libcrc32c"):
        module._load()


def test_no_c_implementation(monkeypatch):
    monkeypatch.setattr(google_crc32c, "implementation", "python")
    with pytest.raises(ImportError, match="plain Python"):
        module._load()
