"""The command `policies`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from lastkey.jobs.command.options import PoliciesOptions
from lastkey.jobs.command.shared_options import command_config_option, shared


def add_policies(group: click.Group, run: Callable[..., None]) -> None:
    """Add the command to the jobs. run: runs a job by its name, the type of its options, and their values."""

    @group.command()
    @click.argument("files", nargs=-1)
    @click.option("--from", "sources", metavar="FILE", multiple=True, help="Read this file or folder; repeatable.")
    @click.option(
        "--bootstrap-server", metavar="HOST:PORT", help="Ask this cluster; needs the package confluent-kafka."
    )
    @command_config_option
    @click.option("--output", metavar="FILE", help="Write to this file.  [default: stdout]")
    @click.option("--replace", is_flag=True, help="Write OUTPUT even if there is a file of this name.")
    @click.option("--retention/--no-retention", default=True, help="With retention.ms and retention.bytes, or without.")
    @shared
    def policies(files: tuple[str, ...], sources: tuple[str, ...], **given: Any) -> None:
        """Write the policies of a cluster's topics as settings for --config.

        FILES, as those of --from: output of kafka-configs --describe, server.properties, snapshots and log of
        __cluster_metadata or its folder.
        """
        run("policies", PoliciesOptions, sources=(*sources, *files), **given)
