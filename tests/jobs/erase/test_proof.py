"""Proofs: JSON, a row a line, that their owner alone can read."""

from __future__ import annotations

import hashlib
import json

import pytest

from lastkey.jobs.erase.write_proof import new_proof


def test_proof_is_a_json_array_with_one_row_per_line(tmp_path):
    path = tmp_path / "proof.json"
    rows = [
        {"type": "header", "keys": 1},
        *({"type": "finding", "path": f'files/"{i}" \\ é \n\udc80', "offset": i or None} for i in range(3)),
        {"type": "footer", "rows": {"header": 1, "finding": 3}, "result": "found"},
    ]
    with new_proof(path) as proof:
        for row in rows[:-1]:
            proof.write(row["type"], **{name: row[name] for name in row if name != "type"})
        proof.write("footer", rows=dict(proof.counts), result="found")
    assert json.loads(path.read_text()) == rows
    assert len(path.read_text().splitlines()) == len(rows) + 2
    assert proof.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert path.stat().st_mode & 0o777 == 0o600


def test_killed_run_writes_no_proof(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_proof(tmp_path / "proof.json") as proof:
        proof.write("header")
        raise KeyboardInterrupt
    assert not (tmp_path / "proof.json").exists()
