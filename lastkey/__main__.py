"""`python -m lastkey [spark options] JOB ARGS`; also the main file for Spark's own spark-submit, which runs a path."""

import sys
from pathlib import Path

if not __package__:  # by its path: Python looks for modules beside this file, where `lastkey` is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from lastkey.jobs.main import main

if __name__ == "__main__":
    sys.exit(main())
