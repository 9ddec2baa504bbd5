"""Access to archives and stores in S3, set up alike for the two libraries that use it: pyarrow and delta-rs.

The libraries find credentials themselves, and renew those that expire: AWS_ACCESS_KEY_ID and its like, then the profile
(AWS_PROFILE, ~/.aws), web identities, containers, the machine's role. delta-rs reads profiles only when told to
(`delta_options`); pyarrow does not support a profile that assumes a role.

This module finds endpoint and region in the environment and the profile, and gives them to both libraries: pyarrow
ignores a profile's endpoint, and neither reads a profile's region beside an endpoint. Amazon is asked for the region of
its buckets.

The two libraries report a failed request in different words; `access_error` understands both. Both retry for some
seconds by themselves.
"""

from __future__ import annotations

import configparser
import os
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

_ATTEMPTS: Final = 3  # pyarrow's; an attempt without an answer takes 3 seconds
_CONNECT_SECONDS: Final = 5
_REQUEST_SECONDS: Final = 8  # delta-rs: one request with its answer, which is small
_RETRY_SECONDS: Final = 8  # delta-rs: no attempt begins later
_RETRIES: Final = 6  # delta-rs

# Kinds of failure, as messages word them.
UNREACHABLE = "cannot be reached"
NO_BUCKET = "there is no such bucket"
DENIED = "access is denied"
REGION = "the bucket lies in another region"
NO_CREDENTIALS = "there are no credentials"
EXPIRED = "the credentials have expired"
BUSY = "the server is too busy"
UNUSABLE = "cannot be used from here"  # object stores other than S3, whatever the reason
_BAD_REQUEST: Final = "the request is refused"  # an answer without a body; `_asked` asks again

# Patterns in a library's words, in order: the first that matches decides.
_SIGNS: Final = (
    (NO_BUCKET, r"NoSuchBucket|NO_SUCH_BUCKET|Bucket '[^']*' not found"),
    (EXPIRED, r"ExpiredToken|EXPIRED_TOKEN|TokenRefreshRequired|RequestExpired|session has expired"),
    (NO_CREDENTIALS, r"no credentials found in chain|loading credentials|credential provider was not enabled|"
                     r"/latest/api/token|credentials? .*not (?:found|loaded)"),
    (REGION, r"PermanentRedirect|HTTP status 301|redirect without LOCATION|AuthorizationHeaderMalformed|"
             r"IllegalLocationConstraint|bucket is located in|TemporaryRedirect"),
    (DENIED, r"ACCESS_DENIED|AccessDenied|INVALID_ACCESS_KEY_ID|InvalidAccessKeyId|SignatureDoesNotMatch|"
             r"SIGNATURE_DOES_NOT_MATCH|InvalidToken|RequestTimeTooSkewed|REQUEST_TIME_TOO_SKEWED|"
             r"AllAccessDisabled|AccountProblem|HTTP status 40[13]|40[13] (?:Forbidden|Unauthorized)|"
             r"INVALID_SIGNATURE|lacked the necessary privileges"),
    (BUSY, r"SLOW_DOWN|SlowDown|THROTTLING|SERVICE_UNAVAILABLE|INTERNAL_FAILURE|HTTP status 5\d\d|"
           r"(?:^|\W)5\d\d (?:Service|Internal|Bad|Gateway)"),
    (UNREACHABLE, r"NETWORK_CONNECTION|curlCode|REQUEST_TIMEOUT|error sending request|HTTP error|"
                  r"client error \(\w+\)|operation timed out|error decoding response body"),
    (_BAD_REQUEST, r"HTTP status 400|400 Bad Request"),
)  # fmt: skip
_OF_S3: Final = re.compile(
    r"AWS Error|Generic S3 error|Error performing (?:GET|PUT|HEAD|POST|DELETE|list)|no credentials found in chain|"
    r"loading credentials|(?:resolving region for b|^B|: B)ucket '|to complete for path"
)
# Words of other file systems' libraries when a whole store cannot be used. Problems of one file are not here.
_OF_OTHERS: Final = (
    ("gs://", r"google::cloud::Status\((?:UNAVAILABLE|UNAUTHENTICATED)|Generic GCS error"),
    ("abfss://", r"Azure\d*Core.*AuthenticationException|Generic MicrosoftAzure error"),
    (
        "hdfs://",
        r"Unable to load lib(?:jvm|hdfs)|load libhdfs failed|HDFS connection failed|Generic HdfsObjectStore error",
    ),
)
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_KEYS: Final = ("aws_access_key_id", "credential_process", "sso_session", "sso_start_url", "login_session")
_ROLES: Final = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip


