"""What is said of a bucket that cannot be used, as the error of a job."""

from __future__ import annotations

import re
from typing import Final

from jobs import errors
from jobs.errors import JobError
from logformat import s3_access
from logformat.s3_access import AccessError, access_error

_KINDS: Final[dict[str, type[JobError]]] = {
    s3_access.UNREACHABLE: errors.UnreachableError,
    s3_access.NO_BUCKET: errors.MissingBucketError,
    s3_access.DENIED: errors.DeniedError,
    s3_access.REGION: errors.WrongRegionError,
    s3_access.NO_CREDENTIALS: errors.NoCredentialsError,
    s3_access.EXPIRED: errors.ExpiredCredentialsError,
    s3_access.BUSY: errors.BusyError,
}
_IN_TEXT: Final = re.compile(rf"{AccessError.__name__}: (S3.*?|s3://.*?): ({'|'.join(_KINDS)}): (.*)")


def job_error(error: Exception) -> JobError | None:
    """The error of a job that stands for this one, which may be Spark's text of what stopped a task; None: another."""
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
    return _KINDS[found.kind](path=found.where, expected=found.kind, found=found.found)
