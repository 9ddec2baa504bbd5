"""The commands `lookup` and `report`, which only read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from lastkey.jobs.command.config import check_now_ms, check_policy_has_topics
from lastkey.jobs.command.options import LookupOptions, ReportOptions, check_lookup
from lastkey.jobs.command.parse import MAX_LONG
from lastkey.jobs.command.shared_options import engine_option, gaps_option, planning_options, shared

OFFSET: Final = click.IntRange(-MAX_LONG, MAX_LONG)


def add_reading(group: click.Group, run: Callable[..., None]) -> None:
    """Add the commands to the jobs. run: runs a job by its name, the type of its options, and their values."""

    @group.command()
    @click.argument("archive", required=False)
    @click.option("--store", metavar="STORE", help="Search a generation of this store; with --at: its table.")
    @click.option("--generation", type=click.IntRange(min=1), help="With --store.  [default: the current one]")
    @click.option(
        "--partition", "partitions", metavar="TOPIC-N", multiple=True, help="Search only this one; may be repeated."
    )
    @click.option(
        "--offset", "offsets", type=OFFSET, multiple=True, help="Show where a fetch from here begins; repeatable."
    )
    @click.option(
        "--time", "times", metavar="TIME", multiple=True, help="Show the first record from then on; repeatable."
    )
    @click.option(
        "--isolation",
        type=click.Choice(["read_uncommitted", "read_committed"]),
        default="read_uncommitted",
        help="read_committed: stop at the first open transaction, as a consumer does.",
    )
    @gaps_option
    @click.option("--queries", metavar="FILE", help="A table of queries: parquet, csv or json lines.")
    @click.option("--output", metavar="FILE", help="With --queries: write the answers to this file.")
    @click.option("--sizing", is_flag=True, help="Show what indexes cost in bytes, at several densities.")
    @click.option("--at", metavar="TIME", help="With --store: show what happened then, from the table time_index.")
    @click.option("--until", metavar="TIME", help="With --at: up to this time.  [default: the minute of --at]")
    @click.option("--refresh/--no-refresh", default=True, help="With --at: read new segments into the table first.")
    @engine_option("auto")
    @shared
    def lookup(**given: Any) -> None:
        """Find offsets by time, and positions by offset, in ARCHIVE or a generation of STORE, without a broker.

        TIME is milliseconds since 1970, ISO 8601 (UTC if it names no zone), earliest, latest or max-timestamp.
        """
        check_lookup(given)
        run("lookup", LookupOptions, **given)

    @group.command("report")
    @click.argument("archives", metavar="ARCHIVE...", nargs=-1, required=True)
    @click.option("--output", metavar="FILE", required=True, help="Write the page to this file; it needs no other.")
    @click.option(
        "--store", "stores", metavar="STORE", multiple=True, help="Show its generations, and its history; repeatable."
    )
    @planning_options
    @gaps_option
    @click.option("--hide-keys", is_flag=True, help="Show hashes of hot keys instead of the keys.")
    @click.option(
        "--format-savings", is_flag=True, help="Also measure what `convert --to v3` would save; takes longer."
    )
    @engine_option("auto")
    @shared
    def archive_report(archives: tuple[str, ...], stores: tuple[str, ...], now_ms: int | None, **given: Any) -> None:
        """Make a page that shows what is in each ARCHIVE and what a compaction would save."""
        check_policy_has_topics(given["cleanup_policy"], *given["topics"], *given["topics_from"])
        given |= {"archive": archives[0], "more_archives": archives[1:]}
        given |= {"store": stores[0] if stores else None, "more_stores": stores[1:]}
        run("report", ReportOptions, now_ms=check_now_ms(now_ms), **given)