class AccessError(Exception):
    """A bucket that cannot be used at present for any file. No file is at fault.

    kind: one of the words above; where: the bucket, and its endpoint; found: the words of the server or the library.
    """

    def __init__(self, kind: str, where: str, found: str) -> None:
        self.kind, self.where, self.found = kind, where, found
        super().__init__(kind, where, found)

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.found}"


@dataclass(frozen=True)
class S3Access:
    """The settings of S3 that are known before any request."""

    endpoint: str  # a URL; empty: Amazon's own
    region: str  # empty: not given
    profile: str
    assumes_role: bool  # by its profile
    has_keys: bool  # in the environment, or by the profile
    virtual: bool  # the bucket is part of the host's name, even at an endpoint
    certificates: str  # a file; empty: the system's


def s3_access() -> S3Access:
    """Read the environment and the profile. Raise pyarrow.ArrowInvalid for a bad endpoint or an unreadable profile
    file.
    """
    home = os.environ.get("HOME") or str(Path.home())
    name = os.environ.get("AWS_PROFILE") or "default"
    profile = _profile(
        os.environ.get("AWS_CONFIG_FILE") or f"{home}/.aws/config",
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials",
        name,
    )
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    style = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", profile.get("s3.addressing_style", ""))
    return S3Access(
        endpoint=_url(endpoint or profile.get("services.s3.endpoint_url") or profile.get("endpoint_url") or ""),
        region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or profile.get("region", ""),
        profile=name,
        assumes_role="role_arn" in profile,
        has_keys=any(key in profile for key in _KEYS) or any(os.environ.get(name) for name in _ROLES),
        virtual=style.lower() in ("virtual", "true", "1"),
        certificates=os.environ.get("AWS_CA_BUNDLE", ""),
    )


def s3_filesystem(bucket: str) -> Any:
    """Return pyarrow's file system for a bucket. Raise pyarrow.ArrowInvalid as `s3_access` does."""
    return _filesystem(bucket, s3_access())


def delta_options(bucket: str) -> dict[str, str]:
    """Return delta-rs's storage options for a bucket. They override the environment.

    A commit is always a conditional PUT of a file that does not exist yet, whatever the environment says.
    """
    access = s3_access()
    region = _region(bucket, access)
    options = {
        "AWS_REGION": region,
        "AWS_FORCE_CREDENTIAL_LOAD": "true",  # without it no profile is read beside an endpoint
        "AWS_CONDITIONAL_PUT": "etag",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "false",
        "AWS_S3_LOCKING_PROVIDER": "none",
        "AWS_SKIP_SIGNATURE": "false",
        "timeout": f"{_REQUEST_SECONDS}s",
        "connect_timeout": f"{_CONNECT_SECONDS}s",
        "retry_timeout": f"{_RETRY_SECONDS}s",
        "max_retries": str(_RETRIES),
    }
    if access.endpoint:
        scheme, _, host = access.endpoint.partition("://")
        options["AWS_ENDPOINT_URL"] = f"{scheme}://{bucket}.{host}" if access.virtual else access.endpoint
        options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = str(access.virtual).lower()
        options["AWS_ALLOW_HTTP"] = str(scheme == "http").lower()
    return options


