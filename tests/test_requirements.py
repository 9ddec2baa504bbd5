"""The lock files: what pyproject.toml asks for and all that it needs, by hashes; nothing else is installed."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("requirements/run.txt", "requirements/dev.txt", "requirements/build.txt", "requirements/uv.txt",
         "examples/airflow/requirements.txt")  # fmt: skip
AIRFLOW_PINS = [line for line in (ROOT / "examples/airflow/requirements.in").read_text().splitlines() if "==" in line]


def _locked(path: str) -> dict[str, set[str]]:
    """Name -> versions: a package may have one for some Pythons, another for the others."""
    hashes_by_package: dict[str, set[str]] = {}
    for entry in (ROOT / path).read_text().replace("\\\n", " ").splitlines():
        if entry and not entry.startswith("#"):
            name, version, hashes = re.fullmatch(
                r"([a-z0-9.-]+)==(\S+)(?: ; [^\\]*?)?((?: +--hash=sha256:[0-9a-f]{64})+)", entry
            ).groups()
            assert len(set(hashes.split())) == len(hashes.split())
            hashes_by_package.setdefault(name, set()).add(version)
    return hashes_by_package


def _pins() -> dict[str, list[str]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    run = project["project"]["dependencies"]
    groups = project["dependency-groups"]
    return dict(
        zip(
            LOCKS,
            (run, run + groups["dev"] + groups["docs"], groups["build"], groups["lock"], AIRFLOW_PINS),
            strict=True,
        )
    )


@pytest.mark.parametrize("path", LOCKS)
def test_every_pin_is_locked_and_every_package_has_hashes(path):
    locked, pins = _locked(path), _pins()[path]
    assert pins
    for pin in pins:
        requirement = Requirement(pin)
        assert locked[requirement.name], f"{pin}: run requirements/renew.sh"
        assert all(requirement.specifier.contains(version) for version in locked[requirement.name]), pin


def test_version_ranges_begin_at_tested_versions():
    """Each range also has an upper bound, because newer versions are untested."""
    locked, pins = _locked("requirements/run.txt"), _pins()["requirements/run.txt"]
    for requirement in map(Requirement, pins):
        bounds = {bound.operator: bound.version for bound in requirement.specifier}
        assert set(bounds) == {">=", "<"}, requirement
        assert {bounds[">="]} == locked[requirement.name], requirement


def test_job_requirements_equal_the_tested_versions():
    run, dev = _locked("requirements/run.txt"), _locked("requirements/dev.txt")
    assert run
    assert {name: dev.get(name) for name in run} == run


@pytest.mark.parametrize("path", [*LOCKS, "requirements/renew.sh"])
def test_requirements_name_no_index(path):
    assert not re.search(r"://|--(extra-)?index|--find-links|--trusted", (ROOT / path).read_text())


def _wheel(folder: Path, name: str) -> str:
    """Make an empty package, and return its line of a lock file."""
    path = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        info = f"{name}-1.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return f"{name}==1 --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


# A Python whose environments have the pip that is here: to install it is what takes long
WITH_OUR_PIP = """#!/bin/sh
case "$*" in
'-m venv --clear -- '*) '{python}' -m venv --without-pip --clear -- "$5" &&
  ln -s '{pip}' "$5"/lib/python*/site-packages/ ;;
*) exec '{python}' "$@" ;;
esac
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    import pip

    path = tmp_path_factory.mktemp("python") / "python3"
    path.write_text(WITH_OUR_PIP.format(python=sys.executable, pip=Path(pip.__file__).parent))
    path.chmod(0o755)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        ("", ""), ("build", "DO NOT MATCH THE HASHES"), ("run", "DO NOT MATCH THE HASHES"),
        ("unlocked", "--require-hashes mode"),
    ],
)  # fmt: skip
def test_package_with_a_different_hash_is_not_installed(tmp_path, python, spoilt, message):
    done = _script(tmp_path, python, spoilt)("--help")
    checkout = tmp_path / "checkout"
    assert message in done.stderr
    made = (checkout / ".venv" / ".lastkey-pins").exists()
    assert made == (not spoilt), done.stderr
    assert (done.returncode == 5) == bool(spoilt)
    assert ("lastkey_test_run" in _installed(checkout / ".venv")) == (not spoilt)


@pytest.mark.slow
def test_tests_and_jobs_have_separate_environments(tmp_path, python):
    """Each command has its own environment, which is rebuilt only after a change of its own lock file."""
    run, checkout = _script(tmp_path, python), tmp_path / "checkout"
    assert ".venv-test" in run("test").stderr
    assert not (checkout / ".venv").exists()
    assert _installed(checkout / ".venv-test") == {"lastkey_test_build", "lastkey_test_dev"}
    assert run("--help").returncode == 0
    assert _installed(checkout / ".venv") == {"lastkey_test_build", "lastkey_test_run"}
    with (checkout / "requirements" / "dev.txt").open("a") as lock:
        lock.write("# changed\n")
    assert "making the Python environment" not in run("--help").stderr
    assert "making the Python environment" in run("test").stderr
    assert "making the Python environment" not in run("test").stderr


def _installed(venv: Path) -> set[str]:
    site = next(venv.glob("lib/python*/site-packages"))
    return {path.name.split("-")[0] for path in site.glob("lastkey_test_*.dist-info")}


def _script(tmp_path: Path, python: Path, spoilt: str = ""):
    """Run spark-submit.sh in a checkout whose environments are made of packages that lie beside it."""
    checkout, wheels, java = tmp_path / "checkout", tmp_path / "wheels", tmp_path / "java" / "bin" / "java"
    for folder in (checkout / "requirements", wheels, java.parent):
        folder.mkdir(parents=True)
    shutil.copy(ROOT / "spark-submit.sh", checkout)
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2\n")
    java.chmod(0o755)
    for name in ("build", "run", "dev"):
        line = _wheel(wheels, f"lastkey-test-{name}".replace("-", "_"))
        line = re.sub("sha256:.*", "sha256:" + "0" * 64, line) if name == spoilt else line
        line = line.split(" --")[0] + "\n" if (name, spoilt) == ("run", "unlocked") else line
        (checkout / "requirements" / f"{name}.txt").write_text(line)
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP", "LASTKEY", "PYTHON"))}
    env |= {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "JAVA_HOME": str(tmp_path / "java"),
        "LASTKEY_PYTHON": str(python),
    }
    (checkout / "lastkey").mkdir()
    (checkout / "lastkey" / "__main__.py").touch()

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [checkout / "spark-submit.sh", *words]
        return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=False)

    return run
