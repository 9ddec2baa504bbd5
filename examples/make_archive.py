"""Makes examples/archive: `python -m examples.make_archive`, about 20 seconds.

The archive is the data directory of a real 4.3.0 broker after a clean stop, as a disk snapshot would hold it, without
the metadata log: users (two partitions, zstd, tombstones), orders (transactions, a quarter of them aborted), prices
(not compressed, two idempotent producers) and clicks (policy delete, some records without a key, not to be compacted),
beside the broker's own transaction log. What is in it follows from archive.spec; its times are those of its making.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.kafka_lab import Broker, make_logs

HERE = Path(__file__).parent
ARCHIVE = HERE / "archive"
NOT_ARCHIVED = shutil.ignore_patterns("__cluster_metadata-0", ".lock")


def main() -> None:
    """Writes the topics with a broker, and puts what it left in the place of the archive."""
    lines = [line for line in (HERE / "archive.spec").read_text().splitlines() if not line.startswith("#")]
    with tempfile.TemporaryDirectory(prefix="archive-") as work:
        with Broker(Path(work)) as broker:
            for made in make_logs(broker.bootstrap, lines):
                print(made)
        if ARCHIVE.exists():
            shutil.rmtree(ARCHIVE)
        shutil.copytree(broker.data, ARCHIVE, ignore=NOT_ARCHIVED)
    files = [path for path in ARCHIVE.rglob("*") if path.is_file()]
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files):,} bytes")


if __name__ == "__main__":
    main()
