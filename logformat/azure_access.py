"""Access to archives and stores in Azure Blob Storage, set up alike for pyarrow and delta-rs.

A URI is `abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/path`, as Hadoop writes it, or `az://CONTAINER/path`, whose
account the environment names. All settings come from environment variables, in the words of Azure's command line (az)
and of delta-rs. Without a key or a SAS the libraries look for credentials themselves: AZURE_CLIENT_ID and its like, a
workload's identity, az login, the machine's identity.

An endpoint (AZURE_STORAGE_ENDPOINT) is the address of the account as connection strings write it (BlobEndpoint): with
the account in the host's name, or as the path, as Azurite has it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import fs as pafs

from lastkey.logformat import silent_servers
from lastkey.logformat.access_error import BUSY, DENIED, EXPIRED, NO_BUCKET, NO_CREDENTIALS, UNREACHABLE

SCHEMES: Final = ("az", "abfs", "abfss")
ENDPOINT: Final = "AZURE_STORAGE_ENDPOINT"
SIGNS: Final = (
    (NO_BUCKET, r"ContainerNotFound|FilesystemNotFound|ContainerBeingDeleted|\WResourceNotFound\W"),
    (EXPIRED, r"not valid in the specified time frame|ExpiredAuthenticationToken|token (?:has|is) expired"),
    (NO_CREDENTIALS, r"AuthenticationException|Failed to get token|token request|NoAuthenticationInformation|"
                     r"PublicAccessNotPermitted"),
    (DENIED, r"Authorization\w*(?:Failure|Mismatch)|Authentication\w*(?:Failed|Info)|AccountIsDisabled|"
             r"InsufficientAccountPermissions|\W40[13] |lacked the necessary privileges"),
    (BUSY, r"ServerBusy|OperationTimedOut|InternalError|AccountBeingCreated|\W429 |\W5\d\d "),
    (UNREACHABLE, r"Azure Error: \[\]|Failed to parse xml|error sending request|HTTP error|client error \(\w+\)|"
                  r"operation timed out|error decoding response body"),
)  # fmt: skip
_WORDS: Final = re.compile(
    r"Azure Error: \[|Namespace support on|Generic MicrosoftAzure error|Azure\d*Core.*AuthenticationException"
)
_AZURES: Final = re.compile(r"https://[a-z0-9]+\.(?:blob|dfs)\.[^/\s'?]+")
_AUTHORITY: Final = re.compile(
    r"(?P<container>[^@:]+)@(?P<account>[a-z0-9]+)(?:\.(?:dfs|blob)(?P<domain>[a-z0-9.-]+))?"
)
_DOMAIN: Final = ".core.windows.net"
_KEYS: Final = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY")
_HADOOPS: Final = "org.apache.hadoop.fs.azurebfs.services"
_ALONE: Final = "AZURE_STORAGE_ACCOUNT_NAME, or AZURE_STORAGE_ENDPOINT"


@dataclass(frozen=True)
class AzureAccess:
    """Settings of an account that are known before any request."""

    account: str
    url: str  # of the account; a container's name follows
    authority: str  # as pyarrow wants it: HOST:PORT, with the account as a path; or .blob.DOMAIN behind the account
    key: str = field(repr=False)
    sas: str = field(repr=False)


def azure_access(uri: str) -> AzureAccess:
    """Read the environment for the account of a URI. Raise pyarrow.ArrowInvalid for a URI without an account, or a bad
    endpoint.
    """
    named = _AUTHORITY.fullmatch(_authority(uri))
    account = named["account"] if named else _variable("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT")
    given = endpoint()
    at = urlsplit(given if "://" in given or not given else f"https://{given}")
    host, dot, domain = at.netloc.partition(".blob.")
    of_endpoint = at.path.strip("/") or (host if dot else "")
    if given and (at.scheme not in ("http", "https") or not re.fullmatch("[a-z0-9]+", of_endpoint) or at.query):
        raise pa.ArrowInvalid(
            "an endpoint (AZURE_STORAGE_ENDPOINT) that is not https://ACCOUNT.blob.DOMAIN or http://HOST:PORT/ACCOUNT"
        )
    account = account or of_endpoint
    if not account:
        raise pa.ArrowInvalid(
            f"no account of Azure: set {_ALONE}, or write abfss://CONTAINER@ACCOUNT.dfs{_DOMAIN}/PATH"
        )
    secrets = {
        "key": _variable(*_KEYS),
        "sas": _variable("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY").removeprefix("?"),
    }
    if given and of_endpoint == account:
        by_path = at.path.strip("/") != ""
        authority = at.netloc if by_path else f".blob.{domain}"
        return AzureAccess(account, f"{at.scheme}://{at.netloc}{at.path}", authority, **secrets)
    authority = f".blob{(named and named['domain']) or _DOMAIN}"
    return AzureAccess(account, f"https://{account}{authority}", authority, **secrets)


def endpoint() -> str:
    """Return the endpoint that the environment names; empty: Azure's own."""
    return _variable(ENDPOINT, "AZURE_ENDPOINT").rstrip("/")


