"""Access to archives and stores in S3, set up alike for the libraries that use it: pyarrow and delta-rs, and Hadoop's
connector, by which Spark itself keeps tables.

The libraries find credentials themselves, and renew those that expire: AWS_ACCESS_KEY_ID and its like, then the profile
(AWS_PROFILE, ~/.aws), web identities, containers, the machine's role. delta-rs reads profiles only when told to
(`delta_options`); pyarrow does not support a profile that assumes a role.

This module finds endpoint and region in the environment and the profile, and gives them to all three: pyarrow
ignores a profile's endpoint, and none reads a profile's region beside an endpoint. Amazon is asked for the region of
its buckets.

pyarrow and delta-rs report a failed request in different words; `logformat.clouds` understands both by what is here.
Both retry for some seconds by themselves.
"""

from __future__ import annotations

import configparser
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

from lastkey.logformat.access_error import (
    BAD_REQUEST,
    BUSY,
    DENIED,
    EXPIRED,
    LOST,
    NO_BUCKET,
    NO_CREDENTIALS,
    REGION,
    UNREACHABLE,
)

SCHEMES: Final = ("s3",)
ENDPOINT: Final = "AWS_ENDPOINT_URL"
_ATTEMPTS: Final = 3  # pyarrow's; an attempt without an answer takes 3 seconds
_CONNECT_SECONDS: Final = 5

SIGNS: Final = (
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
    (LOST, r"NO_SUCH_UPLOAD|NoSuchUpload"),  # the server has forgotten it: it must begin anew
    (BAD_REQUEST, r"HTTP status 400|400 Bad Request"),
)  # fmt: skip
_OF_S3: Final = re.compile(
    r"AWS Error|Generic S3 error|Error performing (?:GET|PUT|HEAD|POST|DELETE|list)|no credentials found in chain|"
    r"loading credentials|(?:resolving region for b|^B|: B)ucket '|to complete for path"
)
_PROVIDERS: Final = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,"
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
)
_KEYS: Final = ("aws_access_key_id", "credential_process", "sso_session", "sso_start_url", "login_session")
_ROLES: Final = (
    "AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip


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


def endpoint() -> str:
    """Return the endpoint that the environment or the profile names; empty: Amazon's own."""
    return s3_access().endpoint


def is_ours(uri: str) -> bool:
    """Return whether a URI names a bucket as we read it."""
    return bool(bucket_of(uri))


def file_system(uri: str) -> tuple[Any, str]:
    """Return pyarrow's file system for a URI, and the path on it. Raise pyarrow.ArrowInvalid as `s3_access` does."""
    return _filesystem(bucket_of(uri), s3_access()), unquote(uri.partition("://")[2]).rstrip("/")


def delta_options(uri: str) -> dict[str, str]:
    """Return delta-rs's storage options. They override the environment.

    A commit is always a conditional PUT of a file that does not exist yet, whatever the environment says.
    """
    access, bucket = s3_access(), bucket_of(uri)
    region = _region(bucket, access)
    options = {
        "AWS_REGION": region,
        "AWS_FORCE_CREDENTIAL_LOAD": "true",  # without it no profile is read beside an endpoint
        "AWS_CONDITIONAL_PUT": "etag",
        "AWS_S3_ALLOW_UNSAFE_RENAME": "false",
        "AWS_S3_LOCKING_PROVIDER": "none",
        "AWS_SKIP_SIGNATURE": "false",
    }
    if access.endpoint:
        scheme, _, host = access.endpoint.partition("://")
        options["AWS_ENDPOINT_URL"] = f"{scheme}://{bucket}.{host}" if access.virtual else access.endpoint
        options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = str(access.virtual).lower()
        options["AWS_ALLOW_HTTP"] = str(scheme == "http").lower()
    return options


def hadoop_settings() -> dict[str, str]:
    """Return what Hadoop's connector must be told: endpoint and region. Keys are none of it: the SDK's own chain, last
    in `_PROVIDERS`, finds them where pyarrow does, and before that keys count that a user has given to Hadoop.
    """
    access = s3_access()
    region = access.region or ("us-east-1" if access.endpoint else "")
    out = {"fs.s3a.aws.credentials.provider": _PROVIDERS} | ({"fs.s3a.endpoint.region": region} if region else {})
    if access.endpoint:
        out |= {"fs.s3a.endpoint": access.endpoint, "fs.s3a.path.style.access": str(not access.virtual).lower()}
    return out


def is_said(said: str) -> bool:
    """Return whether a message is one of the libraries' about S3."""
    return _OF_S3.search(said) is not None


def blamed(said: str) -> tuple[str, Callable[[], str | None] | None]:
    """Return the bucket that a message names, as errors show it, and a probe of it: an empty listing beside the key,
    whose error's text it returns, or None if the bucket answers.
    """
    bucket, key = _place(said)
    return _named(bucket), partial(_asked, bucket, key) if bucket else None


def judged(kind: str, found: str) -> tuple[str, str]:
    """Return the kind of a failure and its words as the settings make them: who has no credentials is denied too."""
    access = s3_access()
    if kind == DENIED and not access.has_keys:
        kind = NO_CREDENTIALS
    if kind == NO_CREDENTIALS and access.assumes_role:
        found = f"profile {access.profile!r} assumes a role, which is not supported"
    return kind, found


def named_at(uri: str) -> str:
    """Return the bucket of a URI with its endpoint, as errors show it."""
    return _named(bucket_of(uri))


def bucket_of(uri: str) -> str:
    """Return the bucket of an S3 URI; empty for any other URI."""
    return uri[len("s3://") :].partition("/")[0] if uri.startswith("s3://") else ""


def _named(bucket: str) -> str:
    access = s3_access()
    where = f"s3://{bucket}" if bucket else "S3"
    if access.endpoint:
        return f"{where} at {access.endpoint}"
    return f"{where} in {access.region}" if access.region else where


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
        _filesystem(bucket, s3_access()).get_file_info(pafs.FileSelector(beside, allow_not_found=True))
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
        allow_delayed_open=True,  # a file of up to 10 MB is one request instead of three
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
