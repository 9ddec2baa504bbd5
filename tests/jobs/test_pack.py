"""The parts of a pack by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lastkey.jobs import installation, pack
from lastkey.jobs.command.failures import known_error
from lastkey.jobs.command.options import PackOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.whole_file import whole_file
from lastkey.jobs.errors import NO_PACKAGE, OUTPUT_EXISTS
from lastkey.jobs.spark.submit import user_options
from tests.builders.errors import raises_kind


@pytest.fixture
def launcher(tmp_path):
    path = tmp_path / "a folder" / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(pack.LAUNCHER)
    path.chmod(0o755)
    return path


def _python(folder, name, code):
    path = folder / name
    path.write_text(f"#!/bin/sh\n{code}\n")
    path.chmod(0o755)


def test_launcher_runs_the_matching_python_with_packages_of_the_pack_first(launcher, tmp_path):
    folder = tmp_path / "path"
    folder.mkdir()
    _python(folder, f"python{pack.PYTHON}", "exit 1")  # a shim without its Python
    _python(folder, "python3", "echo 2.7")
    _python(folder, "python", f'exec "{sys.executable}" "$@"')
    code = "import sys; print(sys.path[1:3], sys.argv[1:])"
    environment = {"PATH": f"{folder}:{os.defpath}", "PYTHONPATH": "/other"}
    completed = subprocess.run(
        [launcher, "-c", code, "a b"], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert completed.stdout == f"{[str(launcher.parents[1] / 'lib'), '/other']} ['a b']\n", completed.stderr
    (folder / "python").unlink()
    named = environment | {"LASTKEY_PYTHON": sys.executable, "PATH": os.defpath}
    assert subprocess.run([launcher, "-c", "pass"], env=named, check=False).returncode == 0


def test_node_without_the_matching_python_is_a_one_line_error(launcher, tmp_path):
    for name in (f"python{pack.PYTHON}", "python3", "python"):
        _python(tmp_path, name, "echo 2.7")
    completed = subprocess.run(
        [launcher, "-V"], env={"PATH": f"{tmp_path}:{os.defpath}"}, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 5
    (line,) = completed.stderr.splitlines()
    assert f"needs Python {pack.PYTHON} on " in line


@pytest.mark.parametrize(
    ("archives", "python"),
    [
        ("/a/lastkey.tar.gz#lastkey", "./lastkey/bin/python"),
        ("x.zip#data, hdfs:///y.tgz#lastkey", "./lastkey/bin/python"),
        ("lastkey.tar.gz", None),
        ("lastkey", None),
        ("", None),
    ],
)
def test_the_pack_is_found_among_the_archives(archives, python):
    assert user_options(["--archives", archives]).packs_python == python
    assert user_options(["--conf", f"spark.archives={archives}"]).packs_python == python


def test_pack_has_exactly_the_required_packages():
    names = {pack._normal(package.name) for package in pack._packages(driver=True)}
    assert names >= {"numpy", "numba", "llvmlite", "pyarrow", "deltalake", "python-dateutil", "fastavro"}
    assert not names & {"pyspark", "py4j", "pytest", "hypothesis", "setuptools", "pip"}
    of_executors = {pack._normal(package.name) for package in pack._packages(driver=False)}
    assert of_executors < names
    assert names - of_executors >= {"deltalake", "arro3-core", "delta-spark"}
    lines = (installation.HOME / "requirements" / "run.txt").read_text().splitlines()
    locked = {line.partition("==")[0] for line in lines if "==" in line}
    assert names <= locked | {"confluent-kafka"}  # package of the extra `cluster`, which the tests' environment has


def test_missing_package_or_one_not_from_pip_is_named(monkeypatch):
    monkeypatch.setattr(installation, "requirements", lambda: ["no-such-thing>=1", 'nor-this; extra == "x"'])
    with raises_kind(NO_PACKAGE, match="lastkey needs no-such-thing>=1: expected it in this environment"):
        pack._packages(driver=False)
    by_apt = SimpleNamespace(name="a", version="1", files=None)
    with raises_kind(NO_PACKAGE, match="the files of a 1"):
        pack._files([by_apt])  # type: ignore[list-item]


def test_existing_file_with_the_name_of_the_pack_is_kept(tmp_path):
    path = tmp_path / "p.tar.gz"
    path.write_bytes(b"mine")
    with raises_kind(OUTPUT_EXISTS, match=str(path)):
        pack.run(PackOptions(str(path)), Silent())
    with pytest.raises(ZeroDivisionError), whole_file(path) as part:
        part.write(b"half")
        part.write(bytes([1 // 0]))
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("p.tar.gz", b"mine")]


def test_pack_requirements_equal_those_of_the_project():
    assert {requirement.split(">=")[0] for requirement in installation.requirements()} >= {
        "pyspark",
        "numba",
        "fastavro",
    }


def test_driver_without_a_package_names_the_required_pack():
    missing = known_error(ModuleNotFoundError("No module named 'deltalake'", name="deltalake"))
    assert missing is not None
    assert missing.line().startswith("this driver lacks the package deltalake; ")
    assert "pack --driver" in missing.line()
    assert known_error(ModuleNotFoundError("No module named 'lastkey.x'", name="lastkey.x")) is None
