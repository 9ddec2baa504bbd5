"""Buckets of S3, Azure Blob Storage and Google Cloud Storage: which one a URI names, and the settings that reach it.

Settings come from environment variables and AWS profiles, as the clouds' own tools name them. They are given alike to
the two libraries that reach a bucket, obstore and delta-rs, which both contain the Rust crate object_store. Credentials
are found by object_store, or for AWS profiles by boto3 (obstore) and by the AWS SDK for Rust (delta-rs), and renewed.

S3:     AWS_ACCESS_KEY_ID and its like, AWS_PROFILE, ~/.aws, AWS_ENDPOINT_URL, AWS_REGION, web identities, the machine's
        role. Amazon is asked for the region of its buckets.
Azure:  AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, AZURE_CLIENT_ID and its like,
        `az login`, the machine's identity. AZURE_STORAGE_ENDPOINT is the address of the account as connection strings
        write it (BlobEndpoint): with the account in the host's name, or as the path, as Azurite has it.
Google: GOOGLE_APPLICATION_CREDENTIALS, `gcloud auth application-default login`, the machine's account.
        STORAGE_EMULATOR_HOST is another server, which is asked without credentials.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

SCHEMES: Final = ("s3", "az", "abfs", "abfss", "gs")
ENDPOINTS: Final = {"s3": "AWS_ENDPOINT_URL", "az": "AZURE_STORAGE_ENDPOINT", "gs": "STORAGE_EMULATOR_HOST"}
AZURE_KEYS: Final = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY")
AZURES: Final = ".core.windows.net"
_AUTHORITY: Final = re.compile(
    r"(?P<container>[^@:]+)@(?P<account>[a-z0-9]+)(?:\.(?:dfs|blob)(?P<domain>[a-z0-9.-]+))?"
)
_AWS_KEYS: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_DELTA: Final = {  # a request of delta-rs with its answer, which is small; no attempt begins later
    "timeout": "6s", "connect_timeout": "3s", "retry_timeout": "7s", "max_retries": "30",
}  # fmt: skip


@dataclass(frozen=True)
class Bucket:
    """A bucket, or a container of Azure, with what is known before any request."""

    scheme: str  # s3, az, gs
    name: str
    endpoint: str = ""  # URL of the server, for Azure with the account; empty: the cloud's own
    account: str = ""  # storage account in Azure
    region: str = ""  # region in S3
    is_virtual: bool = False  # S3: the bucket is part of the host's name, even at an endpoint
    profile: str = ""  # S3: whose credentials count; empty: those of the environment or the machine
    certificates: str = ""  # S3: a file of certificates to trust; empty: the system's
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # object_store's, keys among them
    uri: str = field(default="", compare=False, repr=False)  # as given, without a path

    def __str__(self) -> str:
        at = f" at {self.endpoint}" if self.endpoint else f" in {self.region}" if self.region else ""
        return f"{self.scheme}://{self.name}{at}"

    @property
    def allows_http(self) -> bool:
        """True if the server is asked without TLS."""
        return self.endpoint.startswith("http:")


def parse_bucket(uri: str) -> Bucket | None:
    """Return the bucket that a URI in canonical spelling names; None for a path, or a URI of anything else.

    Raise pyarrow.ArrowInvalid for a URI without a bucket or an account, or with settings (?), and for invalid settings
    in the environment.
    """
    scheme, slashes, rest = uri.partition("://")
    if not slashes or scheme not in SCHEMES:
        return None
    authority = unquote(rest.partition("/")[0]).strip()
    if not authority:
        raise pa.ArrowInvalid("no bucket")
    if "?" in authority or "?" in rest:
        raise pa.ArrowInvalid(f"settings (?) in it: give them by the environment ({ENDPOINTS.get(scheme, '')})")
    if scheme == "s3":
        bucket = _s3(authority)
    else:
        bucket = _google(authority) if scheme == "gs" else _azure(scheme, authority)
    return replace(bucket, uri=f"{scheme}://{quote(authority, safe='@')}")


def bucket_path(uri: str) -> str:
    """Return bucket and key of a URI of a bucket, as paths of its file system begin."""
    authority, _, key = uri.partition("://")[2].partition("/")
    name = unquote(authority).removeprefix("anonymous@").partition("@")[0]
    return f"{name}/{unquote(key)}".rstrip("/")


def is_bucket(uri: str) -> bool:
    """Return whether a URI, in canonical spelling, is one of an object store."""
    return uri.partition("://")[0] in SCHEMES and "://" in uri


def address(uri: str) -> tuple[str, ...] | None:
    """Return the identity of a URI's bucket, (scheme, account, name), in any spelling; None: not a bucket."""
    try:
        bucket = parse_bucket(uri)
    except pa.ArrowInvalid:
        return None
    return None if bucket is None else (bucket.scheme, bucket.account, bucket.name)


