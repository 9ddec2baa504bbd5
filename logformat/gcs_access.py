"""Access to archives and stores in Google Cloud Storage, set up alike for pyarrow and delta-rs.

The libraries find credentials themselves: the file that GOOGLE_APPLICATION_CREDENTIALS names, that of `gcloud auth
application-default login`, the machine's account. STORAGE_EMULATOR_HOST is another server, which is asked without
credentials, as Google's own libraries do.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

from lastkey.logformat import silent_servers
from lastkey.logformat.access_error import BUSY, DENIED, EXPIRED, LOST, NO_BUCKET, NO_CREDENTIALS, UNREACHABLE

SCHEMES: Final = ("gs",)
ENDPOINT: Final = "STORAGE_EMULATOR_HOST"
SIGNS: Final = (
    (NO_BUCKET, r"NoSuchBucket|bucket does not exist|[Bb]ucket .*not (?:found|exist)"),
    (EXPIRED, r"invalid_grant|ExpiredToken|[Tt]oken .*expired"),
    (NO_CREDENTIALS, r"OAuth2 access token|Could not (?:load|find|create).*credentials|metadata\.google\.internal|"
                     r"Anonymous caller|token request|computeMetadata"),
    (DENIED, r"PERMISSION_DENIED|UNAUTHENTICATED|AccessDenied|\W40[13] (?:Forbidden|Unauthorized)|Invalid Credentials|"
             r"SignatureDoesNotMatch|lacked the necessary privileges"),
    (UNREACHABLE, r"[Cc]ould(?: not|n't) (?:connect|resolve)|[Cc]ouldn.t (?:connect|resolve)|Failed to connect|"
                  r"CURL error|DEADLINE_EXCEEDED|error sending request|HTTP error|client error \(\w+\)|"
                  r"operation timed out|error decoding response body"),
    (BUSY, r"UNAVAILABLE|RESOURCE_EXHAUSTED|INTERNAL:|SlowDown|rateLimitExceeded|\W429 |\W5\d\d "),
    (LOST, r"(?s:NOT_FOUND: .*function=\w*Upload)"),  # the server has forgotten it: it must begin anew
)  # fmt: skip
_WORDS: Final = re.compile(
    r"google::cloud::Status\((?:UNAVAILABLE|DEADLINE_EXCEEDED|UNAUTHENTICATED|PERMISSION_DENIED|RESOURCE_EXHAUSTED|INTERNAL"
    r"|NOT_FOUND: [^)]*bucket does not exist)|Generic GCS error"
)
_GOOGLES: Final = "https://storage.googleapis.com"
RETRY_SECONDS: Final = 8  # Google's library would try for a quarter of an hour


@dataclass(frozen=True)
class GcsAccess:
    """Settings that are known before any request."""

    endpoint: str  # a URL; empty: Google's own
    anonymous: bool


def gcs_access(uri: str = "") -> GcsAccess:
    """Read the environment. Raise pyarrow.ArrowInvalid for a bad endpoint."""
    host = os.environ.get(ENDPOINT, "").rstrip("/")
    url = host if "://" in host or not host else f"http://{host}"
    at = urlsplit(url)
    if url and (at.scheme not in ("http", "https") or not at.netloc or at.path or at.query):
        raise pa.ArrowInvalid(f"an endpoint ({ENDPOINT}) that is not http://HOST:PORT or https://HOST:PORT")
    return GcsAccess(url, bool(url) or uri.startswith("gs://anonymous@"))


def endpoint() -> str:
    """Return the endpoint that the environment names; empty: Google's own."""
    return gcs_access().endpoint


def is_ours(uri: str) -> bool:
    """Return whether a URI names a bucket as we read it."""
    return bool(bucket_of(uri))


def file_system(uri: str) -> tuple[Any, str]:
    """Return pyarrow's file system for a URI, and the path on it."""
    return _filesystem(gcs_access(uri)), bucket_path(uri)


