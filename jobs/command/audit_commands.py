"""Commands of `audit`: one for each kind of question."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from lastkey.jobs.command.options import AuditDeliveryOptions, AuditKeysOptions, audit_source
from lastkey.jobs.command.parse import parse_counts
from lastkey.jobs.command.shared_options import Jobs, audit_options, audited_options


def audit_group(run: Callable[..., None]) -> click.Group:
    """Return the group. run: runs a job by its name, the type of its options, and their values."""

    @click.group(cls=Jobs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
    def audit() -> None:
        """Answer questions about keys: what was delivered, what lies where, and what is proved.

        What no audit has read yet is read once, into the tables audit_* of a store (--audits); Spark answers from
        there.
        """

    @audit.command()
    @audited_options
    @click.option(
        "--partition-count",
        "n_partitions",
        metavar="TOPIC=N",
        multiple=True,
        callback=lambda _context, option, given: parse_counts(option.opts[0], given),
        help="Partitions of a topic whose last ones are not in ARCHIVE; repeatable.",
    )
    @audit_options
    def keys(
        archive: str | None, store: str | None, generation: int | None, archive_moved: str | None, **given: Any
    ) -> None:
        """Show what ARCHIVE, or a generation of STORE, holds of each key."""
        run("audit keys", AuditKeysOptions, source=audit_source(archive, store, generation, archive_moved), **given)

    @audit.command()
    @audited_options
    @click.option("--group", "groups", metavar="GROUP", multiple=True, help="Only this group. Repeatable.")
    @click.option(
        "--offsets-archive", metavar="URI", help="Where __consumer_offsets lies.  [default: in ARCHIVE or STORE]"
    )
    @click.option(
        "--deliveries", metavar="TABLE", help="A table of deliveries by key instead: .parquet, .csv, or Delta."
    )
    @click.option(
        "--keys-as",
        type=click.Choice(["text", "hex", "base64"]),
        default="text",
        show_default=True,
        help="With --deliveries: how strings show keys.",
    )
    @click.option(
        "--max-age",
        "max_age_ms",
        type=click.IntRange(min=0),
        metavar="MS",
        help="Exit code 3 if an update waits longer than this.",
    )
    @audit_options
    def delivery(
        archive: str | None, store: str | None, generation: int | None, archive_moved: str | None, **given: Any
    ) -> None:
        """Show what groups have been delivered of each key of ARCHIVE, or of a generation of STORE, and their lag."""
        source = audit_source(archive, store, generation, archive_moved)
        run("audit delivery", AuditDeliveryOptions, source=source, **given)

    return audit
