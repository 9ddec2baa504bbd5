"""Recompressed logs before Kafka: its dump shows the same records and headers in the new codec, a broker serves them,
and levels give the bytes of Kafka's own producer.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lastkey.jobs.archive.listing import list_archive
from lastkey.jobs.command.options import VerifyOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.read_options import ReportOptions
from lastkey.jobs.command.store_options import RestoreOptions
from lastkey.jobs.report.job import profile_archive
from lastkey.jobs.restore import job as restore
from lastkey.jobs.verify import job as verify
from lastkey.logformat.batches.reader import LogReader
from lastkey.logformat.layout import BATCH_OVERHEAD, CODEC_MASK, CODEC_NAMES, Levels
from lastkey.logformat.primitives.codec import compress
from lastkey.udfs.report import codec_sizes
from lastkey.udfs.storage import log_file, open_root
from tests.builders.archives import COMPACT, Lab, put
from tests.kafka_lab import Broker, check_served, dump_log_segments, make_logs, start_restored
from tests.kafka_lab.loading import partition_dirs

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

LEVELS = {"gzip": (1, 9), "lz4": (3, 9, 12, 17), "zstd": (-7, 3, 19)}
DISTINCT = "records=6000 keys=6000 dist=seq headers=1 flush=100 segment=262144"
TRANSACTIONS = "codec=gzip txn=true producers=2 abort=0.3 t0=now"
_DECIDED_BY_CODEC = re.compile(r" (position|size|crc|compresscodec): \S+")


def raw_lines(folder: Path) -> str:
    """Return what kafka-dump-log prints of a partition's batches and records."""
    logs = ",".join(map(str, sorted(folder.glob("*.log"))))
    return dump_log_segments("--deep-iteration", "--print-data-log", "--files", logs)


def lines(folder: Path) -> list[str]:
    """Return the same without what a codec decides."""
    text_lines = raw_lines(folder).splitlines()
    return [_DECIDED_BY_CODEC.sub("", line) for line in text_lines if not line.startswith("Dumping ")]


def bodies(folder: Path) -> list[tuple[bytes, bytes]]:
    """Return the body of each compressed batch as stored, and decompressed."""
    (partition,) = list_archive(
        open_root(str(folder.parent)), lambda topic: f"{topic}-0" == folder.name
    ).partitions.values()
    out = []
    reader = LogReader(1 << 20, 1 << 28)
    for s in partition.segments:
        for chunk in reader.chunks(log_file(open_root(s.root), s.path, s.size_bytes)):
            packed = chunk.batches["attributes"] & CODEC_MASK != 0
            for run in reader.runs(chunk, packed):
                for batch, body in zip(run.batches[run.wanted], run.bodies[run.wanted], strict=True):
                    at = int(batch["position"]) - chunk.position
                    stored = chunk.raw[at + BATCH_OVERHEAD : at + int(batch["size"])].tobytes()
                    plain = (run.scratch if body["in_scratch"] else run.raw)[body["start"] : body["end"]].tobytes()
                    out.append((stored, plain))
    return out


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a log directory with a topic for each level, and topics in which every record has a key of its own."""
    specs = [
        f"topic={codec}{level} records=600 keys=300 flush=50 codec={codec} level={level} seed=5"
        for codec, levels in LEVELS.items()
        for level in levels
    ]
    with Broker(tmp_path_factory.mktemp("broker"), {"log.cleaner.enable": "false"}) as broker:
        large = [f"topic=packed codec=gzip seed=6 {DISTINCT}", f"topic=txn {TRANSACTIONS} seed=7 {DISTINCT}"]
        make_logs(broker.bootstrap, [*specs, *large])
    return broker.data


@pytest.mark.parametrize("codec", ["gzip", "lz4"])
def test_compression_levels_give_the_bytes_of_kafkas_producer(written: Path, codec: str) -> None:
    for level in LEVELS[codec]:
        batch_bodies = bodies(written / f"{codec}{level}-0")
        assert len(batch_bodies) > 5
        for stored, plain in batch_bodies:
            assert compress(CODEC_NAMES.index(codec), plain, Levels(**{codec: level})) == stored, level


def test_zstd_levels_give_about_the_size_of_kafkas_producer(written: Path) -> None:
    for level in LEVELS["zstd"]:
        pairs = bodies(written / f"zstd{level}-0")
        ours = sum(len(compress(CODEC_NAMES.index("zstd"), plain, Levels(zstd=level))) for _, plain in pairs)
        theirs = sum(len(stored) for stored, _ in pairs)
        assert abs(ours - theirs) <= 0.05 * theirs, level


def test_report_predicts_the_size_of_a_gzip_topic_in_zstd(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample of the gzip batches of a real producer is right about the whole, within the stated bound."""
    lab = Lab(None, tmp_path, {"defaults": COMPACT, "job": {"engine": "threads"}})
    put(written / "packed-0", lab.archive / "packed-0")
    monkeypatch.setattr(codec_sizes, "_SAMPLE_BATCHES", 20)
    [row] = profile_archive(ReportOptions(str(lab.archive), output="-"), Silent()).codec_bytes
    [zstd] = [estimate for estimate in row.codecs if estimate.codec == "zstd"]
    assert 0 < zstd.error_bytes < 0.05 * zstd.bytes
    settings = {"defaults": COMPACT | {"compression.type": "zstd", "recompress": True}, "job": {"engine": "threads"}}
    [done] = lab.run(1_900_000_000_000, settings=settings, sealed=True, force=True).results
    assert done.work.counters["records_kept"] == done.work.counters["records_read"]
    assert abs(done.work.bytes_after - zstd.bytes) <= zstd.error_bytes
    assert done.work.bytes_after < 0.95 * row.bytes


@pytest.mark.parametrize("topic", ["packed", "txn"])
def test_gzip_topic_recompressed_with_zstd_has_the_same_records(written: Path, tmp_path: Path, topic: str) -> None:
    """The same archive, cleaned with the producers' codec and recompressed: Kafka's dumps differ only in the codec."""
    records = {}
    for name, settings in (("producer", {}), ("zstd", {"compression.type": "zstd", "recompress": True})):
        lab = Lab(None, tmp_path / name, {"defaults": COMPACT | settings, "job": {"engine": "threads"}})
        put(written / f"{topic}-0", lab.archive / f"{topic}-0")
        assert lab.run(1_900_000_000_000, sealed=True, force=True).generations
        check = VerifyOptions(store=str(lab.store))
        assert verify.run(check, Silent()).problems == []
        restored = tmp_path / name / "restored"
        restore.run(RestoreOptions(str(lab.store), str(restored)), Silent())
        records[name] = lines(restored / f"{topic}-0")
        codecs = set(re.findall(r"compresscodec: (\w+)", raw_lines(restored / f"{topic}-0")))
        assert codecs == {"gzip", "none"} & codecs | ({"zstd"} if name == "zstd" else {"gzip"})
    assert records["zstd"] == records["producer"]
    assert sum("| offset" in line for line in records["zstd"]) > 3000
    with start_restored(restored) as broker:
        problems, _ = check_served(broker.bootstrap, partition_dirs([broker.data]))
        assert problems == []
