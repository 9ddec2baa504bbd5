"""Erasures that are killed at each step: either not begun, or finished by the same command; never said to be done."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from lastkey.jobs import vacuum
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import VacuumOptions
from tests.builders.archives import COMPACT
from tests.builders.erasures import Erasures, erased_from, erasure_rows, find_keys, read_records
from tests.builders.leases import expire_leases
from tests.builders.logs import write_partition
from tests.builders.stopping import start
from tests.builders.trees import tree

pytestmark = pytest.mark.slow

TOML = """
[defaults]
"cleanup.policy" = "compact"
"min.cleanable.dirty.ratio" = 0.0
[job]
"engine" = "threads"
"wave.partitions" = 1
"""
STEPS = [  # (where, at which call, partitions without the key then)
    ("erasure written", 1, 0),
    ("log written", 1, 0),
    ("manifests written", 2, 1),  # the first wave is committed
    ("keys erased", 1, 2),
    ("places searched", 1, 2),
]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    world = Erasures(tmp_path_factory.mktemp("begun"), COMPACT)
    for name in ("t-0", "u-0"):
        write_partition(world.lab.archive / name, "ann=1 bob=1 || cem=1 | ann=2")
    assert world.compact().exit_code == 0
    assert world.hmac_key
    return world.root


def keys_by_partition(world: Erasures) -> dict[str, list[bytes | None]]:
    manifests = world.lab.state().current()[1]
    return {key[0]: [r.key for r in read_records(map(world.lab.path, rows))] for key, rows in manifests.items()}


@pytest.mark.parametrize(("step", "nth", "done"), STEPS)
def test_killed_erasure_is_completed_by_the_next_one(
    begun: Path, tmp_path: Path, step: str, nth: int, done: int
) -> None:
    world = Erasures(begun, COMPACT)
    shutil.rmtree(world.lab.store)
    assert world.compact().exit_code == 0
    archive, config, store = tree(world.lab.archive), tmp_path / "cleaner.toml", world.lab.store
    config.write_text(TOML)
    words = ("erase", "--store", store, "--key", "ann", "--hmac-key", world.hmac_key, "--config", config)
    run = start(tmp_path / "run", [*map(str, words)], step, nth=nth)
    run.wait_until_reached()
    run.kill()
    assert run.finish()[0] == -signal.SIGKILL
    assert sum(b"ann" not in keys for keys in keys_by_partition(world).values()) == done
    assert all({b"bob", b"cem"} <= set(keys) for keys in keys_by_partition(world).values())
    assert erasure_rows(store) == []
    assert tree(world.lab.archive) == archive
    expire_leases(store)
    report = world.erase("ann")
    assert (report.exit_code, report.result) == (0, "vacuum_needed"), report.to_text()
    assert keys_by_partition(world) == {"t": [b"bob", b"cem"], "u": [b"bob", b"cem"]}
    assert [row["job"] for row in erasure_rows(store)] == ["erase"]
    removed = [(name, 1, 2, [4], 2, [[0, 0], [3, 3]]) for name in ("t-0", "u-0")]
    assert removed == [row for row in erased_from(store) if row[0] in ("t-0", "u-0")]  # also of the killed run
    vacuum.run(VacuumOptions(str(store), erased=True), Silent())
    assert find_keys([b"ann"], store) == []
    assert world.erase("ann", check=True, no_archive=True).result == "erased"
