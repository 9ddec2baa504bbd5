"""An archive of one partition, from lines of text, and a store, with commands that run on both in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.store.tables import open_state
from lastkey.logformat.side_files import producer_snapshot
from tests.builders.logs import log_text, write_partition
from tests.builders.stores import manifest_segments
from tests.builders.trees import files_in

NOW = 1_700_000_100_000
NO_PRODUCERS = producer_snapshot.write(np.empty(0, producer_snapshot.ENTRY))


class Place:
    """Archive and store, with commands on them."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self.archive, self.store, self.capsys = root, root / "archive" / "t-0", root / "store", capsys
        self.archive.mkdir(parents=True)

    def run(self, *words: str) -> tuple[int, str]:
        code = cli.main([*words, "--no-progress"])
        return code, "".join(self.capsys.readouterr())

    def compact(self, *more: str) -> tuple[int, str]:
        archive, settings = str(self.archive.parent), ("--topics", "t", "--cleanup-policy", "compact")
        return self.run("compact", archive, "--store", str(self.store), *settings, "--now", str(NOW), "--force", *more)

    def write(self, text: str) -> None:
        """Write the log that the text describes, with the side files of a broker."""
        write_partition(self.archive, text)

    def deny(self) -> None:
        """Replace every snapshot by one that knows no producer."""
        for path in files_in(self.archive, "*.snapshot"):
            path.write_bytes(NO_PRODUCERS)

    def lose(self, base: int) -> None:
        """Remove the segments below a base offset, and every file that shows their existence."""
        for path in files_in(self.archive, "*"):
            if not path.stem.isdigit() or int(path.stem) < base or path.suffix == ".snapshot":
                path.unlink()

    def generation(self) -> str:
        """Return the batches of the current generation."""
        roots = {"store": self.store, "archive": self.archive.parent}
        manifest = manifest_segments(open_state(str(self.store)), "t", 0)
        return log_text(*(roots[s.root] / s.path for s in sorted(manifest, key=lambda s: s.base_offset)))
