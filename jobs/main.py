"""Command line: `lastkey` of an installed package, and `python -m lastkey` in a checkout."""

from __future__ import annotations

import gc
import os
import sys

from lastkey.jobs.command.stopping import at_once, signals_handled


def main(program: str = "") -> int:
    """Run a command with Spark's options, which the session gets later. program: its name for the help."""
    _open_streams()
    os.environ.setdefault("RUST_LOG", "error")  # delta-rs would warn of errors that ours report in one line
    os.environ.setdefault("PYTHONSAFEPATH", "1")  # Spark's workers import no module from the folder where this runs
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's threads would wait for algebra, and burn 0.05 s
    gc.set_threshold(20_000)  # imports make 300,000 objects that stay: do not look for garbage among them 400 times
    with signals_handled(), at_once():
        from lastkey.jobs.command import cli  # noqa: PLC0415 - here Ctrl-C ends the process
        from lastkey.jobs.spark import submit  # noqa: PLC0415

    cli.program = program or cli.program
    spark, rest = submit.split_arguments(sys.argv[1:])
    if spark:
        os.environ["PYSPARK_SUBMIT_ARGS"] = submit.as_typed([*submit.from_environment().arguments, *spark])
    cli.spark_options = submit.from_environment().names
    if "SPARK_YARN_STAGING_DIR" in os.environ:
        # The driver is in YARN's ApplicationMaster: it waits 100 s for a session, and an end without one is a failure
        from lastkey.jobs.spark import session  # noqa: PLC0415 - brings pyspark

        session.start()
    return cli.main(rest or ["--help"])


def _open_streams() -> None:
    """Open those of stdin, stdout and stderr that the caller has closed. Otherwise a file could get the number of a
    stream, and libraries and Spark's processes would write into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest one that is free
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode))


def command() -> None:
    """Run the command `lastkey`, and end the process. PySpark's JVM ends once it sees the end of its stdin."""
    sys.exit(main("lastkey"))
