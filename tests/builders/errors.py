"""Errors that a test expects, by their kind."""

from __future__ import annotations

from typing import TypeVar

import pytest

from lastkey.jobs.errors import JobError, Kind

E_co = TypeVar("E_co", bound=JobError, covariant=True)


def raises_kind(*kinds: Kind[E_co], match: str | None = None) -> pytest.RaisesExc[E_co]:
    """Return pytest.raises for an error of one of these kinds."""
    classes = tuple({kind.error_class for kind in kinds})
    return pytest.raises(classes, match=match, check=lambda error: error.kind in kinds)
