"""Records of two sides, A and its copy B, as the audits of mirrors see them; written apart from `jobs/audit`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """A record of one side. `value`: the content behind a digest; None: a tombstone."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: str | None
    origin: int = -1  # equal for the copies of one record

    def same(self, ignore_timestamps: bool) -> tuple[object, ...]:
        """Return what is equal for copies of one record of a key."""
        return (self.value,) if ignore_timestamps else (self.value, self.timestamp)
