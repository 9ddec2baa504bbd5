"""`audit erasure` as users run it: report, proof and table; hidden keys; options that do not go together."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lastkey.jobs.audit.keys import run as audit_keys
from lastkey.jobs.command.cli import main
from lastkey.jobs.command.options import AuditKeysOptions, AuditSource
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.store.tables import open_state
from tests.builders.archives import Lab
from tests.builders.logs import START_MS, write_partition
from tests.builders.pages import needs_nothing_else
from tests.builders.trees import tree

pytestmark = [pytest.mark.spark, pytest.mark.slow]

GONE, THERE = "nobody-1", "person-1"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an archive and a store of two generations; THERE is in both, and a tombstone in one."""
    root = tmp_path_factory.mktemp("erasure")
    archive = root / "archive" / "t-0"
    settings = {
        "defaults": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0},
        "job": {"engine": "threads"},
    }
    for texts in ((f"{THERE}=1 a=1",), (f"{THERE}=1 a=1", f"{THERE}=- a=2")):
        shutil.rmtree(archive, ignore_errors=True)
        write_partition(archive, "||".join([*texts, ""]))
        assert Lab(None, root, settings).run(START_MS + len(texts)).exit_code == 0
    return root


@pytest.fixture
def lab(spark: Any, made: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder. The archive that the store names has to be told."""
    return shutil.copytree(made, tmp_path / "lab")


def audit(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = main(["audit", "erasure", *map(str, words), "--json"])
    return code, json.loads(capsys.readouterr().out)


def rows_of(proof: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in json.loads(proof.read_text()) if row["type"] == kind]


def table_of(store: Path) -> list[dict[str, Any]]:
    files = open_state(str(store)).head("audit_erasure").files()
    return [row for path in files for row in pq.read_table(store / "state" / "audit_erasure" / path).to_pylist()]


def test_a_store_and_its_archive(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, proof, page = lab / "store", lab / "proof.json", lab / "page.html"
    before = tree(store), tree(lab / "archive")
    given = ("--store", store, "--archive", lab / "archive", "--audits", lab / "audits")
    code, told = audit(capsys, *given, "--key", THERE, "--key", GONE, "--proof", proof, "--output", page)
    assert code == 3 and told["problems"] == []
    # in the archive a value and a tombstone, in generation 1 the value, in generation 2 the tombstone
    assert told["summary"]["found"] == 4 and told["summary"]["tombstones"] == 2 and told["summary"]["keys_found"] == 1
    assert {(p["generation"], p["state"], p["found"]) for p in told["places"]} == {
        ("", "", 2),
        ("1", "older", 1),
        ("2", "current", 1),
    }
    assert [k["key"] for k in told["keys"]] == [THERE]
    found = rows_of(proof, "finding")
    assert {(r["generation"], r["state"], r["offset"], r["tombstone"], r["certainty"]) for r in found} == {
        (None, "", 0, False, "found"), (None, "", 2, True, "found"), (1, "older", 0, False, "found"),
        (2, "current", 2, True, "found"),
    }  # fmt: skip
    assert {bytes.fromhex(r["key"]).decode() for r in found} == {THERE}
    assert [bytes.fromhex(r["key"]).decode() for r in rows_of(proof, "key")] == [THERE, GONE]
    listed = {f"{r['root']}/{r['path']}" for r in rows_of(proof, "file")}
    assert listed == {str(p) for root in (store, lab / "archive") for p in root.rglob("*") if p.is_file()}
    [footer] = rows_of(proof, "footer")
    assert footer["result"] == "found" and footer["rows"]["finding"] == 4
    assert (tree(store), tree(lab / "archive")) == before  # it changes nothing but its tables
    rows = table_of(lab / "audits")
    assert len(rows) == 4 and {len(r["key"]) for r in rows} == {16} and {r["source"] for r in rows} == {str(store)}
    needs_nothing_else(page.read_text())
    assert told["proof"] == {
        "path": str(proof), "sha256": hashlib.sha256(proof.read_bytes()).hexdigest(), "result": "found",
        "rows": footer["rows"]["file"] + 8,
    }  # fmt: skip
    # again: its own tables of hashes are no finding; nor is what is not there
    code, told = audit(capsys, *given, "--key", GONE)
    assert (code, told["findings"], told["problems"]) == (0, 0, [])
    assert {row["exit_code"] for row in _runs(lab / "audits")} == {0, 3} and table_of(lab / "audits") == []


def _runs(store: Path) -> list[dict[str, Any]]:
    files = open_state(str(store)).head("audit_runs").files()
    return [row for path in files for row in pq.read_table(store / "state" / "audit_runs" / path).to_pylist()]


def test_hidden_keys_are_nowhere(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret, keys, proof = lab / "hmac.key", lab / "keys.hex", lab / "proof.json"
    secret.write_bytes(b"a secret of the user's, 32 bytes.")
    keys.write_text("\n".join(key.encode().hex() for key in (THERE, GONE)) + "\n")
    given = ("--store", lab / "store", "--archive", lab / "archive")
    code, told = audit(
        capsys, *given, "--keys", keys, "--key-format", "hex", "--hide-keys", "--hmac-key", secret, "--proof", proof
    )
    names = [hmac.digest(secret.read_bytes(), key.encode(), hashlib.sha256).hex() for key in (THERE, GONE)]
    assert code == 3 and [k["key"] for k in told["keys"]] == [f"#{names[0][:16]}"]
    assert [r["key"] for r in rows_of(proof, "key")] == names
    assert {r["key"] for r in rows_of(proof, "finding")} == {names[0]}
    assert {r["key"].hex() for r in table_of(lab / "store")} == {names[0]}
    written = [proof, *(lab / "store" / "state" / "audit_erasure").rglob("*.parquet")]
    for path in written:
        data = path.read_bytes() if path.suffix != ".parquet" else str(pq.read_table(path).to_pydict()).encode()
        assert THERE.encode() not in data and THERE.encode().hex().encode() not in data
    assert THERE not in json.dumps(told)


def test_keys_in_the_tables_of_other_audits(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive, audits = lab / "archive", lab / "audits"
    for hide in (False, True):
        source = AuditSource(archive=str(archive))
        audit_keys(AuditKeysOptions(source=source, audits=str(audits), hide_keys=hide), Silent())
    shutil.rmtree(archive / "t-0")
    write_partition(archive / "t-0", "a=1")
    code, told = audit(capsys, archive, "--audits", audits, "--key", THERE)
    held = {(place["place"], place["state"], place["searched_as"]) for place in told["places"]}
    # the keys are in two records and in an older version of `audit_keys`, their hashes in two records and in the newest
    assert code == 3 and held == {(str(audits), "current", "table"), (str(audits), "older", "table")}, told
    assert told["summary"]["found"] == 6
    for log in (audits / "state").glob("audit_*/_delta_log/*"):
        assert THERE.encode() not in log.read_bytes()  # so that they need not be searched


def test_damage_that_holds_the_key_is_not_read_and_the_key_not_gone(
    lab: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(lab / "archive")
    write_partition(lab / "archive" / "t-0", f"{{codec=gzip}} {THERE}=1 a=1")
    log = lab / "archive" / "t-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 0xFF
    log.write_bytes(data)
    code, told = audit(capsys, lab / "archive", "--key", THERE, "--proof", lab / "proof.json")
    assert (code, told["findings"]) == (3, 0)
    assert [(p["kind"], p["path"]) for p in told["problems"]] == [("crc", str(log))]
    assert rows_of(lab / "proof.json", "footer")[0]["result"] == "unknown"
    assert any("no table was written" in note for note in told["notes"])


def test_an_archive_that_is_gone_is_a_place_that_was_not_read(
    lab: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, moved = lab / "store", made / "moved"
    assert audit(capsys, "--store", store, "--key", GONE)[0] == 0  # the copy names the first archive, which is there
    (made / "archive").rename(moved)
    try:
        code, told = audit(capsys, "--store", store, "--key", GONE)
    finally:
        moved.rename(made / "archive")
    assert code == 3 and [p["path"] for p in told["problems"]] == [str(made / "archive")]
    code, told = audit(capsys, "--store", store, "--no-archive", "--key", GONE)
    assert code == 0 and "the archive was not searched: --no-archive" in told["notes"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["A"], "expected keys to look for, found none"),
        (["A", "--store", "S", "--key", "k"], "needs either ARCHIVE or --store"),
        (["--key", "k"], "needs either ARCHIVE or --store"),
        (["A", "--no-archive", "--key", "k"], "work only with --store"),
        (["--store", "S", "--archive", "A", "--no-archive", "--key", "k"], "--archive contradicts --no-archive"),
        (["A", "--key", "k", "--hide-keys"], "need each other"),
        (["A", "--key", "xyz", "--key-format", "hex"], "--key, the 1th one: expected hex"),
        (["A", "--key", "k", "--proof", "A/t-0/proof"], "--proof"),
        (["A", "--keys", "none.txt"], "none.txt: expected a file of keys"),
        (["none", "--key", "k"], "none: expected a folder"),
        (["A", "--key", "k", "--engine", "threads"], "--engine threads"),
        (["A", "--key", "k", "--topics", "other"], "other"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_partition(tmp_path / "A" / "t-0", "a=1")
    assert main(["audit", "erasure", *words]) == 2
    assert said in capsys.readouterr().err


def test_files_of_keys(tmp_path: Path) -> None:
    from lastkey.jobs.audit.key_files import key_set
    from lastkey.jobs.errors import UsageError

    path = tmp_path / "keys"
    path.write_bytes(b"a\nb\r\n\xff\xfe\na\n")
    assert key_set(str(path), ["", "c"], "text").keys.to_pylist() == [b"", b"c", b"a", b"b", b"\xff\xfe"]
    path.write_bytes(b"00\n0a0D\n")
    assert key_set(str(path), ["FF"], "hex").keys.to_pylist() == [b"\xff", b"\0", b"\n\r"]
    path.write_bytes(b"AAo=")
    assert key_set(str(path), [], "base64").keys.to_pylist() == [b"\0\n"]
    for data, form, said in (
        (b"a\n\nb\n", "text", "line 2: expected a key, found an empty line"),
        (b"\xef\xbb\xbfa\n", "text", "line 1: expected a key, found a byte order mark"),
        ("a\n".encode("utf-16"), "text", "line 1: expected a key, found a byte order mark"),
        (b"\xef\xbb\xbf61\n", "hex", "line 1: expected a key, found a byte order mark"),
        (b"00\n0g\n", "hex", "line 2: expected hex, found other characters"),
        (b"AA==\nA*==\n", "base64", "line 2: expected base64, found other characters"),
    ):
        path.write_bytes(data)
        with pytest.raises(UsageError) as error:
            key_set(str(path), [], form)  # type: ignore[arg-type]
        assert said in str(error.value) and "0g" not in str(error.value)
