"""Fixtures of several attacks: specimens, and a process in which everything is loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.attack.specimens import NAMES, Specimen, make
from tests.attack.warm import Warm, warm


@pytest.fixture(scope="session")
def specimens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Specimen]:
    work = tmp_path_factory.mktemp("specimens")
    return {name: make(name, work) for name in NAMES}


@pytest.fixture(scope="package")  # loading and compiling takes ten seconds
def attacker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Warm]:
    with warm(tmp_path_factory.mktemp("attacker")) as started:
        yield started
