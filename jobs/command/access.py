"""Errors of jobs for a bucket that cannot be used."""

from __future__ import annotations

import re
from typing import Final

from lastkey.jobs import errors
from lastkey.jobs.errors import JobError
from lastkey.logformat import access_error as kinds
from lastkey.logformat.access_error import AccessError
from lastkey.logformat.clouds import access_error

_KINDS: Final[dict[str, type[JobError]]] = {
    kinds.UNREACHABLE: errors.UnreachableError,
    kinds.NO_BUCKET: errors.MissingBucketError,
    kinds.DENIED: errors.DeniedError,
    kinds.REGION: errors.WrongRegionError,
    kinds.NO_CREDENTIALS: errors.NoCredentialsError,
    kinds.EXPIRED: errors.ExpiredCredentialsError,
    kinds.BUSY: errors.BusyError,
    kinds.LOST: errors.LostUploadError,
    kinds.UNUSABLE: errors.UnusableError,
}
_WHERE: Final = "(?:S3|Azure).*?|(?:s3|gs|az|hdfs)://.*?"
_IN_TEXT: Final = re.compile(rf"{AccessError.__name__}: ({_WHERE}): ({'|'.join(_KINDS)}): (.*)")


def job_error(error: Exception) -> JobError | None:
    """Return the job's error for a refused access, also in Spark's text of a failed task; None for any other error."""
    said = f"{type(error).__name__}: {error}"
    found: AccessError | None
    if isinstance(error, AccessError):
        found = error
    elif told := _IN_TEXT.search(said):
        found = AccessError(told[2], told[1], told[3])
    else:
        found = access_error(said)
    if found is None:
        return None
    return _KINDS[found.kind](path=found.where, reason=found.kind, found=found.found)
