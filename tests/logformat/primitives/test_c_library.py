"""C libraries where the wheel has none that can be used."""

from __future__ import annotations

import ctypes.util
from pathlib import Path

import pytest

from lastkey.logformat.primitives import c_library, lz4_kernels

SYMBOL = "LZ4_versionNumber"  # no kernel calls it


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the extension of a package, which is no library at all."""
    package = tmp_path / "another_machines"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "_library.so").write_bytes(b"of another processor")
    monkeypatch.syspath_prepend(tmp_path)
    return package / "_library.so"


def test_library_of_the_wheel_is_preferred_to_the_system_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: pytest.fail("it runs programs"))
    assert c_library.load("lz4", "_version", "lz4", (SYMBOL,))._name == lz4_kernels._LIBRARY._name


@pytest.mark.parametrize("package", ["another_machines", "no_such_package"])
def test_system_library_is_used_if_that_of_the_wheel_fails_to_load(
    package: str, broken: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctypes.util, "find_library", {"lz4": lz4_kernels._LIBRARY._name}.get)
    assert c_library.load(package, "_library", "lz4", (SYMBOL,))._name == lz4_kernels._LIBRARY._name


def test_missing_library_is_an_error_with_a_remedy(broken: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    with pytest.raises(ImportError, match=f"{SYMBOL}: {broken}: .*; install the package another_machines again"):
        c_library.load("another_machines", "_library", "lz4", (SYMBOL,))
    for package in ("no_such_package", "no_such_package.lz4"):
        with pytest.raises(ImportError, match=f"{SYMBOL}: neither {package}._library nor a system library lz4 has"):
            c_library.load(package, "_library", "lz4", (SYMBOL,))
