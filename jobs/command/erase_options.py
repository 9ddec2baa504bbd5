"""Options of `erase`, as values."""

from __future__ import annotations

from dataclasses import dataclass, field

from lastkey.jobs.command.config import Config, Engine
from lastkey.jobs.command.options import KeyFormat
from lastkey.jobs.topics import EVERY_TOPIC, TopicFilter


@dataclass(frozen=True, kw_only=True)
class EraseOptions:
    """Options of `erase --store STORE`."""

    store: str
    hmac_key: str  # a file
    keys: str | None = None  # a file, a key a line
    key: tuple[str, ...] = ()
    key_format: KeyFormat = "text"
    by: str = ""  # who asked
    config: Config = field(default_factory=Config)
    topics: TopicFilter = EVERY_TOPIC
    engine: Engine | None = None  # wins over the setting; None: as it says, else as the command does
    gaps: str | None = None  # fail, accept; wins over the setting gaps
    no_archive: bool = False  # there is none any more
    check: bool = False  # search only
    dry_run: bool = False
    wait: bool = False  # for another run that works on the same partitions
    proof: str | None = None  # a file to write
