"""Place that Lastkey runs from, a checkout or a package that pip installed: the files beside the code, the version."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).resolve().parent
_PYPROJECT: Final = _HERE.parent / "pyproject.toml"
_PACKED: Final = _HERE / "conf"  # pyproject.toml puts conf/ there

IN_CHECKOUT: Final = not _PACKED.is_dir()
CONF: Final = _HERE.parent / "conf" if IN_CHECKOUT else _PACKED
SETTINGS: Final = "conf/cleaner.toml" if IN_CHECKOUT else str(CONF / "cleaner.toml")  # as messages name it


def version() -> str:
    """Return the version that runs: pyproject.toml's in a checkout, else the one that pip recorded."""
    if IN_CHECKOUT:
        return str(tomllib.loads(_PYPROJECT.read_text(encoding="utf-8"))["project"]["version"])
    return metadata.version("lastkey")
