"""What Spark starts in local mode to fork Python workers from: imports first, so that they are made once and shared.

`spark.python.daemon.module=jobs.spark.daemon`. The default daemon forks empty workers, and each one imports numba,
numpy and pyarrow anew and loads its own compiled kernels: half a processor second each (measured) for the imports
alone.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from typing import Any

from pyspark import daemon

from logformat.errors import UnsafeFolderError


def _import_shared() -> None:
    for name in ("numpy", "pyarrow", "numba", "pyspark.worker", "udfs.compact.warm_up"):
        with contextlib.suppress(ImportError, UnsafeFolderError):  # a worker that needs it says so itself
            __import__(name)
    gc.freeze()  # a worker collects garbage after every task, and would look through all of this: 80 ms each (measured)


_worker = daemon.worker


def _worker_until_left(sock: Any, authenticated: bool) -> int:
    """pyspark's, without a traceback where the JVM has closed the socket: the job was ended, and says why itself."""
    try:
        return int(_worker(sock, authenticated))
    except ConnectionError:
        return 1


if __name__ == "__main__":
    if os.environ.get(
        "LASTKEY_TALKS"
    ):  # the command line's: our stderr is shown there, maybe below a bar of the driver
        logging.basicConfig(format="\r\x1b[K%(message)s" if sys.stderr.isatty() else "%(message)s")
        logging.getLogger("lastkey").setLevel(logging.INFO)
    _import_shared()
    daemon.worker = _worker_until_left
    daemon.manager()
