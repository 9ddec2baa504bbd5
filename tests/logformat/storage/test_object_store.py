"""Files in a bucket: what is written, read ahead and listed, through a real server."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import numpy as np
import pytest
from pyarrow import fs as pafs

from lastkey.logformat.errors import AccessError, unreadable
from lastkey.logformat.storage.io_counts import counted, limited, paid
from lastkey.logformat.storage.locations import file_system
from lastkey.logformat.storage.object_store import ObjectStore
from tests.builders.s3_proxy import CUT, SLOW_DOWN, Fault, S3Proxy, every, s3_proxy
from tests.builders.s3_server import BUCKET, environment, s3_server

MIB = 1 << 20
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def proxy(port: int) -> Iterator[S3Proxy]:
    with s3_proxy(port) as proxy, environment({"AWS_ENDPOINT_URL": proxy.url}):
        yield proxy


@pytest.fixture
def store(proxy: S3Proxy) -> ObjectStore:
    return file_system(BUCKET)[0]


def put(store: ObjectStore, path: str, data: bytes) -> None:
    with store.open_output_stream(path) as stream:
        stream.write(data)


def content(store: ObjectStore, path: str) -> bytes:
    with store.open_input_file(path) as file:
        return file.read()


def test_written_bytes_are_copied_from_the_buffer(store: ObjectStore) -> None:
    """A writer uses its buffer again: the parts of a large file are sent later."""
    buffer, expected = np.empty(3 * MIB, np.uint8), b""
    with store.open_output_stream("logs/reused") as stream:
        for i in range(6):
            buffer[:] = i
            stream.write(buffer.data)
            expected += buffer.tobytes()
        assert stream.tell() == len(expected)
        buffer[:] = 99
    assert content(store, "logs/reused") == expected


@pytest.mark.parametrize("wrap", [lambda stream: stream, paid], ids=["plain", "paid"])
def test_failed_write_creates_no_object(store: ObjectStore, wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(KeyError), wrap(store.open_output_stream("logs/failed")) as stream:
        stream.write(bytes(12 * MIB))
        raise KeyError
    assert store.get_file_info("logs/failed").type == pafs.FileType.NotFound
    with pytest.raises(FileNotFoundError, match="s3://logs/failed"):
        store.open_input_file("logs/failed")


def test_put_if_absent_succeeds_once(store: ObjectStore) -> None:
    assert store.put_if_absent("logs/once", b"1")
    assert not store.put_if_absent("logs/once", b"2")
    assert content(store, "logs/once") == b"1"


def test_prefetched_parts_equal_the_requested_parts(store: ObjectStore, proxy: S3Proxy) -> None:
    """Whatever the order and size in which they are wanted; each byte comes from the server once."""
    data = np.random.default_rng(1).integers(0, 256, 24 * MIB, np.uint8).tobytes()
    put(store, "logs/ahead", data)
    ranges: list[str] = []
    proxy.decide = lambda method, path: ranges.append(path) if method == "GET" else None
    step, content, out = 3 * MIB, b"", bytearray(4 * MIB)
    with store.open_input_file("logs/ahead") as file, counted() as counts:
        while len(content) < len(data):
            file.seek(len(content))
            n = 0
            while n < min(len(out), len(data) - len(content)):
                n += file.readinto(memoryview(out)[n:])
            content += out[: min(n, step)]  # as a batch that continues behind the buffer
            wanted = range(len(content), len(data), len(out))
            file.will_read((start, min(len(out), len(data) - start)) for start in wanted)
    assert content == data
    assert counts["read"] == len(ranges) <= 14


def test_prefetching_is_disabled_with_a_limit_and_for_small_reads(store: ObjectStore, proxy: S3Proxy) -> None:
    put(store, "logs/limit", bytes(4 * MIB))
    with store.open_input_file("logs/limit") as file, counted() as counts:
        file.will_read([(0, 1000)])
        with limited(1e9):
            file.will_read([(0, 4 * MIB)])
    assert counts["read"] == 0


def test_error_of_a_prefetched_part_is_raised_at_its_read(store: ObjectStore, proxy: S3Proxy) -> None:
    put(store, "logs/error", bytes(4 * MIB))
    with store.open_input_file("logs/error") as file:
        proxy.decide = lambda method, path: Fault(status=503)
        file.will_read([(0, 4 * MIB)])
        with pytest.raises(AccessError, match="is not available: 503"):
            file.readinto(bytearray(10))
        proxy.decide = lambda method, path: None
        assert file.read_at(10, 4 * MIB - 5) == bytes(5)


def test_failed_requests_are_retried(store: ObjectStore, proxy: S3Proxy) -> None:
    proxy.decide = every(2, CUT)
    put(store, "logs/repeated", bytes(range(256)) * (50 << 10))
    assert content(store, "logs/repeated") == bytes(range(256)) * (50 << 10)
    assert len(proxy.happened) > 2


def test_folders_are_prefixes_of_keys(store: ObjectStore) -> None:
    for name in ("a/b/1", "a/b/c/2", "a/d", "ab"):
        put(store, f"logs/tree/{name}", b"x")
    listed = store.get_file_info(pafs.FileSelector("logs/tree"))
    assert [(info.base_name, info.is_file) for info in listed] == [("a", False), ("ab", True)]
    below = store.get_file_info(pafs.FileSelector("logs/tree/a", recursive=True))
    assert [info.path.removeprefix("logs/tree/") for info in below] == ["a/b", "a/b/1", "a/b/c", "a/b/c/2", "a/d"]
    kinds = store.get_file_info(["logs/tree/a", "logs/tree/ab", "logs/tree/no", "logs"])
    assert [info.type.name for info in kinds] == ["Directory", "File", "NotFound", "Directory"]
    with pytest.raises(FileNotFoundError, match="no such folder"):
        store.get_file_info(pafs.FileSelector("logs/tree/none"))
    store.delete_dir("logs/tree/a")
    assert [info.base_name for info in store.get_file_info(pafs.FileSelector("logs/tree"))] == ["ab"]
    store.delete_dir("logs/tree/a")
    store.copy_file("logs/tree/ab", "logs/tree/copy")
    assert content(store, "logs/tree/copy") == b"x"
    store.delete_file("logs/tree/copy")
    assert store.get_file_info(pafs.FileSelector("logs/none", allow_not_found=True)) == []


def marked(port: int, *keys: str) -> None:
    """Put objects that obstore cannot name: an empty one `folder/`, as consoles make for a folder."""
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}")
    for key in keys:
        client.put_object(Bucket="logs", Key=key, Body=b"")


def test_empty_object_with_the_name_of_a_folder_is_not_a_file(store: ObjectStore, port: int) -> None:
    put(store, "logs/marked/t-0/1.log", b"x")
    marked(port, "marked/", "marked/t-0/", "only/")
    for recursive, expected in ((False, ["t-0"]), (True, ["t-0", "t-0/1.log"])):
        infos = store.get_file_info(pafs.FileSelector("logs/marked", recursive=recursive))
        assert [info.path.removeprefix("logs/marked/") for info in infos] == expected
    assert store.get_file_info(pafs.FileSelector("logs/only", allow_not_found=True)) == []


def test_deleting_a_folder_deletes_nothing_else(store: ObjectStore, port: int) -> None:
    for name in ("a", "ab", "a/1"):
        put(store, f"logs/beside/{name}", b"x")
    marked(port, "beside/a/")
    store.delete_dir("logs/beside/a")
    assert content(store, "logs/beside/a") == content(store, "logs/beside/ab") == b"x"
    with pytest.raises(ValueError, match="found the bucket itself"):
        store.delete_dir("logs")


@pytest.mark.parametrize("code", ["NoSuchBucket", ""])
def test_not_found_response_without_an_object_error_is_not_a_missing_object(
    store: ObjectStore, proxy: S3Proxy, code: str
) -> None:
    """HEAD is answered without words: a missing bucket, or a proxy's fault, looks like a missing object."""
    put(store, "logs/there", b"x")
    fault = Fault(status=404, code=code)
    proxy.decide = lambda method, path: fault if code or method == "HEAD" else None
    with pytest.raises(AccessError if code else OSError) as raised:
        store.open_input_file("logs/there")
    assert not isinstance(raised.value, FileNotFoundError)
    if code:
        with pytest.raises(AccessError, match="there is no such bucket"):
            store.get_file_info("logs/there")


