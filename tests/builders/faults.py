"""Faults on purpose: real files that change while they are read, real operations that fail. For tests alone.

    with faults(tmp_path, Fault("read", "*/t-0/*.log", nth=2, flip=(1000, 0x40))): ...        # in this process
    subprocess.run([...], env=faulty_environment(tmp_path, Fault("fsync", "*/segments/*", error="EIO")))   # in a child

A `Fault` names a kind of operation, a pattern of paths (fnmatch on the absolute path), and which of the matching
operations it means: the `nth` and so many `times` from there on (None: for ever). It does one of

    error="EIO"          the operation fails with this errno
    flip=(1000, 0x40)    before the operation, byte 1000 of the file is XORed with 0x40
    truncate=500         before it, the file is cut to 500 bytes
    replace=b"..."       before it, another file of these bytes takes the file's name
    raises=KeyError()    the operation raises this, in this process alone

Else than with an error, the operation goes through to the real file. `at=1000` narrows `read` to reads that cover byte
1000. So a test can mean "the second read of this batch" without knowing how many reads there are.

Operations, and where they are caught:

    open      pyarrow.fs (for reading), and Python's own open, io.FileIO, os.open for reading
    read      files that pyarrow.fs opened; RegularFile; os.pread; the C library's pread as compiled kernels call it
    list      FileSelector and os.listdir, os.scandir
    create    pyarrow.fs (for writing), os.open and open for writing, create_dir
    write     streams that pyarrow.fs opened
    fsync     os.fsync
    rename    os.rename, os.replace, Path.replace
    delete    pyarrow.fs and os.remove, os.unlink

The means: `logformat.storage.locations` is the one place that makes a file system. In it pyarrow's LocalFileSystem
becomes a subclass. So every check for a local root still sees a local one, with real paths, locks, fsync and mmap.
Opens, lists, renames and deletes by Python itself are audit events (PEP 578), which may raise; os.pread and os.fsync
are wrapped. The C library's pread is one symbol that LLVM looks up when a kernel is loaded: a child binds it to a
function that counts and then calls the real one. A process that has loaded its kernels already cannot; faults in a read
of headers alone (batches/reader.py) are therefore tested in a child. No C compiler is needed.

Spark's workers and all other children of a child inherit the faults, by a `sitecustomize` on PYTHONPATH. Operations are
counted in files of a folder, under a lock: the n-th operation is the n-th of all processes together. Those files also
say whether a fault came to pass: `happened(folder)`; a test that does not look there may test nothing.

Not caught: reads through a memory map (a search's windows), other FileIO's reads, the JVM's operations, S3. A map of a
file that is cut ends the process by SIGBUS, which is no exception.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import fcntl
import fnmatch
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from pyarrow import fs as pafs

from lastkey.logformat.storage import locations, regular_files

Operation = Literal["open", "read", "list", "create", "write", "fsync", "rename", "delete"]
VARIABLE = "LASTKEY_TEST_FAULTS"
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Fault:
    """One fault; see the module's docstring."""

    on: Operation
    path: str
    nth: int = 1
    times: int | None = 1
    at: int | None = None
    error: str | None = None
    flip: tuple[int, int] | None = None
    truncate: int | None = None
    replace: bytes | None = None
    raises: BaseException | None = None

    def __post_init__(self) -> None:
        chosen = [self.error, self.flip, self.truncate, self.replace, self.raises]
        if sum(c is not None for c in chosen) != 1:
            raise ValueError(f"one of error, flip, truncate, replace, raises: {self}")
        if self.error is not None and not hasattr(errno, self.error):
            raise ValueError(f"no such errno: {self.error}")


@contextmanager
def faults(folder: Path, *given: Fault) -> Iterator[None]:
    """Let faults happen in this process while the block runs. `folder`: keeps their counts."""
    from lastkey.udfs.storage import root_made_once

    plan = _Plan(_folder(folder), given)
    before = locations.pafs
    locations.pafs = SimpleNamespace(LocalFileSystem=_Local, FileSystem=_FromUri)
    wrapped = os.pread, os.fsync
    root_made_once.cache_clear()
    _hook_once()
    _state.plan = plan
    os.pread, os.fsync = _pread, _fsync
    regular_files.RegularFile = _Regular  # type: ignore[misc]
    try:
        yield
    finally:
        os.pread, os.fsync = wrapped
        regular_files.RegularFile = _RealRegular  # type: ignore[misc]
        _state.plan = None
        locations.pafs = before
        root_made_once.cache_clear()


