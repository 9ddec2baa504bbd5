"""The command `erase`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from lastkey.jobs.command.ending import monitoring_options
from lastkey.jobs.command.erase_options import EraseOptions
from lastkey.jobs.command.shared_options import engine_option, gaps_option, key_format_option, proof_option, shared


def add_erase(group: click.Group, run: Callable[..., None]) -> None:
    """Add the command to the jobs. run: runs a job by its name, the type of its options, and their values."""

    @group.command()
    @click.option("--store", metavar="STORE", required=True, help="The store to erase from.")
    @click.option("--keys", metavar="FILE", help="Erase the keys in this file, one a line.")
    @click.option("--key", metavar="KEY", multiple=True, help="Erase this key too; repeatable.")
    @key_format_option
    @click.option("--hmac-key", metavar="FILE", required=True, help="Your key, by which the store names erased keys.")
    @click.option("--by", metavar="TEXT", default="", help="Who asked for it: a text for the table erasures.")
    @click.option("--no-archive", is_flag=True, help="The archive is gone: go on with the store alone.")
    @gaps_option
    @click.option("--check", is_flag=True, help="Erase nothing: show where the keys still are.")
    @click.option("--dry-run", is_flag=True, help="Show what would be erased; write nothing.")
    @click.option("--wait", is_flag=True, help="Wait for another run that works on the same partitions.")
    @proof_option
    @click.option("--all", "show_all", is_flag=True, help="Also list partitions that hold none of the keys.")
    @engine_option("spark")
    @monitoring_options
    @shared
    def erase(**given: Any) -> None:
        """Erase every record of some keys from STORE for good, and show where these keys still are."""
        run("erase", EraseOptions, **given)
