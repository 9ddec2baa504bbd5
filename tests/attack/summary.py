"""Options of the attacks, and their summary lines at the end of a run, one for each group. README.md has more.

./spark-submit.sh test -m attack                                    each group's own few cases, as in CI
./spark-submit.sh test -m attack --attack-cases 1000 --attack-seed 7
./spark-submit.sh test tests/attack/test_corruption.py -k lookup --attack-case 'v2-gzip/t-0/...0.log/flip/61.3'
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TypeVar

import pytest

from tests.attack.forked import Tried

PROPERTY = "attack"
C = TypeVar("C")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("attack")
    group.addoption(
        "--attack-cases", type=number_of_cases, help="number of cases in each group (default: few, by group)"
    )
    group.addoption("--attack-seed", type=int, default=1, help="seed of the cases (default: 1)")
    group.addoption("--attack-case", help="run only this case, by the name that a failure prints")
    group.addoption("--attack-known", action="store_true", help="the model also fails at known defects")
    group.addoption("--attack-keep", action="store_true", help="add inputs that fuzzing finds to the corpus")


def number_of_cases(word: str) -> int:
    """Return a number of cases; a group without cases would prove nothing."""
    if (n := int(word)) < 1:
        raise ValueError
    return n


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the lines of all groups, which come with the reports of the tests, from other processes too."""
    lines = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in getattr(report, "user_properties", ())
        if name == PROPERTY
    ]
    if not lines:
        return
    terminalreporter.section(f"attacks: seed {config.getoption('--attack-seed')}")
    for line in sorted(lines):
        terminalreporter.write_line(line)


def n_cases(request: pytest.FixtureRequest, few: int) -> int:
    """Return how many cases a group tries: as many as the command line says, or its own few."""
    n: int = request.config.getoption("--attack-cases") or few
    return n


def chosen(request: pytest.FixtureRequest, cases: Iterable[C], few: int, named: Callable[[str], C]) -> Iterator[C]:
    """Yield the first cases of a group, or the one that the command line names."""
    name = request.config.getoption("--attack-case")
    return iter([named(name)]) if name else islice(cases, n_cases(request, few))


def summary_line(
    group: str,
    counts: Mapping[str, int],
    of: int,
    crashes: int,
    hangs: int,
    peak_bytes: int = 0,
    what: str = "damaged inputs",
) -> str:
    """Return the summary of one group. counts: verdict -> number; of: number of all cases (0: no end); what: their
    name.
    """
    tried = sum(counts.values()) + crashes + hangs
    ended = ", ".join(f"{n:,} {verdict}" for verdict, n in counts.items() if n)
    peak = f", peak {peak_bytes / (1 << 20):,.0f} MiB" if peak_bytes else ""
    among = f" of {of:,}" if of else ""
    return f"{group}: {tried:,} {what}{among}: {ended}, {crashes:,} crashes, {hangs:,} hangs{peak}"


def tell(request: pytest.FixtureRequest, line: str) -> None:
    """Print this line at the end of the run."""
    request.node.user_properties.append((PROPERTY, line))


def again(request: pytest.FixtureRequest, case: str) -> str:
    """Return the command that tries one case of the test alone."""
    file = request.node.path.relative_to(request.config.rootpath)
    return f"./spark-submit.sh test '{file}::{request.node.name}' --attack-case '{case}'"


def judged(
    request: pytest.FixtureRequest, group: str, tried: Tried, of: int, what: str = "damaged inputs", more: str = ""
) -> Tried:
    """Report a group's result, and fail if one of its cases failed. of: number of all cases (0: no end)."""
    line = summary_line(group, tried.counts, of, tried.crashes, tried.hangs, tried.peak_bytes, what) + more
    tell(request, line)
    message = "".join(f"\n{again(request, case)}\n    {failure}" for case, failure in tried.failures)
    assert not tried.failures, f"{line}{message}"
    assert tried.total, "no case ran"
    return tried