def is_ours(uri: str) -> bool:
    """Return whether a URI names a container as we read it. pyarrow alone knows the other forms of abfss://."""
    return uri.startswith("az://") or _AUTHORITY.fullmatch(_authority(uri)) is not None


def file_system(uri: str) -> tuple[Any, str]:
    """Return pyarrow's file system for a URI, and the path on it."""
    return _filesystem(azure_access(uri)), bucket_path(uri)


def bucket_of(uri: str) -> str:
    """Return the container of a URI."""
    return _authority(uri).partition("@")[0]


def bucket_path(uri: str) -> str:
    """Return container and path of a URI."""
    return f"{bucket_of(uri)}/{unquote(uri.partition('://')[2].partition('/')[2])}".rstrip("/")


def address(uri: str) -> tuple[str, str]:
    """Return account and container of a URI, however it is spelled; a missing account is ""."""
    try:
        return azure_access(uri).account, bucket_of(uri)
    except pa.ArrowInvalid:
        return "", bucket_of(uri)


def named_at(uri: str) -> str:
    """Return the container of a URI with its address, as errors show it."""
    return f"az://{bucket_of(uri)} at {azure_access(uri).url}"


def url_of(uri: str) -> str:
    """Return the address of a URI's account."""
    return azure_access(uri).url


def delta_options(uri: str) -> dict[str, str]:
    """Return delta-rs's storage options. They override the environment.

    A commit is a PUT with `If-None-Match: *`, which Azure refuses if the file exists.
    """
    access = azure_access(uri)
    options = {
        "azure_storage_account_name": access.account,
        "azure_storage_endpoint": access.url,
        "azure_storage_use_emulator": "false",
        "azure_skip_signature": "false",
        "azure_allow_http": str(access.url.startswith("http:")).lower(),
    }
    if access.key:
        options["azure_storage_account_key"] = access.key
    elif access.sas:
        options["azure_storage_sas_token"] = access.sas
    elif not os.environ.get("AZURE_CLIENT_ID") and _has_login():
        options["azure_use_azure_cli"] = "true"
    return options


def hadoop_uri(uri: str) -> str:
    """Return the URI as Spark's own code wants it: az:// is not known there."""
    if not uri.startswith("az://"):
        return uri
    access = azure_access(uri)
    container, _, path = uri.removeprefix("az://").partition("/")
    domain = access.authority.removeprefix(".blob") if access.authority[0] == "." else _DOMAIN
    scheme = "abfss" if access.url.startswith("https:") else "abfs"
    return f"{scheme}://{container}@{access.account}.dfs{domain}/{path}"


