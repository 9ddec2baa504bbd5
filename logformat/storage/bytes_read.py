"""Progress within a task: the number of bytes of logs that a thread reads, told to a listener while it reads them.

A task is one call, so nobody else can see how far it is. A listener that raises ends the task at the next chunk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from lastkey.logformat.storage.io_limit import spend

Listener = Callable[[int], None]  # called with the number of bytes since its last call

_OF_THREAD: Final = threading.local()


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Tell `listener` of all bytes that this thread reads in the block."""
    before = getattr(_OF_THREAD, "listener", None)
    _OF_THREAD.listener = listener
    try:
        yield
    finally:
        _OF_THREAD.listener = before


def tell(n: int) -> None:
    """Tell this thread's listener, if there is one, that `n` more bytes have been read; and spend them."""
    spend(n)
    listener: Listener | None = getattr(_OF_THREAD, "listener", None)
    if listener is not None:
        listener(n)