def access_error(said: str, *, of_one_file: bool = False) -> AccessError | None:
    """Return the AccessError that a library's words mean for the bucket as a whole, or None if they mean something
    else.

    of_one_file: the words are about one file, and only that file may be out of reach, so ask the bucket. Ask it also if
    an answer came without a body, as to HEAD. This takes a few seconds, no more than any request that fails.
    """
    for where, signs in _OF_OTHERS:
        if re.search(signs, said):
            last = re.search(r"last message of (.*?)(?:\. | error_info=)", said)
            found = last[1] if last else in_one_line(said) if "↳" in said else said.partition("\n")[0]
            return AccessError(UNUSABLE, where, re.sub(r"^(?:\w+: )?(?:Unknown error: )?", "", found).rstrip("."))
    kind = _kind(said)
    if kind is None:
        return None
    bucket, key = _place(said)
    if of_one_file or "No response body" in said or kind == _BAD_REQUEST:
        now = _asked(bucket, key) if bucket else None
        if now is None and of_one_file:
            return None
        if now is not None and "bucket is located in" not in said:
            kind, said = _kind(now) or kind, now
    kind = DENIED if kind == _BAD_REQUEST else kind
    access = s3_access()
    if kind == DENIED and not access.has_keys:
        kind = NO_CREDENTIALS
    where = f"s3://{bucket}" if bucket else "S3"
    if access.endpoint:
        where += f" at {access.endpoint}"
    elif access.region:
        where += f" in {access.region}"
    if kind == NO_CREDENTIALS and access.assumes_role:
        return AccessError(kind, where, f"profile {access.profile!r} assumes a role, which is not supported")
    return AccessError(kind, where, in_one_line(said))


def in_one_line(said: str) -> str:
    """Return the decisive words of a library's message, which may have many lines and colours, in one line."""
    plain = re.split(r"\n +0: ", _COLOUR.sub("", said).strip())[0]  # Rust's backtrace begins there
    if code := re.search(r"<Code>([^<]*)</Code>(?:\s*<Message>([^<]*)</Message>)?", plain):
        return code[1] if code[2] in (None, "", code[1]) else f"{code[1]}: {' '.join(code[2].split())}"
    if "AWS Error" in plain:
        line = plain[plain.index("AWS Error") :].splitlines()[0]
        name, _, words = line.removeprefix("AWS Error ").partition(" operation: ")
        words = words.partition("Details: ")[2] or words.partition("No response body. ")[2] or words
        if words.startswith("Unable to parse ExceptionName: "):
            error, _, words = words.removeprefix("Unable to parse ExceptionName: ").partition(" Message: ")
            words = error if words in ("", error) else f"{error}: {words}"
        return words.strip(" .") if words.strip(" .") not in ("", "No response body") else name.partition(" during")[0]
    parts = [part.strip(" .") for part in re.split(r"↳|\n", plain) if part.strip()]
    return ": ".join(dict.fromkeys(parts[-2:])) if parts else "no answer"


def bucket_of(uri: str) -> str:
    """Return the bucket of an S3 URI; empty for any other URI."""
    return uri[len("s3://") :].partition("/")[0] if uri.startswith("s3://") else ""


def check_bucket(uri: str, filesystem: Any) -> None:
    """Raise AccessError if the bucket of a URI does not exist. A listing below it would look empty instead."""
    bucket = bucket_of(uri)
    if not bucket or filesystem.type_name != "s3":
        return
    if filesystem.get_file_info(bucket).type == pafs.FileType.NotFound:
        access = s3_access()
        at = f" at {access.endpoint}" if access.endpoint else ""
        raise AccessError(NO_BUCKET, f"s3://{bucket}{at}", "404")


def _kind(said: str) -> str | None:
    if _OF_S3.search(said) is None:
        return None
    return next((kind for kind, signs in _SIGNS if re.search(signs, said)), None)


