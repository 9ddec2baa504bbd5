"""The wheel, and an environment that it is installed in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKED = ("lastkey", "jobs", "logformat", "udfs", "conf")
MAN_PAGE = Path("docs/lastkey.1")


def run_apart(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command without what this process's environment says of Lastkey, Python and Spark."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LASTKEY", "PYTHON", "PYSPARK"))}
    return subprocess.run(
        [str(word) for word in words], cwd=cwd, env=env | environment, capture_output=True, text=True, check=False
    )


def build_wheel(folder: Path) -> Path:
    """Build it from a copy, with the setuptools that requirements/build.txt locks: a build leaves folders behind."""
    for name in PACKED:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / MAN_PAGE).parent.mkdir()
    shutil.copy(ROOT / MAN_PAGE, folder / MAN_PAGE)
    for path in (*ROOT.glob("*.py"), ROOT / "pyproject.toml", ROOT / "README.md", ROOT / "LICENSE"):
        shutil.copy(path, folder)
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    built = run_apart(*pip, "--wheel-dir", folder / "dist", folder, cwd=folder)
    assert built.returncode == 0, built.stderr
    (path,) = (folder / "dist").glob("*.whl")
    return path


def install(wheel: Path, folder: Path) -> Path:
    """Return the command of an environment with the wheel, and with this run's packages."""
    made = run_apart(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    assert made.returncode == 0, made.stderr
    python = folder / "venv" / "bin" / "python"
    done = run_apart(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=folder)
    assert done.returncode == 0, done.stderr
    packages = folder / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        (packages / path.name).symlink_to(path)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    if (ROOT / ".numba").is_dir():  # else it would compile the same kernels for a minute
        shutil.copytree(ROOT / ".numba", site / "lastkey" / ".numba", ignore=shutil.ignore_patterns("prepared-*"))
    return folder / "venv" / "bin" / "lastkey"
