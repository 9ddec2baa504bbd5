"""Process from which Spark forks Python workers in local mode: imports first, so that all workers share the imports.

`spark.python.daemon.module=lastkey.jobs.spark.daemon`. The default daemon forks empty workers; each imports numba,
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

from lastkey.logformat.errors import UnsafeFolderError


def _import_shared() -> None:
    for name in ("numpy", "pyarrow", "numba", "pyspark.worker", "lastkey.udfs.compact.warm_up"):
        with contextlib.suppress(ImportError, UnsafeFolderError):  # a worker that needs it will say so
            __import__(name)
    gc.freeze()  # a worker collects garbage after every task, and would look through all imports: 80 ms each (measured)


_worker = daemon.worker


def _worker_until_left(sock: Any, authenticated: bool) -> int:
    """Run pyspark's worker, without a traceback if the JVM closes the socket: the job that ended says why itself."""
    try:
        return int(_worker(sock, authenticated))
    except ConnectionError:
        return 1


if __name__ == "__main__":
    if os.environ.get(
        "LASTKEY_TALKS"
    ):  # set by the command line, which shows our stderr, maybe below the driver's progress bar
        logging.basicConfig(format="\r\x1b[K%(message)s" if sys.stderr.isatty() else "%(message)s")
        logging.getLogger("lastkey").setLevel(logging.INFO)
    _import_shared()
    daemon.worker = _worker_until_left
    daemon.manager()
