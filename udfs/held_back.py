"""The rule that holds the cleaning or the retention of a partition back, for reports: where, and since when."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final, Literal, TypedDict, cast

import numpy as np

Rule = Literal[
    "open_transaction", "min.compaction.lag.ms", "high_watermark", "active_segment", "nothing_new",
    "min.cleanable.dirty.ratio", "min.dirty.bytes", "retention.ms", "retention.bytes", "no_retention",
]  # fmt: skip
_TEXTS: Final[dict[Rule, str]] = {
    "open_transaction": "producer {producer_id} has had a transaction open since offset {offset}{begun}; nothing from "
    "there on is cleaned before a marker ends it",
    "min.compaction.lag.ms": "min.compaction.lag.ms {limit}: the newest timestamp is {since}{future}; nothing from "
    "offset {offset} on is cleaned before {until}",
    "high_watermark": "the high watermark is {offset}; nothing above it is read",
    "active_segment": "the active segment, from offset {offset} on{begun}, is not cleaned or deleted; --sealed if "
    "nothing appends to it",
    "nothing_new": "nothing was appended at offset {offset}, up to which everything is clean",
    "min.cleanable.dirty.ratio": "min.cleanable.dirty.ratio {limit}: {found} of the bytes are dirty, from offset "
    "{offset} on{begun}",
    "min.dirty.bytes": "min.dirty.bytes {limit}: {found} bytes are dirty, from offset {offset} on{begun}",
    "retention.ms": "retention.ms {limit}: the newest timestamp is {since}{future}; nothing from offset {offset} on "
    "is deleted before {until}",
    "retention.bytes": "retention.bytes {limit}: the log has {found} bytes from offset {offset} on",
    "no_retention": "neither retention.ms nor retention.bytes is set",
}


class HeldBackJson(TypedDict):
    """Reason for programs; null: the rule has no such thing, or it is unknown."""

    rule: Rule
    offset: int | None
    path: str | None
    since_ms: int | None
    until_ms: int | None
    producer_id: int | None
    found: float | None
    limit: float | None
    in_future: bool
    message: str


@dataclass(frozen=True)
class HeldBack:
    """Reason why no record is cleaned or deleted now. -1 and "": the rule has no such thing, or it is unknown."""

    rule: Rule
    offset: int = -1  # the first one that is held back
    path: str = ""  # path of its segment
    since_ms: int = -1  # timestamp of the open transaction's first batch, or the newest one of the segment
    until_ms: int = -1  # when the rule ends
    producer_id: int = -1
    found: float = -1  # value that is compared with the limit
    limit: float = -1  # value of the setting
    now_ms: int = -1

    @property
    def in_future(self) -> bool:
        """True if the timestamp is later than the clock of the run."""
        return 0 <= self.now_ms < self.since_ms

    def to_json(self) -> HeldBackJson:
        """Return the reason for programs."""
        values = {name: None if value in (-1, "") else value for name, value in asdict(self).items()}
        del values["now_ms"]
        return cast(HeldBackJson, values | {"in_future": self.in_future, "message": str(self)})

    def __str__(self) -> str:
        text = _TEXTS[self.rule].format(
            producer_id=self.producer_id,
            offset=self.offset,
            begun=f", {_time(self.since_ms)}" if self.since_ms >= 0 else "",
            since=_time(self.since_ms),
            until=_time(self.until_ms),
            future=", in the future" if self.in_future else "",
            found=f"{self.found:g}" if isinstance(self.found, float) else self.found,
            limit=self.limit,
        )
        return f"{self.path}: {text}" if self.path else text


def _time(ms: int) -> str:
    """Return a timestamp as text, of any year."""
    return f"{np.datetime64(ms, 'ms')}Z"
