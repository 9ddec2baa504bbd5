"""The command `convert`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from lastkey.jobs.command.options import ConvertOptions
from lastkey.jobs.command.shared_options import engine_option, shared


def add_convert(group: click.Group, run: Callable[..., None]) -> None:
    """Add the command to the jobs. run: runs a job by its name, the type of its options, and their values."""

    @group.command()
    @click.argument("archive", required=False)
    @click.option("--store", metavar="STORE", help="Convert the current generations of this store, not an archive.")
    @click.option(
        "--output", metavar="DIR", required=True, help="A new or empty folder, or that of a run that was cut off."
    )
    @click.option("--to", type=click.Choice(["v3", "v2"]), required=True, help="The message format to write.")
    @click.option("--all", "show_all", is_flag=True, help="Also list partitions in which nothing changed.")
    @engine_option("spark")
    @shared
    def convert(**given: Any) -> None:
        """Write ARCHIVE, or a generation of STORE, again in another message format, without loss."""
        run("convert", ConvertOptions, **given)
