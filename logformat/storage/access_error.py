"""Error of a bucket that cannot be used at present, in four kinds, and the decisive words of a library's message.

The messages are those of the Rust crate object_store, which obstore and delta-rs both contain.
"""

from __future__ import annotations

import re
from typing import Final

# Kinds of failure, as messages word them
UNAVAILABLE = "is not available"  # no connection, a timeout, or a response that requests a later retry
NO_BUCKET = "there is no such bucket"
DENIED = "access is denied"  # the credentials are missing, wrong, or lack the permission
EXPIRED = "the credentials have expired"

_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_STATUS: Final = re.compile(r"status code: (\d{3})([^:\n]*)")
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>(?:\s*<Message>([^<]*)</Message>)?")
_NO_BUCKETS: Final = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "ResourceNotFound"}
_EXPIRED: Final = re.compile(r"Expired|invalid_grant|TokenRefreshRequired|specified time frame")
_DENIED: Final = re.compile(
    r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|RequestTimeTooSkewed|AuthorizationHeaderMalformed|"
    r"PermanentRedirect|redirect without LOCATION|IllegalLocationConstraint|[Cc]redential|[Pp]rofile|/token|metadata"
)
_UNAVAILABLE: Final = re.compile(r"HTTP error|error sending request|error decoding response body|client error \(")
_WHY: Final = re.compile(r'message: "([^"]+)"|kind: (TimedOut)|source: (TimedOut)|(IncompleteMessage)|error: "([^"]+)"')
_OBJECT_STORES: Final = re.compile(
    r"Generic (?:S3|MicrosoftAzure|GCS) error|Error performing [A-Za-z]+ |The operation lacked (?:the necessary|valid)|"
    r"no credentials found in chain"
)


def classify_message(message: str) -> str | None:
    """Return the kind of bucket failure that a message of object_store reports; None for any other message."""
    message = _plain(message)
    if _OBJECT_STORES.search(message) is None:
        return None
    status_match, code = _STATUS.search(message), _CODE.search(message)
    status = int(status_match[1]) if status_match else 0
    if code is not None and code[1] in _NO_BUCKETS:
        return NO_BUCKET
    if status in (408, 429) or status >= 500 or "NoSuchUpload" in message:
        return UNAVAILABLE
    if _EXPIRED.search(message):
        return EXPIRED
    if status in (401, 403) or (status in (0, 400) and _DENIED.search(message)):
        return DENIED
    return UNAVAILABLE if status == 0 and _UNAVAILABLE.search(message) else None


def in_one_line(message: str) -> str:
    """Return the decisive words of a library's message, which may have many lines and colours, in one line."""
    plain = re.split(r"\n +0: |\n\nDebug source:", _plain(message))[0]  # Rust's backtrace, its structure
    if code := _CODE.search(plain):
        words = " ".join(re.split(r"\nRequestId:", code[2] or "")[0].split()).strip(" .")
        return code[1] if words in ("", code[1]) else f"{code[1]}: {words}"
    if found := _STATUS.search(plain):
        return f"{found[1]}{found[2]}".strip()
    if _UNAVAILABLE.search(plain):
        why = _WHY.search(message)
        words = next(filter(None, why.groups()), "") if why else ""
        return {"TimedOut": "no answer in time", "IncompleteMessage": "the connection was closed"}.get(words) or (
            words or "error sending request"
        )
    lines = re.split(r"↳|\n", re.split(r"\n +0: |\n\nDebug source:", _COLOUR.sub("", message))[0])
    parts = [line.strip(" .") for line in lines if line.strip()]
    return ": ".join(dict.fromkeys(parts[-2:])) if parts else "no answer"


def _plain(message: str) -> str:
    """Return a message without colours, and without the lines into which delta-rs breaks it."""
    return re.sub(r"\s*\n\s*↳\s*", ": ", _COLOUR.sub("", message)).strip()
