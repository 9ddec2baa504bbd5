"""A fuzzer's process: it makes new inputs from old ones by the lines that they reach, also in kernels (plain Python).
    NUMBA_DISABLE_JIT=1 python -m tests.attack.fuzzer fuzz OLD NEW CASES SEED    inputs that reach more come into NEW
    NUMBA_DISABLE_JIT=1 python -m tests.attack.fuzzer smallest FOLDER              names of those that reach all
    NUMBA_DISABLE_JIT=1 python -m tests.attack.fuzzer digests FOLDER               the output of each one

A file's first byte is the number of its target. atheris (libFuzzer) leads; without a wheel of it, chance does.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

LEAD = find_spec("atheris") is not None
_SEEN = ("/logformat/", "/udfs/decode/", "/jobs/command/parse.py")
_TIMEOUT_SECONDS = 20
_MOST_MIB = 1024


def _run_one() -> Callable[[bytes], str]:
    """Import the targets so that atheris sees their lines; return a function that runs one input."""
    context: Any = nullcontext()
    if LEAD and "fuzz" in sys.argv:
        import atheris

        context = atheris.instrument_imports(
            include=["lastkey.logformat", "lastkey.udfs.decode", "lastkey.jobs.command.parse"],
            enable_loader_override=False,
        )
    with context:
        from tests.attack import plain_kernels

        plain_kernels.install()
        from tests.attack.fuzz_targets import TARGETS, digest

    targets = list(TARGETS.values())

    def run(data: bytes) -> str:
        return digest(targets[data[0] % len(targets)](data[1:])) if data else ""

    return run


def _fuzz(old: Path, new: Path, n: int, seed: int) -> None:
    run = _run_one()
    from tests.attack.fuzz_targets import MOST_BYTES

    if not LEAD:
        _by_chance(run, old, new, n, seed)
        return
    import atheris

    options = {
        "runs": n + len(list(old.iterdir())), "seed": seed, "max_len": MOST_BYTES, "timeout": _TIMEOUT_SECONDS,
        "rss_limit_mb": _MOST_MIB, "len_control": 20, "artifact_prefix": f"{new.parent}/failed-",
        "print_final_stats": 1,
    }  # fmt: skip
    arguments = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *arguments, str(new), str(old)], run)
    atheris.Fuzz()


def _by_chance(run: Callable[[bytes], str], old: Path, new: Path, n: int, seed: int) -> None:
    rng, inputs = random.Random(seed), [path.read_bytes() for path in sorted(old.iterdir())]
    for _ in range(n):
        data = _changed(rng.choice(inputs), rng)
        try:
            run(data)
        except Exception:
            (new.parent / "failed-crash").write_bytes(data)
            raise
    print(f"stat::number_of_executed_units: {n}\nstat::new_units_added: 0", file=sys.stderr)


def _changed(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randint(0, len(out))
        match rng.randrange(3):
            case 0:
                out[at : at + 1] = rng.randbytes(1)
            case 1:
                out[at:at] = rng.randbytes(rng.randint(1, 9))
            case _:
                del out[at : at + rng.randint(1, 9)]
    return bytes(out)


def _smallest(folder: Path) -> list[str]:
    """Return the names of inputs, smallest first, that each reach a line by a way that none before did."""
    run = _run_one()
    reached: set[Any] = set()
    kept = []
    for path in sorted(folder.iterdir(), key=lambda path: (path.stat().st_size, path.name)):
        data = path.read_bytes()
        coverage = {(data[0], *way) for way in _ways(lambda data=data: run(data))}  # type: ignore[misc]
        if not coverage <= reached:
            reached |= coverage
            kept.append(path.name)
    return kept


def _ways(work: Callable[[], object]) -> set[Any]:
    """Return the steps from line to line that the work takes."""
    ways: set[Any] = set()

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if not any(part in code.co_filename for part in _SEEN):
            return None
        before = 0

        def line(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal before
            ways.add((code.co_filename, before, frame.f_lineno))
            before = frame.f_lineno
            return line

        return line

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(None)
    return ways


if __name__ == "__main__":
    what, folder, *rest = sys.argv[1:]
    if what == "fuzz":
        # libFuzzer bounds ru_maxrss: a started process inherits it, a forked one does not
        if pid := os.fork():
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        _fuzz(Path(folder), Path(rest[0]), int(rest[1]), int(rest[2]))
    elif what == "smallest":
        json.dump(_smallest(Path(folder)), sys.stdout)
    else:
        run_one = _run_one()
        json.dump({path.name: run_one(path.read_bytes()) for path in sorted(Path(folder).iterdir())}, sys.stdout)
