"""Options of the attacks, and what is printed of them at the end of a run: a line a group, counted by what ran.

./spark-submit.sh test -m attack                                    a small share, as in CI
./spark-submit.sh test -m attack --attack-seconds 600 --attack-seed 7
./spark-submit.sh test -m attack --attack-case 'v2-gzip/t-0/00000000000000000000.log/flip/61.3'
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.attack.forked import Tried

SECONDS = 2.0  # a group: all of them take less than a minute of CI
PROPERTY = "attack"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attack")
    group.addoption(
        "--attack-seconds", type=float, default=SECONDS, help="how long each group of attacks goes on (default: 2)"
    )
    group.addoption("--attack-seed", type=int, default=1, help="decides in which order cases are tried (default: 1)")
    group.addoption("--attack-case", help="try this case alone, by the name that a failure prints")
    group.addoption("--attack-keep", action="store_true", help="add to the corpus what fuzzing finds")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Counts come with the reports of the tests, from other processes too."""
    lines = [
        told
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, told in getattr(report, "user_properties", ())
        if name == PROPERTY
    ]
    if not lines:
        return
    seconds, seed = config.getoption("--attack-seconds"), config.getoption("--attack-seed")
    terminalreporter.section(f"attacks: seed {seed}, {seconds:g} s a group")
    for line in sorted(lines):
        terminalreporter.write_line(line)


def line_of(
    group: str,
    counts: Mapping[str, int],
    of: int,
    crashes: int,
    hangs: int,
    peak_bytes: int = 0,
    what: str = "damaged inputs",
) -> str:
    """The summary of one group. counts: verdict -> how many; of: how many cases there are (0: no end), and `what`."""
    tried = sum(counts.values()) + crashes + hangs
    ended = ", ".join(f"{n:,} {verdict}" for verdict, n in counts.items() if n)
    peak = f", peak {peak_bytes / (1 << 20):,.0f} MiB" if peak_bytes else ""
    among = f" of {of:,}" if of else ""
    return f"{group}: {tried:,} {what}{among}: {ended}, {crashes:,} crashes, {hangs:,} hangs{peak}"


def tell(request: pytest.FixtureRequest, line: str) -> None:
    """Print this line at the end of the run."""
    request.node.user_properties.append((PROPERTY, line))


def again(request: pytest.FixtureRequest, case: str) -> str:
    """The command that tries one case of the test alone."""
    file = request.node.path.relative_to(request.config.rootpath)
    return f"./spark-submit.sh test '{file}::{request.node.name}' --attack-case '{case}'"


def judged(
    request: pytest.FixtureRequest, group: str, tried: Tried, of: int, what: str = "damaged inputs", more: str = ""
) -> Tried:
    """Tell what became of a group's cases, and fail where one of them failed. of: how many there are (0: no end)."""
    line = line_of(group, tried.counts, of, tried.crashes, tried.hangs, tried.peak_bytes, what) + more
    tell(request, line)
    said = "".join(f"\n{again(request, case)}\n    {found}" for case, found in tried.failures)
    assert not tried.failures, f"{line}{said}"
    assert tried.total, "nothing was tried"
    return tried
