"""`python -m jobs [spark options] JOB ARGS`."""

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


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if "pyspark" in sys.modules:
        os._exit(code)  # the JVM ends with our end of its pipe; nothing else is left to wait for
    sys.exit(code)
