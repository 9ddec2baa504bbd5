"""Gaps as a task meets them: behind the segments that it reads to their ends (`udfs.holes` has the rule)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from lastkey.udfs.data_source.pieces import ListedLog, Piece, ReadSpec
from lastkey.udfs.holes import GapFinder
from lastkey.udfs.problem import Problem

GAP_HINT: Final = "bring the missing file back; or gaps=accept if it is known to be lost"


class Gaps:
    """Finder of gaps behind the segments that a task reads to their ends."""

    def __init__(self, spec: ReadSpec) -> None:
        self._finder, self._logs_behind = GapFinder(GAP_HINT), spec.logs_behind

    def behind(self, piece: Piece, last_offset: int) -> Problem | None:
        """Return the gap behind a piece within its offsets. last_offset: of the piece's last batch; -1: it has none."""
        if piece.behind is None:
            return None
        end = max(last_offset + 1, piece.base_offset)
        listed = piece.behind.segment
        log = ListedLog(listed.root, listed.path, listed.size)

        def above() -> Iterable[ListedLog]:
            return self._logs_behind(log) if self._logs_behind is not None else ()

        return self._finder.behind(piece.behind, end, piece.start_offset, piece.end_offset, above)
