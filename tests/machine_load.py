"""Print the machine's load beside a run's time, to distinguish a busy hour from a slow test."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

_STAT = Path("/proc/stat")  # absent on macOS: then only the load is printed


@dataclass(frozen=True)
class Processors:
    """Seconds since the machine's start, summed over its processors (proc(5))."""

    busy: float
    stolen: float  # taken by the host for other machines

    @classmethod
    def now(cls) -> Processors | None:
        """Read /proc/stat; None where the system has none."""
        if not _STAT.exists():
            return None
        user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, _STAT.read_text().split()[1:9])
        ticks = os.sysconf("SC_CLK_TCK")
        return cls((user + nice + system + irq + softirq) / ticks, steal / ticks)


class MachineLoad:
    """A pytest plugin: one line below the summary."""

    def __init__(self) -> None:
        self.load = os.getloadavg()[0]
        self.processors = Processors.now()

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the load before and after, and who used the processors meanwhile."""
        line = f"{os.cpu_count()} processors, load {self.load:.1f} before, {os.getloadavg()[0]:.1f} after"
        now = Processors.now()
        if now and self.processors:
            own = sum(os.times()[:4])  # with ended children, the test processes and what they started
            others = max(now.busy - self.processors.busy - own, 0)
            stolen = now.stolen - self.processors.stolen
            line += f"; processor seconds: {own:.0f} here, {others:.0f} elsewhere, {stolen:.0f} stolen by the host"
        terminalreporter.write_line(line)
