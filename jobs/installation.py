"""Installation of Lastkey, a checkout or a package that pip installed: its files, version and requirements."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any, Final

_HERE: Final = Path(__file__).resolve().parent
_PYPROJECT: Final = _HERE.parent / "pyproject.toml"
IN_CHECKOUT: Final = _PYPROJECT.is_file()
CONF: Final = _HERE / "conf"
HOME: Final = _HERE.parent if IN_CHECKOUT else _HERE.parent.parent  # entry of Python's path that has the package
SETTINGS: Final = "conf/cleaner.toml" if IN_CHECKOUT else str(CONF / "cleaner.toml")  # as messages name it
# Packages that drivers need and tasks do not import; a pack for executors leaves them out
OF_DRIVERS: Final = ("delta-spark", "deltalake")


def version() -> str:
    """Return the version that runs: pyproject.toml's in a checkout, else the one that pip recorded."""
    return str(_project()["version"]) if IN_CHECKOUT else metadata.version("lastkey")


def requirements() -> list[str]:
    """Return the requirements of this version, those of its extras too, as pyproject.toml or pip's record has them."""
    if not IN_CHECKOUT:
        return metadata.requires("lastkey") or []
    project = _project()
    extras = project["optional-dependencies"].items()
    return [*project["dependencies"], *(f'{one}; extra == "{name}"' for name, of in extras for one in of)]


def sources() -> dict[str, Path]:
    """Return Lastkey's own files by their path in an installed package, the modules that Spark discovers among them."""
    top = _HERE.parent
    homes = {"lastkey": top / "lastkey" if IN_CHECKOUT else top}
    if IN_CHECKOUT:
        homes |= {f"lastkey/{name}": top / name for name in ("jobs", "logformat", "udfs")}
        homes["lastkey/jobs/conf"] = CONF
    modules = {
        f"{home}/{path.relative_to(folder)}": path
        for home, folder in homes.items()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".md", ".pyc") and ".numba" not in path.parts
    }
    return modules | {path.name: path for path in (top if IN_CHECKOUT else top.parent).glob("pyspark_kafka_log*.py")}


def _project() -> dict[str, Any]:
    return dict(tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["project"])