def delta_place(bucket: Bucket, path: str) -> tuple[str, dict[str, str]]:
    """Return the URI of a folder for delta-rs, and its storage options, which override the environment; path: that of
    the folder on the bucket's file system.
    """
    options = {**dict(bucket.settings), **_DELTA, "allow_http": str(bucket.allows_http).lower()}
    if bucket.scheme == "s3":
        options |= {
            "AWS_FORCE_CREDENTIAL_LOAD": "true",  # without it no profile is read beside an endpoint
            "AWS_S3_ALLOW_UNSAFE_RENAME": "false",
            "AWS_S3_LOCKING_PROVIDER": "none",
        }
    return f"{bucket.scheme}://{quote(path)}", options


def _variable(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


def _url(endpoint: str, variable: str, scheme: str = "https") -> str:
    """Return an endpoint as a URL without a path. Raise pyarrow.ArrowInvalid for any other."""
    if not endpoint:
        return ""
    url = (endpoint if "://" in endpoint else f"{scheme}://{endpoint}").rstrip("/")
    at = urlsplit(url)
    if at.scheme not in ("http", "https") or not at.netloc or at.path or at.query:
        raise pa.ArrowInvalid(f"an endpoint ({variable}) that is not http://HOST:PORT or https://HOST:PORT")
    return url


def _s3(name: str) -> Bucket:
    home = os.environ.get("HOME") or str(Path.home())
    files = (
        os.environ.get("AWS_CONFIG_FILE") or f"{home}/.aws/config",
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials",
    )
    named = os.environ.get("AWS_PROFILE", "")
    profile = _profile(*files, named)
    given = _variable("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT") or profile.get("endpoint_url", "")
    endpoint = _url(given, ENDPOINTS["s3"])
    region = _variable("AWS_REGION", "AWS_DEFAULT_REGION") or profile.get("region", "")
    if not endpoint:
        region = _resolve_region(name) or region  # Amazon's own answer comes first
    style = os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", profile.get("addressing_style", ""))
    is_virtual = style.lower() in ("virtual", "true", "1")
    settings = {
        "AWS_REGION": region or "us-east-1", "AWS_CONDITIONAL_PUT": "etag", "AWS_SKIP_SIGNATURE": "false",
        "AWS_DISABLE_BULK_DELETE": "true",  # not every server that speaks S3 deletes many objects at once
    }  # fmt: skip
    keys = {key: os.environ[key] for key in _AWS_KEYS if os.environ.get(key)}
    settings |= keys
    if endpoint:
        scheme, _, host = endpoint.partition("://")
        settings["AWS_ENDPOINT_URL"] = f"{scheme}://{name}.{host}" if is_virtual else endpoint
        settings["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = str(is_virtual).lower()
    return Bucket(
        "s3", name, endpoint, region=region, is_virtual=is_virtual,
        profile=(named or "default") if profile and not keys else "",
        certificates=os.environ.get("AWS_CA_BUNDLE", "") or profile.get("ca_bundle", ""),
        settings=tuple(settings.items()),
    )  # fmt: skip


@cache
def _resolve_region(bucket: str) -> str:
    try:
        return str(pafs.resolve_s3_region(bucket))
    except OSError:
        return ""  # the first request reports the error


@cache
def _profile(config: str, credentials: str, name: str) -> dict[str, str]:
    """Return the settings of an AWS profile (empty name: the default one); none without the two files."""
    if not name and not Path(config).is_file() and not Path(credentials).is_file():
        return {}
    import botocore.exceptions  # noqa: PLC0415 - slow, and only profiles need it
    import botocore.session  # noqa: PLC0415

    session = botocore.session.Session(profile=name or None)
    try:
        profile: dict[str, Any] = session.get_scoped_config()
        services = session.full_config.get("services", {}).get(profile.get("services"), {}).get("s3", {})
    except botocore.exceptions.BotoCoreError as error:
        raise pa.ArrowInvalid(f"a profile that cannot be read: {error}") from error
    out = {
        "endpoint_url": services.get("endpoint_url") or profile.get("endpoint_url", ""),
        "addressing_style": profile.get("s3", {}).get("addressing_style", ""),
    }
    return {**out, **{key: profile[key] for key in ("region", "ca_bundle") if key in profile}}


def _azure(scheme: str, authority: str) -> Bucket:
    named = _AUTHORITY.fullmatch(authority)
    if named is None and scheme != "az":
        raise pa.ArrowInvalid(f"no {scheme}://CONTAINER@ACCOUNT.dfs{AZURES}/PATH")
    name = authority.partition("@")[0]
    account = named["account"] if named else _variable("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
    given = _variable(ENDPOINTS["az"], "AZURE_ENDPOINT").rstrip("/")
    at = urlsplit(given if "://" in given or not given else f"https://{given}")
    host, dot, _ = at.netloc.partition(".blob.")
    of_endpoint = at.path.strip("/") or (host if dot else "")
    if given and (at.scheme not in ("http", "https") or not re.fullmatch("[a-z0-9]+", of_endpoint) or at.query):
        raise pa.ArrowInvalid(
            f"an endpoint ({ENDPOINTS['az']}) that is not https://ACCOUNT.blob.DOMAIN or http://HOST:PORT/ACCOUNT"
        )
    account = account or of_endpoint
    if not account:
        raise pa.ArrowInvalid(
            "no account of Azure: set AZURE_STORAGE_ACCOUNT_NAME, or AZURE_STORAGE_ENDPOINT, or write "
            f"abfss://CONTAINER@ACCOUNT.dfs{AZURES}/PATH"
        )
    endpoint = f"https://{account}.blob{(named and named['domain']) or AZURES}"
    if given and of_endpoint == account:
        endpoint = f"{at.scheme}://{at.netloc}{at.path}".rstrip("/")
    settings = {
        "azure_storage_account_name": account, "azure_storage_endpoint": endpoint,
        "azure_storage_use_emulator": "false", "azure_skip_signature": "false",
    }  # fmt: skip
    if key := _variable(*AZURE_KEYS):
        settings["azure_storage_account_key"] = key
    elif sas := _variable("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY").removeprefix("?"):
        settings["azure_storage_sas_token"] = sas
    elif not os.environ.get("AZURE_CLIENT_ID") and _has_azure_login():
        settings["azure_use_azure_cli"] = "true"
    return Bucket("az", name, endpoint, account, settings=tuple(settings.items()))


def _has_azure_login() -> bool:
    folder = os.environ.get("AZURE_CONFIG_DIR") or f"{os.environ.get('HOME') or Path.home()}/.azure"
    return shutil.which("az") is not None and Path(folder, "azureProfile.json").is_file()


def _google(authority: str) -> Bucket:
    name = authority.removeprefix("anonymous@")
    endpoint = _url(os.environ.get(ENDPOINTS["gs"], ""), ENDPOINTS["gs"], "http")
    settings = {"google_skip_signature": str(bool(endpoint) or name != authority).lower()}
    if endpoint:  # object_store requests a token before a write, even if it signs no request; this key disables that
        key = {"gcs_base_url": endpoint, "disable_oauth": True, "client_email": "", "private_key": ""}
        settings = {"google_service_account_key": json.dumps(key | {"private_key_id": ""})}
    return Bucket("gs", name, endpoint, settings=tuple(settings.items()))
