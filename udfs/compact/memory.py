"""The most memory that a task's process has held."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")
_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has held since its program began.

    Linux: VmHWM of proc_pid_status(5). Elsewhere getrusage(2), which counts in bytes on macOS. On Linux it does not
    serve: its ru_maxrss outlives exec, so it would begin with the memory of whatever started the command.
    """
    if _STATUS.exists() and (found := _PEAK.search(_STATUS.read_text())):
        return int(found[1]) << 10
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10
