"""Side files of a generation: a broker trusts them, so restore copies only files that are equal to the written ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from lastkey.jobs.command import cli
from lastkey.logformat.side_files import producer_snapshot
from tests.builders.logs import START_MS, write_partition
from tests.builders.trees import read_tree

_CONFIG = '[defaults]\n"cleanup.policy" = "compact"\n"min.cleanable.dirty.ratio" = 0.0\n"index.interval.bytes" = 0\n'
_LOG = "a=1 b=2 | {pid=7 txn} d=1 e=1 | {pid=7 abort} | a=3 || c=1 a=4 | b=5 || c=2"
_TOPIC_ID = "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a store of one generation: two segments cleaned, one as it was."""
    root = tmp_path_factory.mktemp("made")
    write_partition(root / "archive" / "t-0", _LOG)
    (root / "archive" / "t-0" / "partition.metadata").write_text(_TOPIC_ID)
    (root / "lastkey.toml").write_text(_CONFIG)
    _run("compact", str(root / "archive"), "--store", str(root / "store"), *_how(root))
    return root


def _how(root: Path) -> list[str]:
    return ["--config", str(root / "lastkey.toml"), "--now", str(START_MS + 3_600_000)]


def _run(*words: str, code: int = 0) -> None:
    assert cli.main([*words, "--json"]) == code, words


def _names(made: Path) -> list[str]:
    [folder] = (made / "store" / "segments" / "t-0").iterdir()
    return sorted(
        path.name
        for path in folder.iterdir()
        if path.suffix != ".log" and path.name not in ("manifest.json", "committed")
    )


@pytest.mark.slow
def test_every_side_file_is_compared_with_its_checksum(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = _names(made)
    kinds = {name.rpartition(".")[2] for name in names}
    assert kinds >= {"index", "timeindex", "snapshot", "leader-epoch-checkpoint", "metadata"}
    for name in names:
        shutil.copytree(made / "store", store := tmp_path / name / "store")
        [path] = (store / "segments" / "t-0").glob(f"*/{name}")
        data = path.read_bytes()
        shown = f"{store}/{path.relative_to(store)}"
        for damaged in ([data[:-1] + bytes([data[-1] ^ 1]), data[:-1]] if data else []) + [data + b"\0", None]:
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            capsys.readouterr()
            _run("restore", "--store", str(store), "--output", str(tmp_path / "out"), code=3)
            error = json.loads(capsys.readouterr().out)["error"]
            assert shown in error["path"], (name, error)
            assert not (tmp_path / "out").exists()
            _run("verify", "--store", str(store), code=3)
            output = capsys.readouterr().out
            assert f"{path.parent.name}/{name}" in output, (name, damaged, output)


def test_file_written_by_no_run_is_not_restored(made: Path, tmp_path: Path) -> None:
    """A broker would believe it: by such a `.txnindex` readers do not see committed records."""
    shutil.copytree(made / "store", tmp_path / "store")
    _run("restore", "--store", str(tmp_path / "store"), "--output", str(tmp_path / "before"))
    [folder] = (tmp_path / "store" / "segments" / "t-0").iterdir()
    [index] = folder.glob("*.txnindex")
    shutil.copy(index, folder / f"{9:020}.txnindex")
    (folder / f"{5:020}.snapshot").write_bytes(b"")
    _run("restore", "--store", str(tmp_path / "store"), "--output", str(tmp_path / "after"))
    assert read_tree(tmp_path / "after") == read_tree(tmp_path / "before")


def test_forced_run_rewrites_damaged_side_files(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "store", (root := tmp_path) / "store")
    out = root / "before"
    _run("restore", "--store", str(root / "store"), "--output", str(out))
    [folder] = (root / "store" / "segments" / "t-0").iterdir()
    for name in _names(made):
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]) if data else b"\0")
    _run("compact", str(made / "archive"), "--store", str(root / "store"), *_how(made), "--force")
    _run("restore", "--store", str(root / "store"), "--output", str(root / "after"))
    assert read_tree(root / "after") == read_tree(out)
    _run("verify", "--store", str(root / "store"))


def test_forced_run_does_not_read_a_replaced_snapshot(made: Path, tmp_path: Path) -> None:
    """A snapshot without producers has a valid checksum but does not contain its offset."""
    shutil.copytree(made / "store", (root := tmp_path) / "store")
    _run("restore", "--store", str(root / "store"), "--output", str(root / "before"))
    [folder] = (root / "store" / "segments" / "t-0").iterdir()
    none = producer_snapshot.write(np.empty(0, producer_snapshot.ENTRY))
    for path in folder.glob("*.snapshot"):
        assert path.read_bytes() != none
        path.write_bytes(none)
    _run("compact", str(made / "archive"), "--store", str(root / "store"), *_how(made), "--force")
    _run("restore", "--store", str(root / "store"), "--output", str(root / "after"))
    assert read_tree(root / "after") == read_tree(root / "before")
