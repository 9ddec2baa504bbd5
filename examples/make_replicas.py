"""Makes examples/replicas: `python -m examples.make_replicas`.

Three brokers' log directories with a partition of examples/archive: its first three segments. Broker 1 has lost the
second segment, the log of broker 2 is cut off, and one bit of broker 3's first segment is flipped.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
FOLDER: Final = "orders-0"
BASES: Final = (0, 1310, 2619)
END: Final = 3923


def make(source: Path, target: Path) -> None:
    """Write the three log directories into a folder."""
    for number in (1, 2, 3):
        broker = target / f"broker-{number}"
        folder = broker / FOLDER
        folder.mkdir(parents=True)
        for path in sorted((source / FOLDER).iterdir()):
            base = int(path.stem) if path.stem.isdigit() else -1
            if base in (-1, *BASES) or path.name == f"{END:020d}.snapshot":
                shutil.copy2(path, folder)
        (broker / "replication-offset-checkpoint").write_text(f"0\n1\norders 0 {END}\n")
    for kind in ("log", "index", "timeindex", "txnindex"):
        (target / "broker-1" / FOLDER / f"{BASES[1]:020d}.{kind}").unlink()
    log = target / "broker-2" / FOLDER / f"{BASES[2]:020d}.log"
    log.write_bytes(log.read_bytes()[:-30_000])
    log = target / "broker-3" / FOLDER / f"{BASES[0]:020d}.log"
    data = bytearray(log.read_bytes())
    data[70_000] ^= 1
    log.write_bytes(data)


if __name__ == "__main__":
    make(HERE / "archive", Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "replicas")
