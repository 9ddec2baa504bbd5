"""Process from which Spark forks Python workers in local mode: imports first, so that all workers share the imports.

`spark.python.daemon.module=lastkey.jobs.spark.daemon`. The default daemon forks empty workers; each imports numba,
numpy and pyarrow anew and loads its own compiled kernels: half a processor second each (measured) for the imports
alone. Where a command has forked ahead, this process only hands over to that fork (see `forked`).
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
from typing import Any

from lastkey.jobs.spark import forked


def import_shared() -> None:
    """Import what all workers need. The kernels of a compaction are loaded too."""
    from lastkey.logformat.errors import UnsafeFolderError  # noqa: PLC0415 - not where the work is handed over

    for name in ("numpy", "pyarrow", "numba", "pyspark.worker", "lastkey.udfs.compact.warm_up"):
        with contextlib.suppress(ImportError, UnsafeFolderError):  # a worker that needs it will say so
            __import__(name)
    gc.freeze()  # a worker collects garbage after every task, and would look through all imports: 80 ms each (measured)


def fork_workers() -> None:
    """Fork a worker whenever the JVM asks for one, until it closes stdin."""
    from pyspark import daemon  # noqa: PLC0415

    run_worker = daemon.worker

    def until_left(sock: Any, authenticated: bool) -> int:
        """Run pyspark's worker, without a traceback if the JVM closes the socket: the job that ended says why."""
        try:
            return int(run_worker(sock, authenticated))
        except ConnectionError:
            return 1

    # LASTKEY_TALKS: set by the command line, which shows our stderr, maybe below the driver's progress bar
    if os.environ.get("LASTKEY_TALKS"):
        logging.basicConfig(format="\r\x1b[K%(message)s" if sys.stderr.isatty() else "%(message)s")
        logging.getLogger("lastkey").setLevel(logging.INFO)
    daemon.worker = until_left
    daemon.manager()


if __name__ == "__main__" and not forked.handed_over():
    import_shared()
    fork_workers()
