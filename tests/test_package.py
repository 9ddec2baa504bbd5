"""The wheel, installed in an environment of its own, run in a folder that is not the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest

from jobs import errors

ROOT = Path(__file__).resolve().parents[1]
PACKED = ("jobs", "logformat", "udfs", "conf")
EXTRAS = ("matplotlib", "fastavro")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def _run(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LASTKEY", "PYTHON", "PYSPARK"))}
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, env=env | environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from a copy, with the setuptools that requirements/build.txt locks: a build leaves folders behind."""
    copy = tmp_path_factory.mktemp("source")
    for name in PACKED:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.py"), ROOT / "pyproject.toml", ROOT / "README.md", ROOT / "LICENSE"):
        shutil.copy(path, copy)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    built = _run(*pip, "--wheel-dir", copy / "dist", copy, cwd=copy)
    assert built.returncode == 0, built.stderr
    (path,) = (copy / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def lastkey(wheel, tmp_path_factory) -> Path:
    """The command of an environment that has the wheel, and the packages of this run but for those of the extras."""
    folder = tmp_path_factory.mktemp("installed")
    made = _run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    assert made.returncode == 0, made.stderr
    python = folder / "venv" / "bin" / "python"
    done = _run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    packages = folder / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(EXTRAS):
            (packages / path.name).symlink_to(path)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    return folder / "venv" / "bin" / "lastkey"


@pytest.fixture
def elsewhere(tmp_path) -> Path:
    """A folder with another package that is called as one of ours."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "__init__.py").write_text("raise ImportError('not ours')\n")
    return tmp_path


@pytest.mark.slow
def test_the_wheel_holds_what_runs_and_nothing_else(wheel):
    there = {
        str(path.relative_to(ROOT))
        for top in PACKED
        for path in (ROOT / top).rglob("*")
        if path.is_file() and path.suffix != ".md" and "__pycache__" not in path.parts
    }
    expected = {name.replace("conf/", "jobs/conf/", 1) if name.startswith("conf/") else name for name in there}
    expected |= {path.name for path in ROOT.glob("*.py")}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == expected


@pytest.mark.slow
def test_help_version_and_a_mistake(lastkey, elsewhere):
    said = _run(lastkey, "--version", cwd=elsewhere)
    assert (said.returncode, said.stdout) == (0, f"lastkey, version {PROJECT['project']['version']}\n"), said.stderr
    assert "Usage: lastkey compact" in _run(lastkey, "compact", "--help", cwd=elsewhere).stdout
    (elsewhere / "c.toml").write_text("[defaults]\n'segment.byte' = 1\n")
    wrong = _run(lastkey, "compact", "A", "--store", "S", "--config", "c.toml", cwd=elsewhere)
    assert wrong.returncode == errors.USAGE
    settings = Path(wrong.stderr.split()[-4])  # ".../cleaner.toml lists every setting"
    assert settings.read_bytes() == (ROOT / "conf" / "cleaner.toml").read_bytes()
    completed = _run(
        lastkey, cwd=elsewhere, _LASTKEY_COMPLETE="bash_complete", COMP_WORDS="lastkey com", COMP_CWORD="1"
    )
    assert (completed.returncode, completed.stdout) == (0, "plain,compact\n"), completed.stderr


@pytest.mark.slow
def test_an_extra_that_is_missing_is_one_clear_message(lastkey, elsewhere):
    archive = ROOT / "examples" / "archive"
    report = _run(lastkey, "report", archive, "--output", "page.html", cwd=elsewhere)
    assert report.returncode == errors.ENVIRONMENT
    assert report.stderr == (
        "error: a report's page needs the package matplotlib, which is not installed; pip install 'lastkey[plot]'\n"
    )
    python = lastkey.with_name("python")
    code = "from jobs.functions import register; print(register.__name__); import udfs.decode.avro"
    avro = _run(python, "-P", "-c", code, cwd=elsewhere)
    assert avro.stdout == "register\n", avro.stderr
    assert avro.stderr.splitlines()[-1].endswith("needs the package fastavro: pip install 'lastkey[avro]'")


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("without_spark", [0, 1 << 30])
def test_the_main_job_runs(lastkey, elsewhere, without_spark):
    """Delta's jars, Python workers and kernels too: none of them comes from the checkout."""
    archive, config = ROOT / "examples" / "archive", elsewhere / "c.toml"
    config.write_text(
        f'[topics.prices]\n"cleanup.policy" = "compact"\n[job]\n"without.spark.bytes" = {without_spark}\n'
    )
    words = ("compact", archive, "--store", "store", "--config", config)
    done = _run(lastkey, "--master", "local[1]", *words, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert "prices-0" in done.stdout
    checked = _run(lastkey, "verify", "--store", "store", cwd=elsewhere)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    restored = _run(lastkey, "restore", "--store", "store", "--output", "restored", cwd=elsewhere)
    assert restored.returncode == 0, restored.stderr
    assert list((elsewhere / "restored" / "prices-0").glob("*.log"))
