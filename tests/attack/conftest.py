"""Specimens, made once."""

from __future__ import annotations

import pytest

from tests.attack.specimens import NAMES, Specimen, make


@pytest.fixture(scope="session")
def specimens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Specimen]:
    work = tmp_path_factory.mktemp("specimens")
    return {name: make(name, work) for name in NAMES}
