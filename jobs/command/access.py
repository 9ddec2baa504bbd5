"""Errors of jobs for a bucket that cannot be used."""

from __future__ import annotations

import re
from typing import Final

from lastkey.jobs import errors
from lastkey.jobs.errors import JobError, Kind
from lastkey.logformat.errors import AccessError
from lastkey.logformat.storage import access_error as kinds
from lastkey.logformat.storage.access_error import classify_message, in_one_line

_KINDS: Final[dict[str, Kind[JobError]]] = {
    kinds.UNAVAILABLE: errors.UNAVAILABLE,
    kinds.NO_BUCKET: errors.MISSING_BUCKET,
    kinds.DENIED: errors.DENIED,
    kinds.EXPIRED: errors.EXPIRED,
}
_IN_TEXT: Final = re.compile(rf"{AccessError.__name__}: ((?:s3|gs|az)://.*?): ({'|'.join(_KINDS)}): (.*)")
_URL: Final = re.compile(r"https?://[^\s?]+")


def job_error(error: Exception) -> JobError | None:
    """Return the job's error for an unusable bucket, also if only the text of a failed Spark task or of delta-rs
    reports the failure; None for any other error.
    """
    message = f"{type(error).__name__}: {error}"
    if isinstance(error, AccessError):
        where, kind, found = error.where, error.kind, error.found
    elif match := _IN_TEXT.search(message):
        where, kind, found = match[1], match[2], match[3]
    elif by_delta := classify_message(message):
        url = _URL.search(message)
        where, kind, found = f"the bucket at {url[0]}" if url else "the bucket", by_delta, in_one_line(message)
    else:
        return None
    return _KINDS[kind](path=where, reason=kind, found=found)