def faulty_environment(folder: Path, *given: Fault, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment of a child in which, and in whose children, faults happen."""
    counted = _folder(folder)
    site = counted / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("from tests.builders import faults\n\nfaults.install_from_environment()\n")
    paths = (str(site), str(_ROOT), base.get("PYTHONPATH", ""))
    return {
        **base, "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        VARIABLE: json.dumps({"folder": str(counted), "faults": [_to_json(fault) for fault in given]}),
    }  # fmt: skip


def happened(folder: Path) -> list[int]:
    """Return how many operations each fault has changed or failed, in all processes, in the order of the faults."""
    counted = folder / "faults"
    n = len(list(counted.glob("*.seen")))
    return [_size(counted / f"{i}.done") for i in range(n)]


def install_from_environment() -> None:
    """Install the faults of the environment for good, in a child: `sitecustomize` calls this."""
    text = os.environ.get(VARIABLE)
    if not text:
        return
    report = json.loads(text)
    locations.pafs = SimpleNamespace(LocalFileSystem=_Local, FileSystem=_FromUri)
    _hook_once()
    _state.plan = _Plan(Path(report["folder"]), [_from_json(fault) for fault in report["faults"]])
    os.pread, os.fsync = _pread, _fsync
    regular_files.RegularFile = _Regular  # type: ignore[misc]
    _bind_pread()


def _folder(folder: Path) -> Path:
    counted = folder / "faults"
    counted.mkdir()
    return counted


def _to_json(fault: Fault) -> dict[str, Any]:
    out = asdict(fault)
    out["replace"] = None if fault.replace is None else base64.b64encode(fault.replace).decode()
    return out


def _from_json(fields: dict[str, Any]) -> Fault:
    replace, flip = fields.pop("replace"), fields.pop("flip")
    data = None if replace is None else base64.b64decode(replace)
    return Fault(**fields, replace=data, flip=None if flip is None else tuple(flip))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _State(threading.local):
    """Thread's state; while `inside`, it works for a fault, and its operations do not count."""

    inside = False


_thread = _State()
_state = SimpleNamespace(plan=None, hooked=False)
_real_pread, _real_fsync = os.pread, os.fsync


class _Plan:
    def __init__(self, folder: Path, given: Any) -> None:
        self.folder, self.faults = folder, tuple(given)
        for i in range(len(self.faults)):
            (folder / f"{i}.seen").touch()

    def meet(self, on: Operation, path: str, start: int | None = None, size: int | None = None) -> None:
        """Change the file or raise, if a fault says so, before an operation happens."""
        for i, fault in enumerate(self.faults):
            if fault.on != on or not fnmatch.fnmatch(path, fault.path):
                continue
            if fault.at is not None and not (start is not None and start <= fault.at < start + (size or 0)):
                continue
            number = self._add(f"{i}.seen")
            if number < fault.nth or (fault.times is not None and number >= fault.nth + fault.times):
                continue
            self._add(f"{i}.done")
            if fault.raises is not None:
                raise fault.raises
            if fault.error is not None:
                code = getattr(errno, fault.error)
                raise OSError(code, os.strerror(code), path)
            _change(Path(path), fault)

    def _add(self, name: str) -> int:
        descriptor = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(descriptor, b".")
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)


def _change(path: Path, fault: Fault) -> None:
    if fault.flip is not None:
        position, mask = fault.flip
        with path.open("r+b") as file:
            file.seek(position)
            (byte,) = file.read(1)
            file.seek(position)
            file.write(bytes([byte ^ mask]))
    elif fault.truncate is not None:
        os.truncate(path, fault.truncate)
    elif fault.replace is not None:
        new = path.with_name(f".{path.name}.new")
        new.write_bytes(fault.replace)
        new.replace(path)


def _meet(on: Operation, path: Any, start: int | None = None, size: int | None = None) -> None:
    if _state.plan is None or _thread.inside or not isinstance(path, str | bytes | os.PathLike):
        return
    _thread.inside = True
    try:
        _state.plan.meet(on, os.path.abspath(os.fsdecode(path)), start, size)  # noqa: PTH100 - links stay as they are
    finally:
        _thread.inside = False


# -- Python's own operations


def _hook_once() -> None:
    if not _state.hooked:
        _state.hooked = True
        sys.addaudithook(_audit)  # hooks cannot be removed: without a plan this one does nothing


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _state is None or _state.plan is None:  # the interpreter ends, and the module is gone already
        return
    if event == "open":
        path, mode, flags = arguments
        writes = (
            any(c in mode for c in "wax+") if isinstance(mode, str) else bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))
        )
        _meet("create" if writes else "open", path)
    elif event in _AUDITED:
        _meet(_AUDITED[event], arguments[0])


