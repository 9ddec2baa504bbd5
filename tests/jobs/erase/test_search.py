"""`erase --check`: a search for keys, erased or not: report, proof and table; options that do not go together."""

from __future__ import annotations

import hashlib
import hmac
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from lastkey.jobs.audit.keys import run as audit_keys
from lastkey.jobs.command.cli import main
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import AuditKeysOptions
from lastkey.jobs.erase.job import key_set
from lastkey.jobs.errors import UsageError
from tests.builders.archives import Lab
from tests.builders.erasures import erasure_rows
from tests.builders.logs import START_MS, write_partition
from tests.builders.trees import tree

pytestmark = pytest.mark.slow

GONE, THERE = "nobody-1", "person-1"
SECRET = b"a secret of the user's, 32 bytes."


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """Return a folder with an archive and a store of two generations; THERE is in both, and a tombstone in one."""
    archive = tmp_path / "archive" / "t-0"
    settings = {
        "defaults": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.0},
        "job": {"engine": "threads"},
    }
    for texts in ((f"{THERE}=1 a=1",), (f"{THERE}=1 a=1", f"{THERE}=- a=2")):
        shutil.rmtree(archive, ignore_errors=True)
        write_partition(archive, "||".join([*texts, ""]))
        assert Lab(None, tmp_path, settings).run(START_MS + len(texts)).exit_code == 0
    (tmp_path / "hmac.key").write_bytes(SECRET)
    return tmp_path


def check(capsys: pytest.CaptureFixture[str], lab: Path, *words: object) -> tuple[int, dict[str, Any]]:
    arguments = ("erase", "--check", "--store", lab / "store", "--hmac-key", lab / "hmac.key", "--engine", "threads")
    code = main([*map(str, (*arguments, *words)), "--json"])
    return code, json.loads(capsys.readouterr().out)


def proof_rows(proof: Path, kind: str) -> list[dict[str, Any]]:
    return [row for row in json.loads(proof.read_text()) if row["type"] == kind]


def key_digest(key: str) -> str:
    return hmac.digest(SECRET, key.encode(), hashlib.sha256).hex()