def test_refused_upload_reports_the_first_error(store: ObjectStore, proxy: S3Proxy) -> None:
    proxy.decide = lambda method, path: Fault(status=403, code="AccessDenied") if method in ("PUT", "DELETE") else None
    with pytest.raises(AccessError, match="access is denied"), store.open_output_stream("logs/refused") as stream:
        for _ in range(40):
            stream.write(bytes(MIB))


def test_busy_server_only_delays_requests(store: ObjectStore, proxy: S3Proxy) -> None:
    put(store, "logs/busy", b"x")
    left = [SLOW_DOWN] * 5
    proxy.decide = lambda method, path: left.pop() if left else None
    assert content(store, "logs/busy") == b"x"
    assert not left


def test_invalid_settings_are_bucket_errors(port: int) -> None:
    with environment({"AWS_CA_BUNDLE": "/no/such.pem"}):
        elsewhere = file_system(BUCKET)[0]
        for ask in (lambda: elsewhere.open_input_file("logs/x"), lambda: elsewhere.get_file_info("logs/x")):
            with pytest.raises(AccessError, match=r"cannot be used: .*No such file"):
                ask()


def test_object_replaced_while_being_read_is_an_error(store: ObjectStore) -> None:
    put(store, "logs/replaced", bytes(100))
    with store.open_input_file("logs/replaced") as file:
        assert file.read(10) == bytes(10)
        put(store, "logs/replaced", b"1" * 100)
        with pytest.raises(OSError, match="another object"):
            file.read(10)
        put(store, "logs/replaced", b"1" * 15)
        with pytest.raises(OSError, match="another object"):
            file.read(10)


