"""Moments that a user types."""

from __future__ import annotations

from datetime import UTC, datetime

from jobs.errors import UsageError


def parse_time(text: str) -> int:
    """Milliseconds since 1970 of `1732190700000` or of an ISO 8601 time; without a zone it is UTC.

    Anything else is a UsageError.
    """
    if text.lstrip("-").isdecimal():
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
