"""Settings of object stores as both libraries get them, without a server."""

from __future__ import annotations

import json
import pickle

import pyarrow as pa
import pytest

from lastkey.logformat.errors import PlaceError
from lastkey.logformat.storage.buckets import address, delta_place, parse_bucket
from lastkey.logformat.storage.hadoop import as_hadoop_names_it
from lastkey.logformat.storage.locations import canonical, file_system

AZURES = "https://me.blob.core.windows.net"
NAMES = ("ACCOUNT_NAME", "ACCOUNT", "ACCOUNT_KEY", "KEY", "SAS_TOKEN", "SAS_KEY", "ENDPOINT")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in (*(f"AZURE_STORAGE_{name}" for name in NAMES), "AZURE_ENDPOINT", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("uri", "given", "url"),
    [
        ("abfss://c@me.dfs.core.windows.net/a", {}, AZURES),
        ("abfs://c@me.blob.core.windows.net/a", {"ACCOUNT_NAME": "other"}, AZURES),
        ("abfss://c@me.dfs.core.chinacloudapi.cn/a", {}, "https://me.blob.core.chinacloudapi.cn"),
        ("az://c/a", {"ACCOUNT_NAME": "me"}, AZURES),
        ("az://c/a", {"ACCOUNT": "me"}, AZURES),
        ("az://c/a", {"ENDPOINT": "http://127.0.0.1:10000/me"}, "http://127.0.0.1:10000/me"),
        ("az://c/a", {"ENDPOINT": "https://me.blob.example.net/"}, "https://me.blob.example.net"),
        ("abfss://c@me.dfs.core.windows.net/a", {"ENDPOINT": "http://127.0.0.1:1/me"}, "http://127.0.0.1:1/me"),
        ("abfss://c@me.dfs.core.windows.net/a", {"ENDPOINT": "http://127.0.0.1:1/other"}, AZURES),
    ],
)
def test_azure_account_is_read_from_a_uri(uri, given, url, monkeypatch):
    for name, value in given.items():
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aHVzaA==")
    bucket = parse_bucket(uri)
    assert bucket is not None and (bucket.endpoint, bucket.account) == (url, "me")
    assert "aHVzaA" not in repr(bucket)
    place, options = delta_place(bucket, "c/a b")
    assert place == "az://c/a%20b"
    assert (options["azure_storage_endpoint"], options["azure_storage_account_key"]) == (url, "aHVzaA==")
    assert address(uri) == ("az", "me", "c")
    assert file_system(uri)[1] == "c/a"


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("", "no account of Azure: set AZURE_STORAGE_ACCOUNT_NAME"),
        ("ftp://h/a", "an endpoint"),
        ("http://h:1", "an endp"),
    ],
)
def test_azure_uri_without_an_account_is_refused(endpoint, message, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
    with pytest.raises(pa.ArrowInvalid, match=message):
        file_system("az://c/a")


def test_credentials_in_an_endpoint_are_refused(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "https://u:hush@me.blob.core.windows.net")
    with pytest.raises((PlaceError, pa.ArrowInvalid)) as refused:
        file_system("az://c/a")
    assert "hush" not in str(refused.value)


def test_hadoop_uris_and_canonical_uris_are_equivalent(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "me")
    assert as_hadoop_names_it("az://c/a") == "abfss://c@me.dfs.core.windows.net/a"
    assert canonical("GCS://b/x") == as_hadoop_names_it("gs://b/x") == "gs://b/x"


def test_google_emulator_is_accessed_without_credentials(monkeypatch):
    google = parse_bucket("gs://b/a")
    assert google is not None and dict(google.settings)["google_skip_signature"] == "false"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:4443")
    emulator = parse_bucket("gs://b/a")
    assert emulator is not None
    place, options = delta_place(emulator, "b/a")
    key = json.loads(options["google_service_account_key"])
    assert (place, key["gcs_base_url"], key["disable_oauth"]) == ("gs://b/a", "http://127.0.0.1:4443", True)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_every_endpoint_variable_of_s3_is_used(name, monkeypatch):
    """object_store itself reads AWS_ENDPOINT. The other clients must use the same server, with the same scheme."""
    for each in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    bucket = parse_bucket("s3://b/a")
    assert bucket is not None and bucket.endpoint == "http://127.0.0.1:9" and bucket.allows_http
    assert delta_place(bucket, "b/a")[1]["AWS_ENDPOINT_URL"] == "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "uri", ["s3://b/a", "gs://b/a", "gs://anonymous@b/a", "abfss://c@me.dfs.core.chinacloudapi.cn/a"]
)
def test_pickled_file_system_refers_to_the_same_bucket(uri, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    store = file_system(uri)[0]
    assert pickle.loads(pickle.dumps(store)).equals(store)
