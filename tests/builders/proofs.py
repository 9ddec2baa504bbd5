"""Proofs as auditors check them: by the script of AUDIT.md, with bash and sha256sum."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_PAGE = Path(__file__).resolve().parents[2] / "jobs" / "audit" / "AUDIT.md"


def check_chain(proof: Path) -> str:
    """Return what the script of the page prints: nothing, or the first line that does not fit."""
    [script] = re.findall(r"^check_chain\(\) \{\n.*?^\}\n", _PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    command = ["bash", "-c", f'{script}check_chain "$1"', "-", str(proof)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == (3 if done.stdout else 0), done.stderr
    return done.stdout.strip()
