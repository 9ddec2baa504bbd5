"""The commands `export` and `replay`: records out of an archive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from lastkey.jobs.command.options import EXPORT_FORMATS, ExportOptions, ReplayOptions, read_archive
from lastkey.jobs.command.shared_options import command_config_option, engine_option, gaps_option, shared

isolation_option = click.option(
    "--isolation",
    type=click.Choice(["read_committed", "read_uncommitted"]),
    default="read_committed",
    show_default=True,
    help="read_uncommitted: also records of aborted and open transactions.",
)


def add_export(group: click.Group, run: Callable[..., None]) -> None:
    """Add the commands to the jobs. run: runs a job by its name, the type of its options, and their values."""

    @group.command()
    @click.argument("archive", required=False)
    @click.option("--store", metavar="STORE", help="Export a generation of this store instead of an archive.")
    @click.option("--generation", type=click.IntRange(min=1), help="With --store.  [default: the current one]")
    @click.option("--archive", "archive_moved", metavar="URI", help="With --store: where the archive is now.")
    @click.option("--format", type=click.Choice(EXPORT_FORMATS), required=True, help="What to write.")
    @click.option("--latest", is_flag=True, help="With delta: the last record of each key, brought up to date.")
    @click.option("--output", metavar="DIR", required=True, help="A new or empty folder; each topic gets one in it.")
    @click.option("--key-decoder", metavar="NAME", help="Type of keys: string, long, json, ...  [default: bytes]")
    @click.option("--value-decoder", metavar="NAME", help="Type of values.  [default: bytes]")
    @isolation_option
    @gaps_option
    @engine_option("spark")
    @shared
    def export(
        archive: str | None, store: str | None, generation: int | None, archive_moved: str | None, **given: Any
    ) -> None:
        """Write the records of ARCHIVE, or of a generation of STORE, as JSON lines, Parquet or Delta."""
        place = read_archive("export", archive, store, generation, archive_moved)
        run("export", ExportOptions, archive=place, store=store, generation=generation, **given)

    @group.command()
    @click.argument("archive", required=False)
    @click.option("--store", metavar="STORE", help="Replay a generation of this store instead of an archive.")
    @click.option("--generation", type=click.IntRange(min=1), help="With --store.  [default: the current one]")
    @click.option("--archive", "archive_moved", metavar="URI", help="With --store: where the archive is now.")
    @click.option("--bootstrap-server", metavar="HOST:PORT", required=True, help="The cluster to write to.")
    @command_config_option
    @click.option(
        "--rename", "renames", metavar="REGEX=REPLACEMENT", multiple=True, help="Names of topics there; repeatable."
    )
    @click.option("--repartition", is_flag=True, help="Let keys choose the partition.  [default: the same one]")
    @click.option("--append", is_flag=True, help="Begin also where a partition already holds records.")
    @click.option("--group", metavar="NAME", help="The consumer group whose offsets are the progress.")
    @isolation_option
    @gaps_option
    @engine_option("auto")
    @shared
    def replay(
        archive: str | None, store: str | None, generation: int | None, archive_moved: str | None, **given: Any
    ) -> None:
        """Write the records of ARCHIVE, or of a generation of STORE, into topics of a live cluster, each once."""
        place = read_archive("replay", archive, store, generation, archive_moved)
        run("replay", ReplayOptions, archive=place, store=store, generation=generation, **given)
