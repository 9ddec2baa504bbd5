"""URIs with credentials are reported by their position, and never repeated."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from lastkey import logformat
from lastkey.logformat.dump.files import list_files
from lastkey.logformat.errors import PlaceError
from lastkey.logformat.storage.hadoop import as_hadoop_names_it
from lastkey.logformat.storage.locations import canonical, file_system, has_secret, locate, secret_error
from lastkey.udfs.storage import normal_uri, open_root

SECRETS = [
    "s3://AKIA:hush@bucket/a",
    "s3://AKIA:hush@bucket",
    "S3://AKIA:hush@bucket/a",
    "s3://hush@bucket/a",
    "s3://AKIA%3Ahush@bucket/a",
    "s3://AKIA:hu/sh@bucket/a",  # no URI, but what people type: half of all keys hold a slash
    "s3://AKIA:hu?sh@bucket/a",
    "s3://AKIA:hu,sh@bucket/a",
    "s3a://AKIA:hush@bucket/a",
    "gs://hush@bucket/a",
    "hdfs://me:hush@host:8020/a",
    "hdfs://me:hu/sh@host/a",
    "abfs://data:hush@account.dfs.core.windows.net/a",
    "abfs://:hush@account.blob.core.windows.net/a",
    "https://hush@host/a",
    "ftp://me:hush@host/a",
    "s3://bucket/a?access_key=hush&region=eu",
    "s3://bucket/a?region=eu&Secret%5FKey=hush",
    "s3://bucket/a?session_token=hush",
    "s3://bucket/a?endpoint_override=http://me:hush@host:9000",
    "abfs://data@account/a?client_secret=hush&tenant_id=1",
    "abfs://data@account/a?sv=2024&sig=hush",
]
PLAIN = [
    "s3://bucket/a", "s3://bucket/topic@home/a", "s3://bucket/a?region=eu&scheme=http", "s3://bucket/a/key=1/b",
    "s3://bucket/a?endpoint_override=127.0.0.1:9000", "gs://bucket/a", "gs://anonymous@bucket/a", "hdfs:///a",
    "hdfs://host:8020/a", "hdfs://me@host:8020/a", "hdfs://[::1]:8020/a", "abfs://data@account.dfs.core.windows.net/a",
    "abfs://data@account/a?credential_kind=cli&blob_storage_authority=.x", "file:///a@b", "/a/b:c@d", "a:b@c/d",
    "/logs/gs:12:30/a", "s3://bucket/2026-01-01T10:00/a", "s3://bucket/ar?hive/token=1", "",
]  # fmt: skip


@pytest.mark.parametrize("uri", SECRETS)
def test_credentials_are_refused_and_not_repeated(uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for look in (normal_uri, open_root, file_system, locate, logformat.open_segment):
        with pytest.raises(PlaceError) as refused:
            look(uri)
        assert "hu" not in str(refused.value)
        assert "AKIA" not in repr(refused.value)
    with pytest.raises(PlaceError):
        list(list_files([uri]))


@pytest.mark.parametrize("uri", PLAIN)
def test_uris_without_a_secret_are_accepted(uri):
    assert not has_secret(uri)


@pytest.mark.parametrize(
    "text", ["--store=s3://AKIA:hush@b", "a,s3://AKIA:hush@b/x", "s3:/AKIA:hush@b", "s3:AKIA:hush@b", " gs://hush@b"]
)
def test_credentials_are_detected_anywhere_in_an_argument(text):
    assert has_secret(text)


def test_endpoint_with_credentials_in_the_environment_is_refused(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://AKIA:hush@127.0.0.1:1")
    with pytest.raises(PlaceError, match=r"an endpoint \(AWS_ENDPOINT_URL\) without credentials"):
        file_system("s3://bucket/a")


def test_place_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(secret_error()))
    assert isinstance(error, PlaceError)
    assert str(error) == str(secret_error())


@pytest.mark.parametrize(
    "uri",
    [
        "s3:///KEYNAME:SEKRET@b/x",
        "s3:// KEYNAME:SEKRET@b/x",
        "s3://KEYNAME,SEKRET:x@b",
        "s3://b/x?pass=SEKRET",
        "s3://b/x?region=us-east-1&passphrase=SEKRET",
        "s3://b/x?region=us-east-1;secret_key=SEKRET",
        "s3://b/x%3Fsecret_key=SEKRET",
        "gs://b/x?json_creds=SEKRET",
    ],
)
def test_obfuscated_credentials_are_detected(uri):
    """Found by an attack: each was accepted, and repeated in an error."""
    assert has_secret(uri)
    with pytest.raises(PlaceError) as refused:
        file_system(uri)
    assert "SEKRET" not in str(refused.value)


def test_uri_without_a_bucket_is_refused():
    with pytest.raises(pa.ArrowInvalid, match="no bucket"):
        file_system("s3:///b/x")


@pytest.mark.parametrize("path", ["/archive/100%", "s3://bucket/100%25/a", "s3://b/%2525", "/a%zz"])
def test_percent_sign_is_not_a_secret(path):
    assert not has_secret(path)


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ("s3a://Bucket/A", "s3://Bucket/A"), ("S3N://b", "s3://b"), ("S3://b/s3a://x", "s3://b/s3a://x"),
        ("GS://b/x", "gs://b/x"), ("s3://b", "s3://b"), ("/S/a://b", "/S/a://b"), ("A/s3a", "A/s3a"),
    ],
)  # fmt: skip
def test_schemes_have_one_spelling(given, same):
    assert canonical(given) == same
    assert canonical(same) == same
    assert normal_uri(given) == normal_uri(same)
    assert as_hadoop_names_it("s3://b/s3://") == "s3a://b/s3://"
    assert as_hadoop_names_it("/s3://b") == "/s3://b"


def test_s3a_uri_refers_to_the_same_files(monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    for uri in ("s3a://b/a%20b", "s3n://b/a%20b", "S3://b/a%20b"):
        for filesystem, path in (file_system(uri), locate(uri)):
            assert filesystem.equals(file_system("s3://b/a%20b")[0])
            assert path == "b/a b"