def test_bucket_error_can_be_pickled() -> None:
    error = AccessError("is not available", "s3://b", "503")
    again = pickle.loads(pickle.dumps(error))
    assert (again.kind, again.where, again.found, str(again)) == (error.kind, error.where, error.found, str(error))
    with pytest.raises(AccessError):
        unreadable("x", again)


def test_pickled_file_system_has_no_credentials(store: ObjectStore) -> None:
    """Spark keeps what a task needs in files. The other side takes the key from its own environment."""
    pickled = pickle.dumps(store)
    assert b"secret" not in pickled
    again = pickle.loads(pickled)
    assert again.equals(store)
    put(again, "logs/pickled", b"x")
    assert content(store, "logs/pickled") == b"x"


@pytest.mark.parametrize("key", ["odd/t-1//x", "odd/t-1/./x", "odd/t-1/../x"])
def test_invalid_object_key_stops_only_the_listing_of_its_folder(store: ObjectStore, proxy: S3Proxy, key: str) -> None:
    put(store, "logs/odd/t-0/whole", b"x")
    client = boto3.client("s3", endpoint_url=proxy.url)
    client.put_object(Bucket="logs", Key=key, Body=b"x")
    try:
        assert store.get_file_info("logs/odd").type == pafs.FileType.Directory
        assert store.get_file_info("logs/odd/t-1").type == pafs.FileType.Directory
        assert [info.base_name for info in store.get_file_info(pafs.FileSelector("logs/odd"))] == ["t-0", "t-1"]
        assert len(store.get_file_info(pafs.FileSelector("logs/odd/t-0"))) == 1
        with pytest.raises(OSError, match=r"invalid path: .*odd/t-1/"):
            store.get_file_info(pafs.FileSelector("logs/odd/t-1"))
    finally:
        client.delete_object(Bucket="logs", Key=key)
