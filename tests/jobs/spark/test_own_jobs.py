"""Jobs of a run beside those of others in one session."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from py4j.protocol import Py4JJavaError

from lastkey.jobs.spark.workers import SparkTasks

PATIENCE = 60.0


@pytest.mark.spark
def test_only_the_jobs_of_one_run_are_cancelled(spark, tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A notebook's session has other jobs, which may be those of another run of ours."""

    def work(item: str) -> str:
        (tmp_path / f"{item}.begun").touch()
        deadline = time.monotonic() + PATIENCE
        while not (tmp_path / item).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return item

    def begin(item: str) -> tuple[SparkTasks, Future[list[str]]]:
        workers = SparkTasks(lambda: spark)
        return workers, callers.submit(workers.run, work, [item], item)

    with ThreadPoolExecutor(2) as callers:
        ours, unwanted = begin("ours")
        theirs, wanted = begin("theirs")
        while len(list(tmp_path.glob("*.begun"))) < 2:
            assert not unwanted.done()
        ours.cancel([unwanted])
        with pytest.raises(Py4JJavaError, match="cancelled"):
            unwanted.result(PATIENCE)
        assert ours.await_end()
        (tmp_path / "theirs").touch()
        assert wanted.result(PATIENCE) == ["theirs"]
        assert theirs.await_end()
