"""Cells of a notebook whose session is one of Spark Connect: `python -m tests.jobs.spark.notebook REMOTE ARCHIVE DIR`.

Prints what was found as JSON. The session is the notebook's own, and its jobs outlive an interrupted one of ours.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import lastkey
from lastkey.jobs.command.config import Config
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.reporting import JobReport
from lastkey.jobs.spark.engine import workers
from lastkey.jobs.spark.running import is_sparks


def main(remote: str, archive: str, folder: str) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "Europe/Vienna")
    settings = "examples/topics.toml"
    report = lastkey.compact(archive, f"{folder}/store", config=settings, now_ms=1_900_000_000_000)
    out: dict[str, Any] = {"compact": report.to_json()}
    out["verify"] = lastkey.verify(store=f"{folder}/store", engine="spark").to_json()
    out["reindex"] = lastkey.reindex(archive, output=f"{folder}/indexes", engine="spark").to_json()
    out["interrupted"] = interrupted(spark, Path(folder))
    out["errors"] = errors()
    out["zone"] = spark.conf.get("spark.sql.session.timeZone")
    out["tags"] = sorted(spark.getTags())
    print(json.dumps(out))


def interrupted(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Interrupt a job of ours, as a notebook does, while another one of the same session runs."""
    begun, never, over, theirs = folder / "begun", folder / "never", folder / "over", list[int]()
    for fifo in (begun, never, over):
        os.mkfifo(fifo)

    def waits(item: int) -> int:
        begun.write_text(".")
        never.read_text()  # without a writer
        return item

    def notebook_function(batches: Any) -> Any:
        for batch in batches:
            over.read_text()  # until somebody has written there
            yield batch

    def interrupt() -> None:
        begun.read_text()
        os.kill(os.getpid(), signal.SIGINT)

    stream = spark.range(0, 1, 1, 1).mapInArrow(notebook_function, "id long")
    other = threading.Thread(target=lambda: theirs.extend(row.id for row in stream.collect()))
    other.start()
    threading.Thread(target=interrupt, daemon=True).start()
    raised = ""
    try:
        with workers("spark", 0, Config(), JobReport(), Silent()) as made:
            made.run(waits, [1, 2], "waits")
    except KeyboardInterrupt as error:
        raised = type(error).__name__
    over.write_text(".")
    other.join()
    return {"raised": raised, "theirs": theirs}


def errors() -> dict[str, Any]:
    """Return what is known of tasks that fail."""

    def fails(item: int) -> int:
        raise ValueError(item)

    out: dict[str, Any] = {}
    with workers("spark", 0, Config(), JobReport(), Silent()) as made:
        try:
            made.run(fails, [7], "fails")
        except Exception as error:
            out = {"is_sparks": is_sparks(error)}
    return out


if __name__ == "__main__":
    main(*sys.argv[1:])
