"""A small partition with every kind of side file, and `reindex` run on it."""

from __future__ import annotations

from lastkey.jobs.command.config import parse_config
from lastkey.jobs.command.options import ReindexOptions
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.reindex import job as reindex

EACH_BATCH = parse_config({"defaults": {"index.interval.bytes": 0}})

# Transactions over segments: 7 aborts one in the first and one that began in the second; 8 is idempotent
TEXT = (
    "{pid=7 txn} a=1 b=22 | {pid=8} c=333 | {pid=7 abort} | d=4444 "
    "|| {pid=7 txn} a=55555 | e=666666 | {pid=8 leader=3} f=7 | g=88 | {leader=3} h=1 "
    "|| {pid=7 abort leader=3} | {leader=3} a=999 | {pid=8 leader=3} b=0000 | {pid=7 txn leader=3} c=5 "
    "| {pid=7 abort leader=3}"
)
BASES = (0, 5, 10)
END = 15


def run(root, mode="check", **options):
    if mode == "output":
        options.setdefault("output", str(root.parent / "output"))
    options.setdefault("config", EACH_BATCH)
    chosen = {"check": {"check": True}, "in_place": {"in_place": True}, "output": {}}[mode]
    return reindex.run(ReindexOptions(str(root), **chosen, **options), Silent())


def not_same(report):
    return {f.path.removeprefix("t-0/"): (f.status, f.reason) for f in report.files if f.status != "same" or f.reason}
