"""Fuzzing of readers, codecs, side files and typed words: by coverage, from a corpus that is kept.

    ./spark-submit.sh test tests/attack/test_fuzz.py --attack-cases 1000000 --attack-keep    more; keeps what it finds

The fuzzer runs in a process of its own with kernels as plain Python, so that it sees which of their lines ran. Its kept
inputs are tried with compiled kernels too, which must give the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.attack.corrupting import MEMORY_BYTES
from tests.attack.forked import try_all
from tests.attack.fuzz_targets import CORPUS, MOST_BYTES, TARGETS, corpus, digest
from tests.attack.judge import VERDICTS
from tests.attack.summary import again, n_cases, tell
from tests.builders.shared import shared_folder

FEW = 300  # inputs beyond the corpus
_MOST_KEPT_BYTES = 400 << 10
_NAMES = list(TARGETS)


def _child(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.attack.fuzzer", *map(str, arguments)], cwd=Path(__file__).parents[2], text=True,
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"}, capture_output=True, check=False,
    )  # fmt: skip


def _flat(inputs: dict[str, bytes], folder: Path) -> Path:
    """Write inputs in the fuzzer's form: files that begin with the number of their target."""
    folder.mkdir()
    for name, data in inputs.items():
        (folder / name.replace("/", "-")).write_bytes(bytes([_NAMES.index(name.partition("/")[0])]) + data)
    return folder


def _whole_corpus() -> dict[str, bytes]:
    return {name: data for target in TARGETS for name, data in corpus(target).items()}


def _verdict(name: str, data: bytes) -> str:
    return VERDICTS[0 if TARGETS[name](data).problems else 2]


@pytest.mark.parametrize("target", TARGETS)
def test_each_corpus_input_ends_as_its_target_allows(target: str) -> None:
    """Known inputs stay: each ends as its target allows."""
    inputs = corpus(target)
    assert inputs
    for data in inputs.values():
        TARGETS[target](data)


def test_corpus_is_below_its_size_limit() -> None:
    kept = _whole_corpus()
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert sum(map(len, kept.values())) < _MOST_KEPT_BYTES
    for name, data in kept.items():
        assert len(data) <= MOST_BYTES, name
        assert name.endswith(f"/{_content_name(data)}"), name


@pytest.mark.slow
def test_compiled_kernels_equal_interpreted_kernels(tmp_path: Path) -> None:
    kept = _whole_corpus()
    done = _child("digests", _flat(kept, tmp_path / "inputs"))
    assert done.returncode == 0, done.stderr
    plain = json.loads(done.stdout)
    compiled = {name.replace("/", "-"): digest(TARGETS[name.partition("/")[0]](data)) for name, data in kept.items()}
    assert {name: (plain[name], result) for name, result in compiled.items() if plain[name] != result} == {}


def _fuzzed(folder: Path, n: int, seed: int) -> tuple[int, str]:
    """Run the fuzzer unless its folder exists; return its exit code and output. Its findings are written to the folder.

    It runs plain Python, so the tests with bounds checks need not wait for the same again.
    """
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        report_file = folder / "said"
        if not report_file.exists():
            (folder / "new").mkdir()
            done = _child("fuzz", _flat(_whole_corpus(), folder / "old"), folder / "new", n, seed)
            report_file.write_text(json.dumps([done.returncode, done.stderr]))
    code, text = json.loads(report_file.read_text())
    return code, text


@pytest.mark.attack
@pytest.mark.slow
def test_fuzzer_finds_no_failure(
    request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    option = request.config.getoption
    if option("--attack-case"):
        target, _, data = option("--attack-case").partition("/")
        TARGETS[target](bytes.fromhex(data))
        return
    folder = shared_folder(tmp_path_factory) / "fuzzed"
    returncode, stderr = _fuzzed(folder, n_cases(request, FEW), option("--attack-seed"))
    failed = [_named(path.read_bytes()) for path in sorted(folder.glob("failed-*"))]
    inputs = dict(_named(path.read_bytes()) for path in sorted((folder / "new").iterdir()) if path.stat().st_size)
    tried = try_all(
        inputs, lambda name: _verdict(name.partition("/")[0], inputs[name]), VERDICTS, MEMORY_BYTES, tmp_path
    )
    units = [int(n) for n in re.findall(r"stat::number_of_executed_units: *(\d+)", stderr)]
    compiled = ", ".join(f"{n:,} {what}" for what, n in tried.counts.items() if n) or "none"
    line = (
        f"fuzzing, {len(TARGETS)} targets: {sum(units):,} inputs, of which {len(inputs):,} reach more code than the "
        f"corpus; in compiled kernels: {compiled}, "
        f"{len(failed) + tried.crashes:,} crashes, {tried.hangs:,} hangs, peak {tried.peak_bytes >> 20:,} MiB"
    )
    tell(request, line)
    assert not failed, "".join(f"\n{again(request, case_argument(name, data))}" for name, data in failed) + stderr
    assert returncode == 0, stderr
    assert not tried.failures, "".join(
        f"\n{again(request, case_argument(name, inputs[name]))}\n    {what}" for name, what in tried.failures
    )
    assert sum(units), stderr
    if option("--attack-keep"):
        _keep(_whole_corpus() | inputs, tmp_path)


def case_argument(input_name: str, data: bytes) -> str:
    """Return an argument for `--attack-case`: target, and the input in hexadecimal."""
    return f"{input_name.partition('/')[0]}/{data.hex()}"


def _named(data: bytes) -> tuple[str, bytes]:
    target = _NAMES[data[0] % len(_NAMES)]
    return f"{target}/{_content_name(data[1:])}", data[1:]


def _content_name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _keep(inputs: dict[str, bytes], work: Path) -> None:
    """Make the smallest inputs that reach all lines the new corpus."""
    done = _child("smallest", _flat(inputs, work / "all"))
    assert done.returncode == 0, done.stderr
    kept = set(json.loads(done.stdout))
    for name, data in inputs.items():
        path = CORPUS / name
        if name.replace("/", "-") in kept:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        else:
            path.unlink(missing_ok=True)
