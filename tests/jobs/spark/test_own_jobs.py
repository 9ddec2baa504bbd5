"""Jobs of a run beside those of others in one session."""

from __future__ import annotations

import os
import select
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from py4j.protocol import Py4JJavaError

from lastkey.jobs.spark.workers import SparkTasks

PATIENCE = 60.0


@pytest.mark.spark
def test_cancellation_affects_only_the_spark_jobs_of_one_run(spark, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A notebook's session has other jobs, which may be those of another run of ours."""

    for name in ("begun", "theirs", "ours"):
        os.mkfifo(tmp_path / name)
    begun = os.open(tmp_path / "begun", os.O_RDWR)

    def work(item: str) -> str:
        (tmp_path / "begun").write_text(".")
        (tmp_path / item).read_text()  # until somebody has written there
        return item

    def begin(item: str) -> tuple[SparkTasks, Future[list[str]]]:
        workers = SparkTasks(lambda: spark)
        return workers, callers.submit(workers.run, work, [item], item)

    with ThreadPoolExecutor(2) as callers:
        ours, unwanted = begin("ours")
        theirs, wanted = begin("theirs")
        for _ in range(2):
            assert select.select([begun], [], [], PATIENCE)[0], "a task does not begin"
            os.read(begun, 1)
        ours.cancel([unwanted])
        with pytest.raises(Py4JJavaError, match="cancelled"):
            unwanted.result(PATIENCE)
        assert ours.await_end()
        (tmp_path / "theirs").write_text(".")
        assert wanted.result(PATIENCE) == ["theirs"]
        assert theirs.await_end()
    os.close(begun)