def test_search_reports_keys_that_were_never_erased(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, archive, proof = lab / "store", lab / "archive", lab / "proof.json"
    before = tree(store / "segments"), tree(archive)
    code, report = check(capsys, lab, "--key", THERE, "--key", GONE, "--proof", proof)
    assert (code, report["result"]) == (3, "incomplete")
    searched = report["searched"]
    # in the archive a value and a tombstone, in generation 1 the value, in generation 2 the tombstone
    assert searched["problems"] == [] and searched["summary"]["keys_found"] == 1
    assert searched["summary"]["found"] == 4 and searched["summary"]["tombstones"] == 2
    assert {(p["generation"], p["state"], p["found"]) for p in searched["places"]} == {
        ("", "", 2),
        ("1", "older", 1),
        ("2", "current", 1),
    }
    assert [k["key"] for k in searched["keys"]] == [f"#{key_digest(THERE)[:16]}"]
    findings = proof_rows(proof, "finding")
    assert {(r["generation"], r["state"], r["offset"], r["tombstone"], r["certainty"]) for r in findings} == {
        (None, "", 0, False, "found"), (None, "", 2, True, "found"), (1, "older", 0, False, "found"),
        (2, "current", 2, True, "found"),
    }  # fmt: skip
    assert {r["key"] for r in findings} == {key_digest(THERE)}
    assert [r["key"] for r in proof_rows(proof, "key")] == [key_digest(THERE), key_digest(GONE)]
    [footer] = proof_rows(proof, "footer")
    assert footer["result"] == "found" and footer["rows"]["finding"] == 4
    assert searched["proof"] == {
        "path": str(proof), "sha256": hashlib.sha256(proof.read_bytes()).hexdigest(), "result": "found",
        "rows": footer["rows"]["file"] + 8,
    }  # fmt: skip
    assert (tree(store / "segments"), tree(archive)) == before  # it changes nothing but its table
    assert [row["job"] for row in erasure_rows(store)] == ["erase --check"]
    code, report = check(capsys, lab, "--key", GONE)
    assert (code, report["result"], report["problems"]) == (0, "erased", [])


def test_a_proof_has_the_hash_of_each_searched_file(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    proof = lab / "proof.json"
    listed = {str(p) for root in (lab / "store", lab / "archive") for p in root.rglob("*") if p.is_file()}
    check(capsys, lab, "--key", GONE, "--proof", proof)
    files = {f"{r['root']}/{r['path']}": r for r in proof_rows(proof, "file")}
    assert files.keys() == listed
    for path, row in files.items():
        expected = None if row["searched_as"] is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()
        assert (row["sha256"], row["size"]) == (expected, Path(path).stat().st_size)
    assert sum(row["sha256"] is not None for row in files.values()) > 3


def test_report_has_only_hashes_of_keys(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys, proof = lab / "keys.hex", lab / "proof.json"
    keys.write_text("\n".join(key.encode().hex() for key in (THERE, GONE)) + "\n")
    code, report = check(capsys, lab, "--keys", keys, "--key-format", "hex", "--proof", proof)
    assert code == 3 and THERE not in json.dumps(report)
    assert THERE not in proof.read_text() and THERE.encode().hex() not in proof.read_text()
    rows = erasure_rows(lab / "store")
    assert rows[0]["keys"] == 2
    assert THERE not in str(rows) and THERE.encode().hex() not in str(rows)


def test_search_finds_keys_in_audit_tables(spark: Any, lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for hide in (False, True):
        audit_keys(AuditKeysOptions(str(lab / "archive"), audits=str(lab / "store"), hide_keys=hide), Silent())
    code, report = check(capsys, lab, "--key", THERE)
    held = [place for place in report["searched"]["places"] if place["searched_as"] == "table"]
    # the key is in an entry of its two records and in an older version of `audit_keys`; its hash is in an entry and in
    # the newest version
    assert code == 3 and {place["state"] for place in held} == {"current", "older"}, report
    assert sum(place["found"] for place in held) == 4
    for log in (lab / "store" / "state").glob("audit_*/_delta_log/*"):
        assert THERE.encode() not in log.read_bytes()  # so that they need not be searched


def test_key_in_damaged_bytes_is_not_reported_as_absent(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(lab / "archive")
    write_partition(lab / "archive" / "t-0", f"{{codec=gzip}} {GONE}=1 a=1")
    log = lab / "archive" / "t-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[-1] ^= 0xFF
    log.write_bytes(data)
    code, report = check(capsys, lab, "--key", GONE, "--proof", lab / "proof.json")
    assert (code, report["result"], report["searched"]["findings"]) == (3, "unknown", 0)
    assert [(p["kind"], p["path"]) for p in report["searched"]["problems"]] == [("crc", str(log))]
    assert proof_rows(lab / "proof.json", "footer")[0]["result"] == "unknown"


def test_missing_archive_counts_as_unread(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (lab / "archive").rename(lab / "moved")
    code, report = check(capsys, lab, "--key", GONE)
    assert code == 3 and [p["path"] for p in report["searched"]["problems"]] == [str(lab / "archive")]
    code, report = check(capsys, lab, "--no-archive", "--key", GONE)
    assert code == 0 and "the archive was not searched: --no-archive" in report["searched"]["notes"]


def test_incompatible_search_options_are_refused(lab: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        ([], "expected keys to look for, found none"),
        (["--key", "xyz", "--key-format", "hex"], "--key, the 1th one: expected hex"),
        (["--key", "k", "--proof", lab / "archive" / "t-0" / "proof"], "--proof"),
        (["--key", "k", "--proof", lab / "store" / "proof"], "--proof"),
        (["--keys", "none.txt"], "none.txt: expected a file of keys"),
        (["--key", "k", "--topics", "other"], "other"),
    ):
        code, report = check(capsys, lab, *words)
        assert code == 2 and message in json.dumps(report), report


def test_files_of_keys_are_parsed(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_bytes(b"a\nb\r\n\xff\xfe\na\n")
    assert key_set(str(path), ["", "c"], "text").keys.to_pylist() == [b"", b"c", b"a", b"b", b"\xff\xfe"]
    path.write_bytes(b"00\n0a0D\n")
    assert key_set(str(path), ["FF"], "hex").keys.to_pylist() == [b"\xff", b"\0", b"\n\r"]
    path.write_bytes(b"AAo=")
    assert key_set(str(path), [], "base64").keys.to_pylist() == [b"\0\n"]
    for data, form, message in (
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
        assert message in str(error.value) and "0g" not in str(error.value)
