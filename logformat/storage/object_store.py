"""Files in a bucket, through obstore, by the methods of pyarrow.fs.FileSystem that Lastkey uses.

Paths begin with the bucket's name, as pyarrow's do. A bucket has no folders: one exists as long as an object's key
begins with its name and a slash.

Each request ends: to a server that cannot be reached, within 10 seconds; to a server that falls silent, within 13
seconds (while a part of a file is sent, within a minute). Temporary errors are retried for 7 seconds.

Errors: FileNotFoundError and PermissionError for one object; AccessError for a bucket that cannot be used for any;
OSError (errno EIO) for any other answer to a request that reads.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, InvalidPathError
from obstore.store import AzureStore, GCSStore, S3Store
from pyarrow import fs as pafs

from lastkey.logformat.errors import AccessError
from lastkey.logformat.storage.access_error import DENIED, EXPIRED, UNAVAILABLE, classify_message, in_one_line
from lastkey.logformat.storage.buckets import Bucket, parse_bucket
from lastkey.logformat.storage.io_counts import count, is_limited
from lastkey.logformat.storage.seekable import SeekableFile

_CONNECT_SECONDS: Final = 3
_SILENT_SECONDS: Final = 6  # since the last byte of an answer
_SENT_SECONDS: Final = 60  # to send a part of a file, until the answer: four at once need a line of 3 Mbit/s
_RETRY: Final = {  # no attempt begins later than after 7 seconds, into which fewer retries fit
    "max_retries": 30, "retry_timeout": timedelta(seconds=7),
    "backoff": {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2},
}  # fmt: skip
_PART_BYTES: Final = 5 << 20  # size of the parts of an upload, S3's minimum; _AHEAD of them are sent at a time
_AHEAD: Final = 4  # parts to fetch ahead of the reader
_LEAST_AHEAD: Final = 1 << 20  # bytes: fetching a smaller range ahead saves almost no time
_MOST_AHEAD: Final = 64 << 20  # bytes of a file: one large batch makes all later parts as large
_THREADS: Final = 64  # threads in a process that wait for servers at the same time
_FAILURES: Final = (BaseError, OSError)  # errors that obstore raises
# Requests of which a 404 is confirmed by a listing; counts as it is; is the fault of the bucket, as any other answer
_READ, _PLAIN, _WRITE = "read", "plain", "write"


class ObjectStore:
    """Files of one bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket

    def __reduce__(self) -> tuple[Callable[[str], ObjectStore], tuple[str]]:
        """Pickle only the URI: Spark writes closures to files, which must not contain the secret key."""
        return _store_for_uri, (self.bucket.uri,)

    @property
    def _store(self) -> Any:
        return _opened(self.bucket, _SILENT_SECONDS, os.getpid())

    def equals(self, other: Any) -> bool:
        """Return whether another file system is the same bucket of the same server."""
        return isinstance(other, ObjectStore) and self.bucket == other.bucket

    def get_file_info(self, asked: pafs.FileSelector | str | list[str]) -> Any:
        """Return the entries that a selector, a path or a list of paths asks for, as pyarrow.fs.FileInfo.

        Raise FileNotFoundError if a selector asks for a folder that does not exist, unless it allows that.
        """
        if isinstance(asked, pafs.FileSelector):
            return self._listed(asked)
        return self._info(asked) if isinstance(asked, str) else list(_pool(os.getpid()).map(self._info, asked))

    def open_input_file(self, path: str) -> ObjectFile:
        """Open an object for reading. Raise FileNotFoundError if there is none."""
        key = self._key(path)
        count(open=1)
        with self._typed(key):
            found = obstore.head(self._store, key)
        return ObjectFile(lambda start, size: self._read(key, start, size, found["e_tag"]), int(found["size"]))

    def open_input_stream(self, path: str, compression: None = None) -> ObjectFile:
        """Open an object for reading from its beginning on."""
        return self.open_input_file(path)

    def open_output_stream(self, path: str, compression: None = None) -> ObjectUpload:
        """Open a new object for writing. It is there, whole, after `close`, and not after an error in a `with`."""
        return ObjectUpload(self, self._key(path))

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Write an object unless there is one of this name; return whether it was written. False also if the answer was
        lost and the object was there when it was tried again.
        """
        key = self._key(path)
        count(write=1)
        with self._typed(key, _WRITE):
            try:
                obstore.put(self._store, key, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def create_dir(self, path: str, recursive: bool = True) -> None:
        """Do no work: a file needs no folder above it."""

    def copy_file(self, source: str, target: str) -> None:
        """Copy an object, on the server."""
        count(copy=1)
        with self._typed(self._key(source), _WRITE):
            obstore.copy(self._store, self._key(source), self._key(target))

    def delete_file(self, path: str) -> None:
        """Delete an object."""
        key = self._key(path)
        count(delete=1)
        with self._typed(key, _PLAIN):
            obstore.delete(self._store, key)

    def delete_dir(self, path: str) -> None:
        """Delete all objects whose keys begin with a path and a slash; never all of a bucket."""
        key = self._key(path)
        if not key:
            raise ValueError(f"{path}: expected a folder in {self.bucket}, found the bucket itself")
        count(list=1)
        with self._typed(key):
            listed = [found["path"] for part in obstore.list(self._store, key) for found in part]
        keys = [each for each in listed if each.startswith(f"{key}/")]  # not the object that an empty `key/` looks like
        count(delete=len(keys))
        with self._typed(key, _PLAIN):
            obstore.delete(self._store, keys)

    def check(self, path: str) -> None:
        """Raise AccessError unless the bucket answers a listing of the folder of a path."""
        beside = "/".join(filter(None, (self._key(path).rpartition("/")[0], "-")))
        count(list=1)
        try:
            obstore.list_with_delimiter(self._store, beside)
        except _FAILURES as error:
            raise self._access_error(error, DENIED) from error

    def _info(self, path: str) -> pafs.FileInfo:
        key = self._key(path)
        path = path.rstrip("/")
        count(info=1)
        if key:
            try:
                with self._typed(key, _PLAIN):  # a 404 is enough: the listing below confirms it, or is refused
                    found = obstore.head(self._store, key)
                return _file_info(self.bucket, found)
            except FileNotFoundError:
                pass
        with self._typed(key):
            try:
                below = bool(next(iter(obstore.list(self._store, key or None)), []))
            except InvalidPathError:  # a key that is not a valid path; the listing of its own folder reports it
                below = True
        is_folder = below or not key
        return pafs.FileInfo(path, pafs.FileType.Directory if is_folder else pafs.FileType.NotFound)

    def _listed(self, asked: pafs.FileSelector) -> list[pafs.FileInfo]:
        """Return the files and folders in a folder, or below it, by path."""
        key = self._key(asked.base_dir)
        count(list=1)
        with self._typed(key):
            if asked.recursive:
                files = [each for part in obstore.list(self._store, key or None) for each in part]
                above = {str(folder) for each in files for folder in PurePosixPath(each["path"]).parents}
                folders = {folder for folder in above if folder.startswith(f"{key}/" if key else "") and folder != "."}
            else:
                found = obstore.list_with_delimiter(self._store, key or None)
                files, folders = list(found["objects"]), set(found["common_prefixes"])
        if "" in folders:
            raise OSError(errno.EIO, "object keys that begin with a slash", self._uri(key))
        # an empty object `key/`, which some programs make for a folder, has the folder's own path here
        files = [one for one in files if one["path"] != key and (one["size"] or one["path"] not in folders)]
        out = [pafs.FileInfo(f"{self.bucket.name}/{name}", pafs.FileType.Directory) for name in folders]
        out += [_file_info(self.bucket, each) for each in files]
        if not out and key and not asked.allow_not_found:
            raise FileNotFoundError(errno.ENOENT, "no such folder in the bucket", self._uri(key))
        return sorted(out, key=lambda info: str(info.path))

    def _read(self, key: str, start: int, size: int, e_tag: str | None) -> Any:
        """Return bytes of an object. Raise OSError if it is another one than was opened, or gives fewer."""
        count(read=1)
        with self._typed(key):
            found = obstore.get(self._store, key, options={"range": (start, start + size)})
            data = found.bytes()
        if len(data) != size or found.meta["e_tag"] not in (None, e_tag):
            words = f"{size} bytes at {start} of the object that was opened: {len(data)}, or another object"
            raise OSError(errno.EIO, f"could not read {words}", self._uri(key))
        return data

    def _key(self, path: str) -> str:
        name, _, key = path.rstrip("/").partition("/")
        if name != self.bucket.name:
            raise ValueError(f"{path}: expected a path in {self.bucket}")
        return key

    @contextmanager
    def _typed(self, key: str, access: str = _READ) -> Iterator[None]:
        """Raise an error of obstore in the block as this module's errors."""
        try:
            yield
        except AccessError:
            raise
        except _FAILURES as error:
            raise self._error(error, key, access) from error

    def _error(self, error: Exception, key: str, access: str) -> Exception:
        uri, kind, words = self._uri(key), classify_message(str(error)), in_one_line(str(error))
        if access != _WRITE and (kind in (DENIED, EXPIRED) or words.startswith("400")):  # perhaps of this object alone,
            try:  # and a HEAD is answered without the server's words
                self.check(f"{self.bucket.name}/{key}")
            except AccessError as found:
                return found
            return PermissionError(errno.EACCES, words, uri)
        if kind is None and isinstance(error, FileNotFoundError) and access != _WRITE:
            if access == _READ and self._is_listed(key):
                return OSError(errno.EIO, "404 for an object that a listing names", uri)
            return FileNotFoundError(errno.ENOENT, "no such object", uri)
        if kind is not None or access == _WRITE:  # the server then accepts no file
            return self._access_error(error, UNAVAILABLE)
        return OSError(errno.EIO, words, uri)

    def _is_listed(self, key: str) -> bool:
        """Return whether a listing names an object. Raise AccessError if the bucket cannot be listed: an answer to HEAD
        has no words, and may be a missing bucket's.
        """
        count(list=1)
        parent = key.rpartition("/")[0]
        try:
            listed = obstore.list(self._store, parent or None, offset=key[:-1])
            return any(found["path"] == key for found in next(iter(listed), []))
        except _FAILURES as error:
            raise self._access_error(error, UNAVAILABLE) from error

    def _access_error(self, error: Exception, otherwise: str) -> AccessError:
        """Return the error of the bucket that obstore's means; otherwise: its kind if the words name none."""
        said = str(error)
        return AccessError(classify_message(said) or otherwise, str(self.bucket), in_one_line(said))

    def _uri(self, key: str) -> str:
        return f"{self.bucket.scheme}://{self.bucket.name}/{key}"


