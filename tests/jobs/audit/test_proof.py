"""Proofs: their chain by sha256sum, and what a check says of a file that was changed."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from lastkey.jobs.audit.check_proof import ProofReport, run
from lastkey.jobs.audit.proof import FORMAT, new_proof
from lastkey.jobs.command.options import CheckProofOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.errors import MissingPathError
from tests.builders.proofs import check_chain


def made(folder: Path, n: int = 6) -> Path:
    path = folder / "proof.jsonl"
    path.unlink(missing_ok=True)
    with new_proof(path) as proof:
        proof.write("header", format=FORMAT, audit="erasure", keys=1, places=[], time_ms=0, lastkey="0")
        for i in range(n):
            proof.write("finding", path=f'files/"{i}" \\ é \n', offset=i or None)
        proof.write("footer", rows=dict(proof.counts), result="found")
    return path


def checked(path: Path) -> ProofReport:
    report = run(CheckProofOptions(str(path)), Silent())
    report.to_text(), json.dumps(report.to_json())
    return report


def test_a_proof_is_whole_for_us_and_for_sha256sum(tmp_path):
    path = made(tmp_path)
    report = checked(path)
    assert (report.exit_code, report.lines) == (0, 8)
    assert check_chain(path) == ""
    assert path.stat().st_mode & 0o777 == 0o600
    assert [json.loads(line)["row"]["line"] for line in path.read_text().splitlines()] == list(range(1, 9))


def replaced(lines: list[bytes], old: bytes, new: bytes) -> list[bytes]:
    assert old in lines[3]
    return [*lines[:3], lines[3].replace(old, new), *lines[4:]]


CHANGES = {
    "changed": (lambda x: replaced(x, b'"offset":2', b'"offset":7'), ["line 4: row 4 was changed"]),
    "hash changed": (lambda x: replaced(x, x[3][11:75], b"0" * 64), ["line 4: row 4 was changed"]),
    "removed": (lambda x: x[:3] + x[4:], ["line 4: expected row 4, found row 5: row 4 is missing here"]),
    "three removed": (lambda x: x[:2] + x[5:], ["line 3: expected row 3, found row 6: rows 3 to 5 are missing"]),
    "added": (lambda x: [*x[:4], x[2], *x[4:]], ["line 5: expected row 5, found row 3: a row was added, or moved"]),
    "moved": (
        lambda x: [*x[:3], x[4], x[3], *x[5:]],
        ["line 4: expected row 4, found row 5", "line 5: expected row 6"],
    ),
    "end removed": (lambda x: x[:-1], ['line 7: expected a row of type "footer" at the end']),
    "begin removed": (
        lambda x: x[1:],
        ["line 1: expected row 1, found row 2", 'line 1: expected a row of type "header"'],
    ),
    "torn": (lambda x: [*x[:-1], x[-1][:-1]], ["line 8: expected {"]),
    "end twice": (lambda x: [*x, x[-1]], ["line 9: expected row 9, found row 8"]),
    "empty line": (lambda x: [*x[:3], b"\n", *x[3:]], ["line 4: expected {"]),
    "other JSON": (lambda x: replaced(x, b'{"sha256":"', b'{"sha256": "'), ["line 4: expected {"]),
    "empty": (lambda x: [], ['line 1: expected a row of type "header", found none']),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_done_to_a_proof_is_named_by_its_line(tmp_path, name):
    change, said = CHANGES[name]
    path = made(tmp_path)
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    report = checked(path)
    assert report.exit_code == 3
    for text in said:
        assert any(problem.startswith(text) for problem in report.problems), report.problems
    if "changed" in name:
        assert len(report.problems) == 1  # and no other line


def test_sha256sum_finds_the_changed_line_too(tmp_path):
    path = made(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'"offset":3,', b'"offset":4,'))
    assert check_chain(path) == "line 5"
    assert [problem.split(":")[0] for problem in checked(path).problems] == ["line 5"]


def test_any_change_of_any_byte_is_found_and_nothing_makes_the_check_fail(tmp_path):
    path, draw = made(tmp_path), random.Random(1)
    whole = path.read_bytes()
    for case in range(300):
        at, size = draw.randrange(len(whole)), draw.choice([0, 1, 1, 70, 300])
        new = draw.choice([b"", b"\n", b"\xff", b"{}", b"[" * 20_000, bytes([whole[at] ^ 1 << draw.randrange(8)])])
        data = whole[:at] + new + whole[at + size :]
        path.write_bytes(data)
        assert checked(path).exit_code == (0 if data == whole else 3), case


def test_a_chain_of_strange_rows_is_whole_and_can_be_shown(tmp_path):
    for places, time_ms in ((7, "x"), (["s"], None), ([{}], 10**30)):
        (tmp_path / "proof.jsonl").unlink(missing_ok=True)
        with new_proof(tmp_path / "proof.jsonl") as proof:
            proof.write("header", format=FORMAT, places=places, time_ms=time_ms)
            proof.write("footer", rows=dict(proof.counts))
        assert checked(tmp_path / "proof.jsonl").exit_code == 0


def test_a_chain_alone_is_no_proof(tmp_path):
    made(tmp_path)
    report = checked(made(tmp_path, n=5))  # a row less, with a chain of its own
    assert (report.exit_code, report.lines) == (0, 7)
    assert "can also make its chain anew" in report.notes[0]


def test_a_missing_proof(tmp_path):
    with pytest.raises(MissingPathError):
        checked(tmp_path / "none")


def test_a_killed_run_leaves_no_proof(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_proof(tmp_path / "proof.jsonl") as proof:
        proof.write("header")
        raise KeyboardInterrupt
    assert not (tmp_path / "proof.jsonl").exists()
