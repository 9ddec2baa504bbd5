"""Files that a user names: a command replaces only files of the kind that it writes, and writes through no link."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from lastkey.jobs.command.cli import main
from lastkey.jobs.command.whole_file import METRICS, NEW, PACK, PAGE, PLAN, POLICIES, Kind, check_file
from lastkey.jobs.errors import DONE, USAGE, UsageError
from tests.builders.logs import write_partition
from tests.builders.trees import files_in, tree

FROM = Path(__file__).resolve().parents[3] / "examples" / "topics-described.txt"


def packed(name: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo(name))
    return out.getvalue()


OURS = {
    METRICS: b"# TYPE lastkey_run_exit_code gauge\n",
    PAGE: b'<!DOCTYPE html>\n<p class="muted">Lastkey, audit of keys, 2026-01-01 00:00 UTC</p>',
    POLICIES: b"# Policies of 1 topic of a Kafka cluster, made by `policies` of Lastkey 0.1.0 from:\n",
    PLAN: b"orders,0,17\norders,1,4\n",
    PACK: packed("bin/python"),
}


@pytest.mark.parametrize("kind", [*OURS, NEW], ids=lambda kind: kind.name)
def test_only_a_missing_or_empty_file_or_one_of_its_own_kind_is_replaced(tmp_path: Path, kind: Kind) -> None:
    log = write_partition(tmp_path / "t-0", "a=1 b=2").logs[0].read_bytes()
    others = [data for of, data in OURS.items() if of is not kind]
    path = tmp_path / "file"
    check_file("--output", str(path), kind)
    for data in (*others, log, b"x", b"\x1f\x8b\x08", b"{}", packed("etc/passwd"), b"1,2\n"):
        path.write_bytes(data)
        with pytest.raises(UsageError, match=f"{path}: expected no file, or {kind.name}, found another file; name"):
            check_file("--output", str(path), kind)
    for data in (b"", OURS.get(kind, b"")):
        path.write_bytes(data)
        check_file("--output", str(path), kind)
        link = tmp_path / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        with pytest.raises(UsageError, match="found a symbolic link"):
            check_file("--output", str(link), kind)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(UsageError, match=f"expected no file, or {kind.name}, found"):
            check_file("--output", str(tmp_path / name), kind)


def test_no_command_replaces_a_file_of_an_archive_or_a_store(tmp_path: Path) -> None:
    """This includes commands that have neither an archive nor a store."""
    archive, store = tmp_path / "archive", str(tmp_path / "store")
    write_partition(archive / "t-0", "a=1 b=1||a=2||c=1||")
    compact = [
        "compact",
        str(archive),
        "--topics",
        "*",
        "--cleanup-policy",
        "compact",
        "--engine",
        "threads",
        "--sealed",
    ]
    assert main([*compact, "--force", "--store", store]) == DONE
    (tmp_path / "hmac.key").write_bytes(b"k" * 32)
    before = tree(tmp_path)
    logs = [*files_in(archive, "*/*.log")[:1], *files_in(tmp_path / "store", "**/manifest.json")]
    erase = ["erase", "--store", store, "--hmac-key", str(tmp_path / "hmac.key"), "--key", "zz", "--engine", "threads"]
    for path in map(str, (*logs, archive / "new", tmp_path / "store" / "new")):
        commands = (
            [*compact, "--store", store, "--metrics-file", path],
            ["vacuum", "--store", store, "--metrics-file", path],
            ["restore", "--store", store, "--output", str(tmp_path / "out"), "--metrics-file", path],
            ["verify", "--store", store, "--metrics-file", path],
            ["report", str(archive), "--store", store, "--output", path],
            ["audit", "failover", str(archive), f"{store}@1", "--audits", store, "--group", "g", "--output", path],
            [*erase, "--proof", path],
        )
        unknown = (["policies", str(FROM), "--output", path, "--replace"], ["pack", path, "--replace"])
        for words in (*commands, *(() if path.endswith("new") else unknown)):
            assert main(words) == USAGE, words
            assert tree(tmp_path) == before, words


def test_policies_command_replaces_its_own_file(tmp_path: Path) -> None:
    words = ["policies", str(FROM), "--output", str(tmp_path / "policies.toml")]
    assert main(words) == DONE
    assert main(words) == USAGE
    assert main([*words, "--replace"]) == DONE
    (tmp_path / "policies.toml").write_text('[defaults]\n"cleanup.policy" = "compact"\n')
    assert main([*words, "--replace"]) == USAGE
