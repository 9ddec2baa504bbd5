"""The attacks once more in a child whose kernels check the bounds of every access: none reads outside of its arrays.

The memory behind an array is nearly always readable, so such a read is invisible without these checks. An
IndexError fails the test, because no reader may report it as a problem.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack.summary import tell
from tests.builders.shared import SHARED, shared_folder

pytestmark = [pytest.mark.attack, pytest.mark.slow]

HERE = Path(__file__).parent
ATTACKS = ("test_corruption_in_memory.py", "test_corruption.py", "test_fuzz.py")
FUZZ = "tests/attack/test_fuzz.py"
_LINE = re.compile(r"^(?:corruption|fuzzing), .* crashes, .* hangs, .*$", re.MULTILINE)


def test_kernels_pass_their_tests_with_bounds_checks(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if request.config.getoption("--attack-case"):
        pytest.fail("a case is tried by its own test, with NUMBA_BOUNDSCHECK=1 before the command")
    asked = {name: request.config.getoption(name) for name in ("--attack-cases", "--attack-seed")}
    options = [f"{name}={value}" for name, value in asked.items() if value is not None]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"NUMBA_BOUNDSCHECK": "1", SHARED: str(shared_folder(tmp_path_factory))}
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", *(str(HERE / name) for name in ATTACKS), "-q", "-n", "0", *options,
         # the job `report` runs the same kernels
         "--deselect", "tests/attack/test_corruption.py::test_report_page_reports_or_ignores_each_damage",
         # test_each_corpus_input_ends_as_its_target_allows has these inputs
         "--deselect", f"{FUZZ}::test_compiled_kernels_equal_interpreted_kernels",
         "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'child'}"],
        cwd=request.config.rootpath, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    lines = [match[0] for match in _LINE.finditer(completed.stdout)]
    for line in lines:
        tell(request, f"bounds checked, {line}")
    assert completed.returncode == 0, (
        f"NUMBA_BOUNDSCHECK=1 before these commands:\n{completed.stdout[-20_000:]}{completed.stderr}"
    )
    assert lines, completed.stdout