_AUDITED: dict[str, Operation] = {
    "os.listdir": "list", "os.scandir": "list", "os.rename": "rename", "os.remove": "delete",
}  # fmt: skip


def _descriptor_path(descriptor: int) -> str:
    return str(Path(f"/proc/self/fd/{descriptor}").readlink()).removesuffix(" (deleted)")


def _pread(descriptor: int, n: int, position: int) -> bytes:
    _meet("read", _descriptor_path(descriptor), position, n)
    return _real_pread(descriptor, n, position)


def _fsync(descriptor: Any) -> None:
    number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
    _meet("fsync", _descriptor_path(number))
    _real_fsync(number)


# -- the C library's pread, as kernels call it

_C_PREAD = ctypes.CFUNCTYPE(
    ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, use_errno=True
)
_bound: list[Any] = []  # kept, so that the address stays valid


def _bind_pread() -> None:
    from llvmlite import binding

    real = ctypes.CDLL(None, use_errno=True).pread
    real.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64)
    real.restype = ctypes.c_ssize_t

    def pread(descriptor: int, buffer: int, n: int, position: int) -> int:
        try:
            _meet("read", _descriptor_path(descriptor), position, n)
        except OSError as error:
            ctypes.set_errno(error.errno)
            return -1
        return int(real(descriptor, buffer, n, position))

    _bound.append(_C_PREAD(pread))
    binding.add_symbol("pread", ctypes.cast(_bound[0], ctypes.c_void_p).value)


# -- pyarrow.fs


class _Local(pafs.LocalFileSystem):  # type: ignore[misc]
    """The local file system; each operation asks first whether it is to fail."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _Local, ()

    def get_file_info(self, what: Any) -> Any:
        if isinstance(what, pafs.FileSelector):
            _meet("list", what.base_dir)
        return super().get_file_info(what)

    def open_input_file(self, path: str) -> Any:
        _meet("open", path)
        return _File(super().open_input_file(path), path)

    def open_input_stream(self, path: str, *args: Any, **given: Any) -> Any:
        _meet("open", path)
        return _File(super().open_input_stream(path, *args, **given), path)

    def open_output_stream(self, path: str, *args: Any, **given: Any) -> Any:
        _meet("create", path)
        return _File(super().open_output_stream(path, *args, **given), path)

    def create_dir(self, path: str, *args: Any, **given: Any) -> None:
        _meet("create", path)
        super().create_dir(path, *args, **given)

    def delete_file(self, path: str) -> None:
        _meet("delete", path)
        super().delete_file(path)

    def delete_dir(self, path: str) -> None:
        _meet("delete", path)
        super().delete_dir(path)

    def copy_file(self, source: str, target: str) -> None:
        _meet("read", source, 0, os.path.getsize(source))  # noqa: PTH202 - as pyarrow reads it
        _meet("create", target)
        super().copy_file(source, target)


_RealRegular = regular_files.RegularFile


class _Regular(_RealRegular):
    """A local file opened for reading. Opening it is two audit events, and one operation."""

    def __init__(self, path: str, opener: Any) -> None:
        _meet("open", path)
        _thread.inside = True
        try:
            super().__init__(path, opener=opener)
        finally:
            _thread.inside = False

    def read(self, size: int | None = -1, /) -> bytes:
        _meet("read", self.name, self.tell(), 2**62 if size is None or size < 0 else size)
        return super().read(size)

    def readinto(self, buffer: Any, /) -> int:
        _meet("read", self.name, self.tell(), memoryview(buffer).nbytes)
        return super().readinto(buffer)


class _FromUri:
    @staticmethod
    def from_uri(uri: str) -> tuple[Any, str]:
        resolved, path = pafs.FileSystem.from_uri(uri)
        return (_Local() if isinstance(resolved, pafs.LocalFileSystem) else resolved), path


class _File:
    """An open pyarrow file that passes every call on to the real one."""

    def __init__(self, real: Any, path: str) -> None:
        self._real, self._path = real, path
        self._n_read = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._real.close()

    def read(self, nbytes: int | None = None) -> bytes:
        position = int(self._real.tell()) if self._real.seekable() else self._n_read
        _meet("read", self._path, position, 2**62 if nbytes is None else nbytes)
        data: bytes = self._real.read() if nbytes is None else self._real.read(nbytes)
        self._n_read += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        _meet("read", self._path, int(self._real.tell()), len(buffer))
        return int(self._real.readinto(buffer))

    def read_at(self, nbytes: int, offset: int) -> bytes:
        _meet("read", self._path, offset, nbytes)
        data: bytes = self._real.read_at(nbytes, offset)
        return data

    def write(self, data: Any) -> int:
        _meet("write", self._path)
        return int(self._real.write(data))
