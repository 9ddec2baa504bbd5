"""NUMBA_BOUNDSCHECK=1: what a kernel reads or writes outside of an array is an IndexError, whichever way it goes there.

`tests/attack/test_bounds.py` lets the attacks run so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lastkey.logformat import cache_folder

ROOT = Path(cache_folder.__file__).resolve().parents[1]

# Each way to memory that kernels have, inside of an array of 16 bytes and by one byte outside of it
WAYS = """
import json, os, sys
import numpy as np
from lastkey.logformat.batches.pread_kernels import walk_headers
from lastkey.logformat.jit import kernel
from lastkey.logformat.layout import BATCH
from lastkey.logformat.primitives import memory_kernels as memory
from lastkey.logformat.primitives.crc32c import crc32c_range

load_u64, load_i64, load_i32, load_i16 = memory.load_u64_le, memory.load_i64, memory.load_i32, memory.load_i16
store_i64, store_i32, store_i16, copy = memory.store_i64, memory.store_i32, memory.store_i16, memory.copy_bytes

@kernel
def u64(a, p): return load_u64(a, p)
@kernel
def i64(a, p): return load_i64(a, p)
@kernel
def i32(a, p): return load_i32(a, p)
@kernel
def i16(a, p): return load_i16(a, p)
@kernel
def put64(a, p): store_i64(a, p, 1)
@kernel
def put32(a, p): store_i32(a, p, np.int32(1))
@kernel
def put16(a, p): store_i16(a, p, np.int16(1))
@kernel
def copied_from(a, p): copy(np.zeros(64, np.uint8), 0, a, p, 8)
@kernel
def copied_to(a, p): copy(a, p, np.zeros(64, np.uint8), 0, 8)
@kernel
def checksum(a, p): return crc32c_range(a, p, p + 8)
@kernel
def index(a, p): return a[p]
@kernel
def field(a, p): return a[p].size

def tried(way, array, position):
    try:
        way(array, position)
    except IndexError:
        return "outside"
    return "inside"

answers = {}
for way, size in ((u64, 8), (i64, 8), (i32, 4), (i16, 2), (put64, 8), (put32, 4), (put16, 2), (copied_from, 8),
                  (copied_to, 8), (checksum, 8), (index, 1)):
    positions = [0, 16 - size, 17 - size, *([-1] if way is not index else [])]
    answers[way.__name__] = [tried(way, np.zeros(16, np.uint8), p) for p in positions]
answers["field"] = [tried(field, np.zeros(2, BATCH), p) for p in (0, 1, 2)]
json.dump(answers, sys.stdout)
"""

LAST_CHECK = "    if length - position < LOG_OVERHEAD:\n        return MORE, 0, 0, 0\n"
WALK = """
import numpy as np
from lastkey.logformat.batches.chunks import NO_END
from lastkey.logformat.batches.walk_kernels import walk_batches
from lastkey.logformat.layout import BATCH
walk_batches(np.zeros(5, np.uint8), 5, 0, -1, NO_END, True, np.empty(1, BATCH))
"""


def _run(code: str, root: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache), "PYTHONPATH": str(root)}
    script = cache.with_suffix(".py")  # numba keeps no kernel of a `-c`
    script.write_text(code)
    return subprocess.run(
        [sys.executable, str(script)], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "kernels"


@pytest.mark.slow
def test_every_kind_of_out_of_bounds_access_is_detected(cache: Path) -> None:
    done = _run(WAYS, ROOT, cache)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert len(report) == 12
    for way, (first, last, *others) in report.items():
        assert (first, last) == ("inside", "inside"), way
        assert set(others) == {"outside"}, way


@pytest.mark.slow
@pytest.mark.parametrize("planted", [False, True])
def test_out_of_bounds_read_of_a_changed_kernel_is_detected(tmp_path: Path, cache: Path, planted: bool) -> None:
    """A kernel without its check that a length field is there, and a file that is shorter."""
    for name in ("lastkey", "logformat"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    kernels = tmp_path / "logformat" / "batches" / "walk_kernels.py"
    source = kernels.read_text()
    assert source.count(LAST_CHECK) == 1
    kernels.write_text(source.replace(LAST_CHECK, "") if planted else source)
    done = _run(WALK, tmp_path, cache)
    assert done.returncode == int(planted), done.stderr
    assert ("IndexError: bytes outside of the array" in done.stderr) == planted


@pytest.mark.process
def test_checked_kernels_have_a_separate_cache(tmp_path: Path, cache: Path) -> None:
    """Numba's cache does not look whether a kernel was compiled with checks."""
    code = "from lastkey.logformat import jit; print(jit.CHECKED, jit.state_of_sources())"
    checked = _run(code, ROOT, cache).stdout.split()
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True,
        env={name: value for name, value in os.environ.items() if name != "NUMBA_BOUNDSCHECK"},
    ).stdout.split()  # fmt: skip
    assert (checked[0], other[0]) == ("True", "False")
    assert checked[1] == f"{other[1]}-checked"
