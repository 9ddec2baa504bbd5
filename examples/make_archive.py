"""Maker of examples/archive: `python -m examples.make_archive`, about 20 seconds.

The archive is the data directory of a real 4.3.0 broker after a clean stop, as a disk snapshot would hold it, without
the metadata log: users (two partitions, zstd, tombstones), orders (transactions, a quarter of them aborted), prices
(not compressed, two idempotent producers) and clicks (policy delete, some records without a key, not to be compacted),
beside the broker's own transaction log. archive.spec decides the contents; the times are those of the run.

Beside it deliveries.csv: what a group "shop" has been delivered of each key of prices, as its consumers would keep it;
and topics-described.txt: what kafka-configs says of the topics.
"""

from __future__ import annotations

import csv
import shutil
import tempfile
from pathlib import Path

from lastkey.logformat.batches.segment import open_segment
from tests.kafka_lab import Broker, make_logs
from tests.kafka_lab.oracle import kafka_configs

HERE = Path(__file__).parent
ARCHIVE = HERE / "archive"
DELIVERED = 8400  # offsets of prices below it
NOT_ARCHIVED = shutil.ignore_patterns("__cluster_metadata-0", ".lock")


def main() -> None:
    """Write the topics with a broker, and replace the archive by the broker's files."""
    lines = [line for line in (HERE / "archive.spec").read_text().splitlines() if not line.startswith("#")]
    with tempfile.TemporaryDirectory(prefix="archive-") as work:
        with Broker(Path(work)) as broker:
            for made in make_logs(broker.bootstrap, lines):
                print(made)
            said = kafka_configs(broker.bootstrap, "--entity-type", "topics", "--describe", "--all")
            (HERE / "topics-described.txt").write_text(said)
        if ARCHIVE.exists():
            shutil.rmtree(ARCHIVE)
        shutil.copytree(broker.data, ARCHIVE, ignore=NOT_ARCHIVED)
    files = [path for path in ARCHIVE.rglob("*") if path.is_file()]
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files):,} bytes")
    write_deliveries()


def write_deliveries() -> None:
    """Write the largest delivered offset of each key."""
    told: dict[str, int] = {}
    for log in sorted((ARCHIVE / "prices-0").glob("*.log")):
        for record in open_segment(log).to_arrow(["offset", "key"]).to_pylist():
            if record["offset"] < DELIVERED:
                told[record["key"].decode()] = record["offset"]
    with (HERE / "deliveries.csv").open("w", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(("group", "topic", "key", "offset"))
        rows.writerows(("shop", "prices", key, offset) for key, offset in sorted(told.items()))


if __name__ == "__main__":
    main()
