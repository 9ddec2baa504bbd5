"""How a job that only reads a store gets at its tables."""

from __future__ import annotations

from jobs.errors import MissingPathError
from jobs.store.generations import StoreTables
from udfs.storage import Root


def open_tables(store: Root) -> StoreTables:
    """The tables of a store: read without a session where it lies on a local disk, which costs milliseconds.

    Elsewhere Spark reads them, as it wrote them: its own connector, settings and credentials reach the store.
    MissingPathError: nothing was ever committed.
    """
    from jobs.store.reader import StoreReader, is_readable  # noqa: PLC0415 - deltalake: only for a store

    if store.is_local and is_readable(store):
        return StoreReader(store)
    from jobs.spark import session  # noqa: PLC0415 - what lies on a local disk needs no Spark
    from jobs.store.tables import open_state  # noqa: PLC0415 - as above

    state = open_state(session.start(), store.uri)
    if not state.exists():
        raise MissingPathError(path=store.uri, expected="a store with generations", found="none")
    return state
