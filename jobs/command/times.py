"""Moments that a user types."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from jobs.errors import UsageError

MAX_TIME_MS: Final = 2**63 - 1  # of a Java long: what a record's timestamp can be


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of `1732190700000` or of an ISO 8601 time; without a zone it is UTC.

    Anything else is a UsageError.
    """
    if text.lstrip("-").isdecimal():
        if abs(int(text)) > MAX_TIME_MS:
            raise UsageError(message=f"no such time: {text}; expected milliseconds up to {MAX_TIME_MS}")
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            message=f"no such time: {text}; expected milliseconds since 1970, or ISO 8601 as 2026-11-21T14:05Z"
        ) from error
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
