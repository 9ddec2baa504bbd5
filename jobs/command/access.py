"""Errors of jobs for a bucket that cannot be used."""

from __future__ import annotations

import re
from typing import Final

from lastkey.jobs import errors
from lastkey.jobs.errors import JobError
from lastkey.logformat import s3_access
from lastkey.logformat.s3_access import AccessError, access_error

_KINDS: Final[dict[str, type[JobError]]] = {
    s3_access.UNREACHABLE: errors.UnreachableError,
    s3_access.NO_BUCKET: errors.MissingBucketError,
    s3_access.DENIED: errors.DeniedError,
    s3_access.REGION: errors.WrongRegionError,
    s3_access.NO_CREDENTIALS: errors.NoCredentialsError,
    s3_access.EXPIRED: errors.ExpiredCredentialsError,
    s3_access.BUSY: errors.BusyError,
    s3_access.UNUSABLE: errors.UnusableError,
}
_IN_TEXT: Final = re.compile(rf"{AccessError.__name__}: (S3.*?|(?:s3|gs|abfss|hdfs)://.*?): ({'|'.join(_KINDS)}): (.*)")


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