def _place(said: str) -> tuple[str, str]:
    """Return the bucket and the key that a library's words name; empty where they name none."""
    if found := re.search(r"bucket '([^']+)'", said, re.IGNORECASE):
        key = re.search(r"(?:for|under) key '([^']*)'", said)
        return found[1], key[1] if key else ""
    access = s3_access()
    if found := re.search(r"performing \w+ (https?)://([^/\s]+)/([^/?\s]*)", said):
        host = urlsplit(access.endpoint).netloc if access.endpoint else "s3."
        if access.virtual and found[2].endswith(f".{host}"):
            return found[2][: -len(host) - 1], ""
        if found[2].startswith(host):
            return found[3], ""
    return "", ""


def _asked(bucket: str, key: str) -> str | None:
    """Probe the bucket with an empty listing beside a key. Return the error's text, or None if the bucket answers."""
    beside = "/".join(filter(None, (bucket, key.rpartition("/")[0], "-")))
    try:
        s3_filesystem(bucket).get_file_info(pafs.FileSelector(beside, allow_not_found=True))
    except OSError as error:
        return str(error)
    return None


def _url(endpoint: str) -> str:
    """Return an endpoint in the form that both libraries accept. Raise pyarrow.ArrowInvalid for any other."""
    if not endpoint:
        return ""
    url = (endpoint if "://" in endpoint else f"https://{endpoint}").rstrip("/")
    at = urlsplit(url)
    if at.scheme not in ("http", "https") or not at.netloc or at.path or at.query:
        raise pa.ArrowInvalid("an endpoint (AWS_ENDPOINT_URL) that is not http://HOST:PORT or https://HOST:PORT")
    return url


def _region(bucket: str, access: S3Access) -> str:
    """Return the bucket's region. For Amazon's buckets, S3's own answer comes before the environment's."""
    if not access.endpoint:
        return _resolved(bucket) or access.region or "us-east-1"
    return access.region or "us-east-1"


@cache
def _resolved(bucket: str) -> str:
    try:
        return str(pafs.resolve_s3_region(bucket))
    except OSError:
        return ""  # the first request will say what is wrong


@cache
def _filesystem(bucket: str, access: S3Access) -> Any:
    """Return a bucket's file system. It is cached, because each new one asks for its bucket's region."""
    at = urlsplit(access.endpoint)
    return pafs.S3FileSystem(
        region=_region(bucket, access),
        endpoint_override=at.netloc or None,
        scheme=at.scheme or "https",
        force_virtual_addressing=access.virtual,
        connect_timeout=_CONNECT_SECONDS,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=_ATTEMPTS),
        tls_ca_file_path=access.certificates or None,
    )


@cache
def _profile(config: str, credentials: str, name: str) -> dict[str, str]:
    """Return a profile's settings from both files; a nested section's setting has a name like `s3.addressing_style`."""
    out: dict[str, str] = {}
    sections = {config: "default" if name == "default" else f"profile {name}", credentials: name}
    for path, section in sections.items():
        parsed = configparser.RawConfigParser(strict=False, delimiters=("=",), default_section="")
        try:
            parsed.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError, OSError) as error:
            raise pa.ArrowInvalid(f"{path}, which cannot be parsed: {str(error).splitlines()[0]}") from error
        if parsed.has_section(section):
            found = _nested(parsed[section])
            out.update(found)
            services = f"services {found.get('services')}"
            if parsed.has_section(services):
                out.update({f"services.{key}": value for key, value in _nested(parsed[services]).items()})
    return out


def _nested(section: configparser.SectionProxy) -> dict[str, str]:
    out = {}
    for key, value in section.items():
        lines = [line.partition("=") for line in value.splitlines() if "=" in line] if value.startswith("\n") else []
        out.update({f"{key}.{name.strip()}": inner.strip() for name, _, inner in lines})
        out[key] = value
    return out
