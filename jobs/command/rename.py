"""Other names of topics, by a pattern: REGEX=REPLACEMENT."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lastkey.jobs.errors import UsageError


@dataclass(frozen=True)
class Rename:
    """Pattern for whole names of topics, and the other name: groups of the pattern as \\1 or \\g<name>."""

    pattern: str
    replacement: str

    @staticmethod
    def of(text: str) -> Rename:
        """Return the parsed `REGEX=REPLACEMENT`. Raise UsageError."""
        pattern, _, replacement = text.rpartition("=")
        if not pattern:
            raise UsageError(message=f"--rename {text}: expected REGEX=REPLACEMENT, for example 'A\\.(.*)=\\1'")
        try:
            re.sub(pattern, replacement, "")
        except (re.error, IndexError) as error:
            raise UsageError(message=f"--rename {text}: {error}") from None
        return Rename(pattern, replacement)

    def name(self, topic: str) -> str | None:
        """Return the other name of a topic; None if the pattern does not match all of its name."""
        match = re.fullmatch(self.pattern, topic)
        return None if match is None else match.expand(self.replacement)