class _Part(NamedTuple):
    start: int
    end: int
    data: Future[Any]


class ObjectFile(SeekableFile):
    """An object that is open for reading. It prefetches the parts that `will_read` names."""

    def __init__(self, read: Callable[[int, int], Any], size: int) -> None:
        """read: returns the bytes from (position, bytes); size: of the object, when it was opened."""
        super().__init__(size)
        self._read = read
        self._depth = 1  # parts to read ahead; doubled at each call, because a reader may stop early
        self._parts: list[_Part] = []

    def will_read(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Start to fetch the first of these (position, bytes) ranges, which the reader will request in this order.
        Parts fetched earlier that are not among them are discarded.
        """
        kept: list[_Part] = []
        ahead = 0
        for (start, size), _ in zip(wanted if not is_limited() else (), range(self._depth), strict=False):
            at, end = start, start + size
            ahead += size
            if size < _LEAST_AHEAD or ahead > _MOST_AHEAD:
                break
            while at < end:
                part = self._part_at(at) or _Part(at, end, _pool(os.getpid()).submit(self._read, at, end - at))
                at = part.end
                if part not in kept:
                    kept.append(part)
        self._forget_all_but(kept)
        self._depth = min(2 * self._depth, _AHEAD)

    def fill(self, position: int, out: memoryview) -> int:
        """Fill `out` as far as one request goes."""
        data = self._at(position, len(out))
        out[: len(data)] = data
        return len(data)

    def read(self, size: int | None = -1, /) -> bytes:
        """Read the next `size` bytes, by default all up to the end."""
        n = self._size - self._position if size is None or size < 0 else size
        data = self.read_at(n, self._position)
        self._position += len(data)
        return data

    def read_at(self, size: int, offset: int) -> bytes:
        """Read up to `size` bytes from an offset on."""
        return bytes(self._fetched(offset, min(size, self._size - offset)))

    def close(self) -> None:
        """Forget what was fetched."""
        self._forget_all_but([])
        super().close()

    def _at(self, position: int, size: int) -> memoryview:
        part = self._part_at(position)
        if part is None:
            return self._fetched(position, min(size, self._size - position))
        try:
            return memoryview(part.data.result())[position - part.start :][:size]
        except BaseException:
            self._parts.remove(part)  # requested again by the next read there
            raise

    def _part_at(self, position: int) -> _Part | None:
        return next((part for part in self._parts if part.start <= position < part.end), None)

    def _forget_all_but(self, kept: list[_Part]) -> None:
        for part in self._parts:
            if part not in kept:
                part.data.cancel()
        self._parts = kept

    def _fetched(self, position: int, size: int) -> memoryview:
        return memoryview(self._read(position, size) if size > 0 else b"").cast("B")


class ObjectUpload:
    """A new object that is open for writing. It exists after `close`."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        count(write=1)
        self._store, self._key = store, key
        with store._typed(key, _WRITE):
            client = _opened(store.bucket, _SENT_SECONDS, os.getpid())
            self._writer = obstore.open_writer(client, key, buffer_size=_PART_BYTES, max_concurrency=_AHEAD)
        self.closed = False
        self._position = 0

    def write(self, data: Any) -> int:
        """Write a copy of these bytes, for obstore sends them later, and return their number."""
        with self._store._typed(self._key, _WRITE):
            n = int(self._writer.write(bytes(data)))
        self._position += n
        return n

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._position

    def close(self) -> None:
        """Complete the upload. Raise AccessError or OSError if the server does not keep it."""
        if not self.closed:
            self.closed = True
            with self._store._typed(self._key, _WRITE):
                self._writer.close()

    def __enter__(self) -> ObjectUpload:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if kind is None:
            self.close()
        elif not self.closed:
            self.closed = True
            with suppress(*_FAILURES):  # the first error counts
                self._writer.__exit__(kind, error, trace)  # gives the upload up


def _store_for_uri(uri: str) -> ObjectStore:
    """Return the files of a bucket by the settings that are here."""
    if (bucket := parse_bucket(uri)) is None:
        raise ValueError(f"{uri}: expected the URI of a bucket")
    return ObjectStore(bucket)


def _file_info(bucket: Bucket, entry: Any) -> pafs.FileInfo:
    mtime_ns = int(entry["last_modified"].timestamp() * 1e6) * 1000
    path = f"{bucket.name}/{entry['path']}"
    return pafs.FileInfo(path, pafs.FileType.File, mtime_ns=mtime_ns, size=entry["size"])


@cache
def _pool(process: int) -> ThreadPoolExecutor:
    """Return this process's threads: a fork does not inherit them."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix=f"bucket-{process}")


@cache
def _opened(bucket: Bucket, silent_seconds: int, process: int) -> Any:
    """Return obstore's client of a bucket, one a process for the sake of its connections."""
    client: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=silent_seconds),
        "timeout": timedelta(hours=1),  # limit for a request with its answer, however slow
        "allow_http": bucket.allows_http,
    }
    try:
        if bucket.certificates:
            client["root_certificate"] = Path(bucket.certificates).read_bytes()
        given: dict[str, Any] = {"config": dict(bucket.settings), "client_options": client, "retry_config": _RETRY}
        if bucket.profile:
            from obstore.auth.boto3 import Boto3CredentialProvider  # noqa: PLC0415 - slow, and only profiles need it

            given["credential_provider"] = Boto3CredentialProvider()
        return {"s3": S3Store, "az": AzureStore, "gs": GCSStore}[bucket.scheme](bucket.name, **given)
    except (*_FAILURES, ValueError) as error:
        said = in_one_line(str(error))
        raise AccessError(DENIED, str(bucket), f"its settings or credentials cannot be used: {said}") from error