def bucket_of(uri: str) -> str:
    """Return the bucket of a URI."""
    return uri.partition("://")[2].partition("/")[0].removeprefix("anonymous@")


def bucket_path(uri: str) -> str:
    """Return bucket and path of a URI."""
    return f"{bucket_of(uri)}/{unquote(uri.partition('://')[2].partition('/')[2])}".rstrip("/")


def named_at(uri: str) -> str:
    """Return the bucket of a URI with its endpoint, as errors show it."""
    return _named(bucket_of(uri))


def url_of(uri: str) -> str:
    """Return the address of the server."""
    return gcs_access(uri).endpoint or _GOOGLES


def delta_options(uri: str) -> dict[str, str]:
    """Return delta-rs's storage options. They override the environment.

    A commit is a PUT with `x-goog-if-generation-match: 0`, which Google refuses if the file exists.
    """
    access = gcs_access(uri)
    if not access.endpoint:
        return {"google_skip_signature": str(access.anonymous).lower()}
    # delta-rs asks for a token before it writes, even where it signs nothing; a key that says not to is its way out
    nobody = {"gcs_base_url": access.endpoint, "disable_oauth": True}
    key = json.dumps(nobody | dict.fromkeys(("client_email", "private_key", "private_key_id"), ""))
    return {"google_service_account_key": key, "allow_http": str(access.endpoint.startswith("http:")).lower()}


def hadoop_settings(uri: str) -> dict[str, str]:
    """Return what Google's connector for Hadoop must be told. Credentials are none of it: Google's library for Java
    finds them where that for C++ does.
    """
    access = gcs_access(uri)
    out = {
        "fs.gs.auth.type": "UNAUTHENTICATED" if access.anonymous else "APPLICATION_DEFAULT",
        "fs.gs.block.size": str(64 << 20),  # Hadoop's default is `64m`, which Google's connector cannot read
    }
    return out | ({"fs.gs.storage.root.url": f"{access.endpoint}/"} if access.endpoint else {})


def is_said(said: str) -> bool:
    """Return whether a message is one of the libraries' about Google's store."""
    return _WORDS.search(said) is not None or _place(said) is not None


def blamed(said: str) -> tuple[str, Callable[[], str | None] | None]:
    """Return the bucket that a message names, as errors show it, and a probe of it."""
    bucket, _, key = (_place(said) or "").partition("/")
    return _named(bucket), partial(_asked, bucket, key) if bucket else None


def _named(bucket: str) -> str:
    return f"gs://{bucket}" + (f" at {endpoint()}" if endpoint() else "")


def _asked(bucket: str, key: str) -> str | None:
    if why := silent_servers.why_no_answer(gcs_access().endpoint or _GOOGLES):
        return f"google::cloud::Status(UNAVAILABLE: Could not connect: {why})"
    filesystem = _filesystem(gcs_access())
    beside = "/".join(filter(None, (bucket, key.rpartition("/")[0], "-")))
    try:
        filesystem.get_file_info(pafs.FileSelector(beside, allow_not_found=True))
        if filesystem.get_file_info(bucket).type == pafs.FileType.NotFound:
            return "google::cloud::Status(NOT_FOUND: the bucket does not exist)"
    except OSError as error:
        return str(error)
    return None


def _place(said: str) -> str | None:
    """Return bucket and key of the URL that a message names."""
    url = re.escape(gcs_access().endpoint or _GOOGLES)
    found = re.search(rf"{url}/(?:(?:upload/|download/)?storage/v1/b/)?([^\s'?]*)", said)
    return unquote(found[1].replace("/o/", "/", 1)) if found else None


@cache
def _filesystem(access: GcsAccess) -> Any:
    at = urlsplit(access.endpoint)
    return pafs.GcsFileSystem(
        anonymous=access.anonymous,
        endpoint_override=at.netloc or None,
        scheme=at.scheme or None,
        retry_time_limit=timedelta(seconds=RETRY_SECONDS),
    )
