"""Look-ups against Kafka: its log class in-process, and a real broker's responses to clients."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pyarrow.compute as pc
import pytest

from lastkey.jobs.lookup.partitions import archived_partitions
from lastkey.jobs.topics import TopicFilter
from lastkey.logformat.batches.segment import open_segment
from lastkey.logformat.search.partition_log import END, FOUND, OUT_OF_RANGE
from lastkey.udfs.lookup.queries import Queries, lookup
from tests.builders.opened import open_partition
from tests.builders.trees import files_in
from tests.golden import golden
from tests.kafka_lab import list_offsets, locate, seek, served_by_broker

pytestmark = pytest.mark.kafka

_SPECIAL = (-1, -2, -3)


def queries(folder, rng, log_start=0, most=400):
    """Return (offsets, times): edges of batches and segments, timestamps of records, their neighbours, random ones."""
    headers = np.concatenate([open_segment(log).headers() for log in files_in(folder)])
    times = np.concatenate(
        [
            np.asarray(open_segment(log).to_arrow(["timestamp_ms"]).column(0)).astype(np.int64)
            for log in files_in(folder)
        ]
    )
    last = headers["last_offset"]
    end = int(last[-1]) + 1
    near = [int(o) + d for o in rng.sample(last.tolist(), min(len(last), 40)) for d in (-1, 0, 1)]
    near += [int(log.stem) + d for log in files_in(folder) for d in (-1, 0, 1)]
    near += [log_start + d for d in (-1, 0, 1)] + [end + d for d in (-1, 0, 1, 1000)]
    offsets = [o for o in near if o >= 0] + [rng.randrange(end + 2) for _ in range(most - len(near))]
    log_times = times[times >= 0].tolist() or [0]
    query_times = [t + d for t in rng.sample(log_times, min(len(log_times), 60)) for d in (-1, 0, 1)]
    low, high = min(log_times), max(log_times)
    query_times += [rng.randrange(max(low - 1000, 0), high + 1000) for _ in range(most // 4)] + [0, high, high + 1]
    return offsets, [*_SPECIAL, *(t for t in query_times if t >= 0)]


def ours(folder, offsets, times):
    """Return (segment, position, last offset) of each offset, and (offset, timestamp, epoch) of each time."""
    with open_partition(folder) as log:
        places = log.lookup_offsets(offsets)
        answers = log.offsets_for_times(times)
        single = [log.lookup_offset(offset) for offset in offsets[:50]]
        ends = log.earliest, log.log_end_offset
    for place, answer in zip(places[:50], single, strict=True):
        assert (place["status"] == FOUND) == (answer is not None)
        assert answer is None or (answer.position, answer.last_offset) == (place["position"], place["last_offset"])
    kinds = {OUT_OF_RANGE: None, END: (-1, -1, -1)}
    by_offset = [
        kinds[int(p["status"])]
        if p["status"] != FOUND
        else (int(p["segment_base_offset"]), int(p["position"]), int(p["last_offset"]))
        for p in places
    ]
    by_time = [
        None if a["offset"] < 0 else (int(a["offset"]), int(a["timestamp"]), int(a["leader_epoch"])) for a in answers
    ]
    return by_offset, by_time, ends


@pytest.mark.parametrize("kind", ["input", "expected1", "log-start-raised"])
def test_lookups_equal_those_of_kafkas_log_class(kind, tmp_path, tmp_path_factory):
    rng = random.Random(kind)
    n_queries = 0
    for name, case in golden(tmp_path_factory).items():
        for partition in case.partitions:
            source = case.expected(1, partition) if kind == "expected1" else case.input(partition)
            folder = tmp_path / name / partition
            shutil.copytree(source, folder)
            log_start = 0
            if kind == "log-start-raised":
                bases = sorted(int(log.stem) for log in files_in(folder))
                log_start = rng.randrange(bases[0], bases[min(1, len(bases) - 1)] + 1)
                for base in bases[:-1]:  # a broker deletes what lies below the log start as a whole
                    if bases[bases.index(base) + 1] <= log_start:
                        for path in files_in(folder, f"{base:020}.*"):
                            path.unlink()
                topic, _, number = partition.rpartition("-")
                (folder.parent / "log-start-offset-checkpoint").write_text(f"0\n1\n{topic} {number} {log_start}\n")
            offsets, times = queries(folder, rng, log_start)
            by_offset, by_time, ends = ours(folder, offsets, times)
            theirs = locate(folder, offsets, times, log_start)
            assert ends == (theirs.log_start_offset, theirs.log_end_offset), name
            wrong = [(o, a, b) for o, a, b in zip(offsets, by_offset, theirs.offsets, strict=True) if a != b]
            assert wrong == [], name
            wrong = [(t, a, b) for t, a, b in zip(times, by_time, theirs.times, strict=True) if a != b]
            assert wrong == [], name
            n_queries += len(offsets) + len(times)
    assert n_queries > 10_000


def first_readable(folder, offset):
    """Return the first record that a reader from `offset` sees, starting where the look-up says; -1 for none."""
    with open_partition(folder) as log:
        place = log.lookup_offset(offset)
    if place is None:
        return -1
    for path in files_in(folder):
        if int(path.stem) < place.segment_base_offset:
            continue
        position = place.position if int(path.stem) == place.segment_base_offset else 0
        rows = open_segment(path).to_arrow(["offset", "position", "control"], start_offset=offset)
        seen = pc.and_(pc.greater_equal(rows.column("position"), position), pc.invert(rows.column("control")))
        if pc.any(seen).as_py():
            return rows.filter(seen).column("offset")[0].as_py()
    return -1


def test_lookups_equal_those_of_a_broker(tmp_path_factory):
    rng = random.Random(11)
    parts, times, expected, offsets, plans = {}, {}, {}, {}, {}
    for name, case in golden(tmp_path_factory).items():
        for partition in case.partitions:
            folder = case.input(partition)
            renamed = f"{name}-{partition.rpartition('-')[2]}"
            places, times[renamed] = queries(folder, rng, most=700)
            expected[renamed] = ours(folder, [0], times[renamed])[1]
            with open_partition(folder) as log:
                offsets[renamed] = [o for o in rng.sample(places, 40) if log.earliest <= o < log.latest]
            parts[renamed] = folder
            found_plans = archived_partitions(str(folder.parent), TopicFilter((partition.rpartition("-")[0],)), [])
            [plans[renamed]] = [plan for plan in found_plans if plan.name == partition]
    assert sum(map(len, times.values())) > 10_000
    with served_by_broker(parts) as broker:
        broker_offsets = list_offsets(broker.bootstrap, times)
        committed = list_offsets(broker.bootstrap, {name: some[:60] for name, some in times.items()}, "read_committed")
        read = seek(broker.bootstrap, offsets)
    for name, folder in parts.items():
        wrong = [
            (time, mine, theirs)
            for time, mine, theirs in zip(times[name], expected[name], broker_offsets[name], strict=True)
            # for the ends of the log a broker returns the offset alone, and an epoch of its own
            if theirs[0] != (mine or (-1,))[0] or (time not in (-1, -2) and theirs[1:] != (mine or (-1, -1, -1))[1:])
        ]
        assert wrong == [], name
        queries_by_time = Queries(np.array(times[name][:60]), np.ones(len(times[name][:60]), np.bool_))
        mine = lookup(plans[name], queries_by_time, committed=True).answers.column("answer_offset").to_pylist()
        assert [-1 if offset is None else offset for offset in mine] == [one[0] for one in committed[name]], name
        assert read[name] == [first_readable(folder, offset) for offset in offsets[name]], name
