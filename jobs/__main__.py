"""`python -m jobs [spark options] JOB ARGS`, and the command `lastkey` of an installed package."""

from __future__ import annotations

import os
import sys

from jobs.command import cli
from jobs.spark import submit


def main() -> int:
    """Spark's options are kept for the session; the rest is the command."""
    spark, rest = submit.split_arguments(sys.argv[1:])
    if spark:
        os.environ["PYSPARK_SUBMIT_ARGS"] = submit.as_typed(spark)
    return cli.main(rest or ["--help"])


def end(code: int) -> None:
    """End the process without waiting for Spark's threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    if "pyspark" in sys.modules:
        os._exit(code)  # the JVM ends with our end of its pipe; nothing else is left to wait for
    sys.exit(code)


def command() -> None:
    """The command `lastkey`."""
    cli.program = "lastkey"
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # Spark's workers: a folder `jobs` where the user stands is not ours
    end(main())


if __name__ == "__main__":
    end(main())
