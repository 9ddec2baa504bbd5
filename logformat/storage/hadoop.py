"""Buckets as Hadoop's connectors want them, by which Spark itself reads and writes tables: URI and settings."""

from __future__ import annotations

import os
from typing import Final
from urllib.parse import unquote, urlsplit

from lastkey.logformat.storage.buckets import AZURE_KEYS, AZURES, Bucket, parse_bucket

_PROVIDERS: Final = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,"
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"
)
_AZURES: Final = "org.apache.hadoop.fs.azurebfs.services"


def as_hadoop_names_it(uri: str) -> str:
    """Return a URI as Spark's own code wants it: there s3:// is s3a://, and az:// is not known."""
    if uri.startswith("s3://"):
        return f"s3a{uri.removeprefix('s3')}"
    bucket = parse_bucket(uri) if uri.startswith("az://") else None
    if bucket is None:
        return uri
    scheme = "abfs" if bucket.allows_http else "abfss"
    domain = AZURES if _is_by_path(bucket) else urlsplit(bucket.endpoint).netloc.partition(".blob")[2]
    return f"{scheme}://{bucket.name}@{bucket.account}.dfs{domain}/{uri.removeprefix('az://').partition('/')[2]}"


def hadoop_settings(uri: str) -> dict[str, str]:
    """Return the settings by which Spark's own code reaches a URI, in its spelling; none but for object stores.

    They contain no credentials: the connectors use credentials that the user configured for Hadoop, else they find
    credentials as obstore does.
    """
    bucket = parse_bucket(uri)
    if bucket is None:
        return {}
    return {"s3": _s3_settings, "az": _azure_settings, "gs": _google_settings}[bucket.scheme](bucket, uri)


def _s3_settings(bucket: Bucket, _: str) -> dict[str, str]:
    region = bucket.region or ("us-east-1" if bucket.endpoint else "")
    out = {"fs.s3a.aws.credentials.provider": _PROVIDERS} | ({"fs.s3a.endpoint.region": region} if region else {})
    if bucket.endpoint:
        out |= {"fs.s3a.endpoint": bucket.endpoint, "fs.s3a.path.style.access": str(not bucket.is_virtual).lower()}
    return out


def _azure_settings(bucket: Bucket, uri: str) -> dict[str, str]:
    # The connector runs awk to read the key from the environment variable that obstore uses
    host = unquote(uri).partition("://")[2].partition("/")[0].partition("@")[2]
    named = next((name for name in AZURE_KEYS if os.environ.get(name)), None)
    out = {}
    if named is not None:
        out = {
            f"fs.azure.account.key.{host}": "none",  # the program's last argument, which Hadoop wants in Base64
            f"fs.azure.account.keyprovider.{host}": f"{_AZURES}.ShellDecryptionKeyProvider",
            "fs.azure.shellkeyprovider.script": f'awk BEGIN{{print(ENVIRON["{named}"])}}',
        }
    if _is_by_path(bucket):  # it knows blobs alone
        out |= {
            "fs.azure.abfs.endpoint": urlsplit(bucket.endpoint).netloc,
            "fs.azure.fns.account.service.type": "BLOB",
            "fs.azure.account.hns.enabled": "false",
            "fs.azure.always.use.https": str(not bucket.allows_http).lower(),
            "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",  # the other scheme requires TLS
        }
    return out


def _google_settings(bucket: Bucket, uri: str) -> dict[str, str]:
    is_anonymous = bool(bucket.endpoint) or uri.startswith("gs://anonymous@")
    out = {
        "fs.gs.auth.type": "UNAUTHENTICATED" if is_anonymous else "APPLICATION_DEFAULT",
        "fs.gs.block.size": str(64 << 20),  # Hadoop's default is `64m`, which Google's connector cannot read
    }
    return out | ({"fs.gs.storage.root.url": f"{bucket.endpoint}/"} if bucket.endpoint else {})


def _is_by_path(bucket: Bucket) -> bool:
    return bool(urlsplit(bucket.endpoint).path)
