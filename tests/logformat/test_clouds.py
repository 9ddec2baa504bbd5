"""Settings of object stores as both libraries get them, and their messages, without a server."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from lastkey.logformat.access_error import DENIED, NO_BUCKET, NO_CREDENTIALS, UNREACHABLE, AccessError
from lastkey.logformat.azure_access import azure_access
from lastkey.logformat.clouds import access_error, bucket_address, delta_place
from lastkey.logformat.errors import stopped
from lastkey.logformat.locations import SecretInUriError, as_hadoop_names_it, canonical, file_system

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
def test_the_account_of_a_uri(uri, given, url, monkeypatch):
    for name, value in given.items():
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aHVzaA==")
    access = azure_access(uri)
    assert (access.url, access.account) == (url, "me")
    assert "aHVzaA" not in repr(access)
    place, options = delta_place(uri, "c/a b")
    assert place == "az://c/a%20b" and options is not None
    assert (options["azure_storage_endpoint"], options["azure_storage_account_key"]) == (url, "aHVzaA==")
    assert bucket_address(uri) == ("az", "me", "c")
    assert file_system(uri)[1] == "c/a"


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("", "no account of Azure: set AZURE_STORAGE_ACCOUNT_NAME"),
        ("ftp://h/a", "an endpoint"),
        ("http://h:1", "an endp"),
    ],
)
def test_an_account_that_nobody_names(endpoint, said, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
    with pytest.raises(pa.ArrowInvalid, match=said):
        file_system("az://c/a")


def test_credentials_in_an_endpoint_are_refused(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "https://u:hush@me.blob.core.windows.net")
    with pytest.raises((SecretInUriError, pa.ArrowInvalid)) as refused:
        file_system("az://c/a")
    assert "hush" not in str(refused.value)


def test_names_of_the_same(monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "me")
    assert as_hadoop_names_it("az://c/a") == "abfss://c@me.dfs.core.windows.net/a"
    assert canonical("GCS://b/x") == as_hadoop_names_it("gs://b/x") == "gs://b/x"


def test_another_server_of_google_is_asked_without_credentials(monkeypatch):
    assert delta_place("gs://b/a", "b/a")[1]["google_skip_signature"] == "false"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:4443")
    place, options = delta_place("gs://b/a", "b/a")
    key = json.loads(options["google_service_account_key"])
    assert (place, key["gcs_base_url"], key["disable_oauth"]) == ("gs://b/a", "http://127.0.0.1:4443", True)


@pytest.mark.parametrize(
    ("said", "kind", "where", "found"),
    [
        ("UploadFrom failed for 'https://me.blob.core.windows.net/c/x'. Azure Error: [ContainerNotFound] 404 The "
         "specified container does not exist.\nRequestId:1", NO_BUCKET, f"az://c at {AZURES}",
         "ContainerNotFound: The specified container does not exist"),
        ("GetProperties failed for 'https://me.blob.core.windows.net/c/x'. Azure Error: [AuthenticationFailed] 403 "
         "Server failed to authenticate the request. Make sure", DENIED, f"az://c at {AZURES}",
         "AuthenticationFailed: Server failed to authenticate the request. Make sure"),
        ("Kernel error -> Generic MicrosoftAzure error\n \u21b3 Error performing token request\n \u21b3 x",
         NO_CREDENTIALS, "Azure", "Error performing token request: x"),
        ("google::cloud::Status(UNAVAILABLE: Retry policy exhausted, with a last message of PerformWork() - CURL error "
         "[7]=Could not connect to server error_info={reason=})", UNREACHABLE, "gs://",
         "PerformWork() - CURL error [7]=Could not connect to server"),
    ],
)  # fmt: skip
def test_words_of_the_libraries(said, kind, where, found):
    error = access_error(said)
    assert error is not None and (error.kind, error.where, error.found) == (kind, where, found)


def test_a_write_that_azure_refuses_is_the_containers_fault(monkeypatch):
    """A read is not: the role may lack that one file."""
    refused = "failed for 'https://me.blob.core.windows.net/c/x'. Azure Error: [AuthorizationPermissionMismatch] 403 no"
    monkeypatch.setattr("lastkey.logformat.azure_access.blamed", lambda said: ("az://c", lambda: None))  # it is there
    for name in ("UploadFrom", "StageBlock", "CommitBlockList"):
        with pytest.raises(AccessError, match="access is denied: AuthorizationPermissionMismatch: no"):
            stopped(OSError(f"{name} {refused}"), "t-0")
    assert stopped(OSError(f"GetProperties {refused}"), "t-0").kind == "unwritable"


def test_a_blob_that_is_not_there_is_no_fault_of_the_store():
    assert access_error("GetProperties failed for 'x'. Azure Error: [BlobNotFound] 404 The specified blob") is None