def hadoop_settings(uri: str) -> dict[str, str]:
    """Return what Hadoop's connector must be told of the account of a URI, in Hadoop's spelling. The key is none of it:
    the connector asks awk for the value of the variable in which pyarrow finds it.
    """
    access, host = azure_access(uri), unquote(uri).partition("://")[2].partition("/")[0].partition("@")[2]
    named = next((name for name in _KEYS if os.environ.get(name)), None)
    out = {}
    if named is not None:
        out = {
            f"fs.azure.account.key.{host}": "none",  # the program's last argument, which Hadoop wants in Base64
            f"fs.azure.account.keyprovider.{host}": f"{_HADOOPS}.ShellDecryptionKeyProvider",
            "fs.azure.shellkeyprovider.script": f'awk BEGIN{{print(ENVIRON["{named}"])}}',
        }
    if access.authority[0] != ".":  # HOST:PORT, which knows blobs alone
        out |= {
            "fs.azure.abfs.endpoint": access.authority,
            "fs.azure.fns.account.service.type": "BLOB",
            "fs.azure.account.hns.enabled": "false",
            "fs.azure.always.use.https": str(access.url.startswith("https:")).lower(),
            "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",  # the other one wants TLS
        }
    return out


def is_said(said: str) -> bool:
    """Return whether a message is one of the libraries' about Azure."""
    return _WORDS.search(said) is not None or _url_in(said) is not None


def blamed(said: str) -> tuple[str, Callable[[], str | None] | None]:
    """Return the container that a message names, as errors show it, and a probe of it."""
    found = _url_in(said)
    if found is None:
        named = _AZURES.search(said)
        return f"Azure at {named[0]}" if named else _in_general(), lambda: said  # an account's whole
    url, rest = found
    container, _, key = rest.partition("/")
    if not container:
        return f"Azure at {url}", None
    return f"az://{container} at {url}", partial(_asked, container, key) if url == _url() else None


def _asked(container: str, key: str) -> str | None:
    access = azure_access(f"az://{container}")
    if why := silent_servers.why_no_answer(access.url):
        return f"Azure Error: [] {why}"
    filesystem = _filesystem(access)
    try:
        if filesystem.get_file_info(container).type == pafs.FileType.NotFound:
            return "Azure Error: [ContainerNotFound] 404"
        beside = "/".join(filter(None, (container, key.rpartition("/")[0], "-")))
        filesystem.get_file_info(pafs.FileSelector(beside, allow_not_found=True))
    except (OSError, pa.ArrowException) as error:
        return str(error)
    return None


def _in_general() -> str:
    url = _url()
    return f"Azure at {url}" if url else "Azure"


def _url() -> str | None:
    try:
        return azure_access("az://-").url
    except pa.ArrowInvalid:
        return None


def _url_in(said: str) -> tuple[str, str] | None:
    """Return the account's URL that a message names, and what follows it, without the query."""
    for url in filter(None, (_url(), *(match[0] for match in _AZURES.finditer(said)))):
        if found := re.search(rf"{re.escape(url)}(?:/([^\s'?]*))?", said):
            return url, unquote(found[1] or "")
    return None


def _authority(uri: str) -> str:
    return unquote(uri.partition("://")[2].partition("/")[0])


def _variable(*names: str) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


def _has_login() -> bool:
    """Return whether somebody has logged in by `az login`: pyarrow looks for that by itself, delta-rs does not."""
    folder = os.environ.get("AZURE_CONFIG_DIR") or f"{os.environ.get('HOME') or Path.home()}/.azure"
    return shutil.which("az") is not None and Path(folder, "azureProfile.json").is_file()


@cache
def _filesystem(access: AzureAccess) -> Any:
    """Return an account's file system. It is cached, because each new one asks what kind of account it is."""
    scheme = access.url.partition("://")[0]
    return pafs.AzureFileSystem(
        access.account,
        account_key=access.key or None,
        sas_token=None if access.key else access.sas or None,
        blob_storage_authority=access.authority,
        dfs_storage_authority=access.authority.replace(".blob.", ".dfs."),
        blob_storage_scheme=scheme,
        dfs_storage_scheme=scheme,
    )
