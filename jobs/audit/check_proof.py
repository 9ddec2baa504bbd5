"""`audit check-proof`: the chain of a proof."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lastkey.jobs.audit.proof import check
from lastkey.jobs.command.options import CheckProofOptions
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.reporting import JobReport, counted, labelled, moment
from lastkey.jobs.errors import MissingPathError


@dataclass(kw_only=True)
class ProofReport(JobReport):
    """Report on a proof."""

    path: str
    lines: int = 0
    sha256: str = ""  # of the last line
    whole: bool = True  # the chain
    header: dict[str, Any] = field(default_factory=dict)
    footer: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the report for programs."""
        return self.json_of(
            "audit check-proof",
            path=self.path,
            lines=self.lines,
            sha256=self.sha256,
            whole=self.whole,
            header=self.header,
            footer=self.footer,
            problems=self.problems_json(),
        )

    def to_text(self) -> str:
        """Return the report for people."""
        out = [f"{self.path}: {counted(self.lines, 'line')}, SHA-256 of the last row {self.sha256 or '-'}"]
        if not self.problems:
            out.append(f"audit {self.header.get('audit')} of {_places(self.header)}, {_time(self.header)}")
            out.append(f"keys looked for: {self.header.get('keys')}; result: {self.footer.get('result')}")
        out.append(f"chain: {'whole' if self.whole else 'broken'}")
        out += labelled("problem", self.problems)
        out += labelled("note", self.notes)
        out.append(self.last_lines())
        return "\n".join(out)


def _places(header: dict[str, Any]) -> str:
    """Return the places of a header, whoever wrote it."""
    places = header.get("places")
    return ", ".join(str(p.get("uri")) for p in places if isinstance(p, dict)) if isinstance(places, list) else "-"


def _time(header: dict[str, Any]) -> str:
    at = header.get("time_ms")
    return moment(at) if isinstance(at, int) else "-"


def run(options: CheckProofOptions, progress: Progress) -> ProofReport:
    """Check a proof."""
    began = time.perf_counter()
    report = ProofReport(path=options.proof)
    progress.doing("checking the chain")
    try:
        checked = check(Path(options.proof))
    except OSError as error:
        found = error.strerror or str(error)
        raise MissingPathError(path=options.proof, expected="a proof", found=found) from None
    progress.doing("")
    report.lines, report.header, report.footer = checked.lines, checked.header, checked.footer
    report.sha256 = checked.sha256
    report.other_problems += checked.problems
    report.whole = not checked.problems
    if checked.more_problems:
        report.other_problems.append(f"and {counted(checked.more_problems, 'more line')}")
    report.notes.append("whoever can write the file can also make its chain anew: check your signature of the file too")
    report.seconds["total"] = time.perf_counter() - began
    return report
