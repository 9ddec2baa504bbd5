"""The commands `archive-needed` and `vacuum`: what may go, of an archive and of a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from lastkey.jobs.command.ending import monitoring_options
from lastkey.jobs.command.options import ArchiveNeededOptions, VacuumOptions
from lastkey.jobs.command.shared_options import engine_option, gaps_option, globs_option, shared

_COUNT = click.IntRange(min=0)


def add_keeping(group: click.Group, run: Callable[..., None]) -> None:
    """Add the commands to the jobs. run: runs a job by its name, the type of its options, and their values."""

    @group.command("archive-needed")
    @click.argument("archive")
    @click.option("--store", metavar="STORE", required=True, help="The store that was made from the archive.")
    @click.option("--current-only", is_flag=True, help="Do not keep what a run would read after a rollback.")
    @click.option("--skip-crc", is_flag=True, help="Compare sizes alone; read none of the files.")
    @click.option("--paths", is_flag=True, help="Print only the files that are not needed, one a line.")
    @gaps_option
    @click.option("--all", "show_all", is_flag=True, help="Also list partitions of which a part is not needed.")
    @engine_option("auto")
    @shared
    def archive_needed(**given: Any) -> None:
        """Show which segments of ARCHIVE are still needed beside STORE, and why; the others may be deleted."""
        run("archive-needed", ArchiveNeededOptions, **given)

    @group.command()
    @click.option("--store", metavar="STORE", required=True, help="The store to clean up.")
    @click.option(
        "--grace-hours", type=click.FloatRange(min=0), default=168.0, show_default=True, help="Spare younger files."
    )
    @click.option("--keep-generations", type=_COUNT, default=0, metavar="N", help="Keep the N newest of a partition.")
    @click.option("--keep-daily", type=_COUNT, default=0, metavar="N", help="Keep the newest of each of N days.")
    @click.option("--keep-weekly", type=_COUNT, default=0, metavar="N", help="Keep the newest of each of N weeks.")
    @globs_option("--give-up", help="For these topics, also delete what no later generation has read.")
    @click.option("--erased", is_flag=True, help="Delete what may hold erased keys at once: older generations, audits.")
    @click.option("--dry-run", is_flag=True, help="List what would be deleted; delete nothing.")
    @click.option("--all", "show_all", is_flag=True, help="List each generation, and why it stays or goes.")
    @monitoring_options
    @shared
    def vacuum(**given: Any) -> None:
        """Delete files of STORE that no generation needs any more, after a grace period."""
        run("vacuum", VacuumOptions, **given)
