"""Commands of `audit`: one for each kind of question."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

from lastkey.jobs.command.config import Config
from lastkey.jobs.command.job_modules import imported
from lastkey.jobs.command.options import (
    KEY_FORMATS,
    AuditDeliveryOptions,
    AuditFailoverOptions,
    AuditKeysOptions,
    AuditMirrorOptions,
    AuditPairOptions,
    audit_side,
    audit_source,
)
from lastkey.jobs.command.parse import parse_counts, parse_topics
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.shared_options import (
    Jobs,
    audit_options,
    audited_options,
)
from lastkey.jobs.errors import UsageError

T = TypeVar("T")
OF_PRINTING: Final = ("as_json", "progress", "quiet", "verbose", "show_all")  # what the command line alone needs


def audit_group(run: Callable[..., None]) -> click.Group:
    """Return the group. run: runs a job by its name, the type of its options, and their values."""

    @click.group(cls=Jobs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
    def audit() -> None:
        """Answer questions about keys: what was delivered, and what lies where.

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
        "--key-format",
        type=click.Choice(KEY_FORMATS),
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

    @audit.command()
    @_sides
    @click.option("--every-version", is_flag=True, help="Neither side is compacted: each version must be in both.")
    @audit_options
    def mirror(a: str, b: str, **given: Any) -> None:
        """Compare B with A, whose copy it is, key by key.

        A and B are archives, or STORE@GENERATION or STORE@current.
        """
        run_pair("audit mirror", AuditMirrorOptions, a, b, given)

    @audit.command()
    @_sides
    @click.option("--group", metavar="GROUP", required=True, help="The group that read A.")
    @click.option("--offsets-archive", metavar="URI", help="Has A's __consumer_offsets.  [default: A]")
    @click.option("--committed", metavar="FILE", help="The group's offsets instead, as kafka-consumer-groups exports.")
    @click.option("--plan", metavar="FILE", help="Write the offsets of B to this file, for kafka-consumer-groups.")
    @audit_options
    def failover(a: str, b: str, **given: Any) -> None:
        """Find the offsets of B at which a group that read A loses nothing.

        A and B are archives, or STORE@GENERATION or STORE@current.
        """
        if given["committed"] is not None and given["offsets_archive"] is not None:
            raise UsageError(message="--committed contradicts --offsets-archive: give only one of them")
        run_pair("audit failover", AuditFailoverOptions, a, b, given)

    def run_pair(job: str, kind: type[AuditPairOptions], a: str, b: str, given: dict[str, Any]) -> None:
        run(job, kind, a=audit_side(a), b=audit_side(b), **given)

    return audit


def _sides(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what audits of two sides take."""
    rename = "Topics of B that REGEX matches are A's REPLACEMENT, others are left out; repeatable."
    options = (
        click.option("--ignore-timestamps", is_flag=True, help="Copies have timestamps of their own."),
        click.option("--rename", "renames", metavar="REGEX=REPLACEMENT", multiple=True, help=rename),
        click.argument("b"),
        click.argument("a"),
    )
    return functools.reduce(lambda made, option: option(made), options, command)


def made_options(
    kind: Callable[..., T],
    config: Config,
    *,
    topics: Sequence[str],
    exclude: Sequence[str],
    topics_from: Sequence[str],
    **given: Any,
) -> T:
    """Return the options of a job that only the command line has, without those of printing."""
    return kind(config=config, topics=parse_topics(topics, exclude, topics_from), **given)


def audit_call(words: Sequence[str], config: Config) -> Callable[[Progress], Any]:
    """Return the call that a command line of `audit` means, for a program. Raise UsageError if it means none."""
    calls: list[Callable[[Progress], Any]] = []

    def run(job: str, kind: type[Any], **given: Any) -> None:
        made = made_options(kind, config, **{name: given[name] for name in given.keys() - {*OF_PRINTING, "config"}})
        calls.append(lambda progress: imported(job).run(made, progress))

    try:
        audit_group(run).main(list(words), prog_name="audit", standalone_mode=False)
    except click.ClickException as error:
        raise UsageError(message=error.format_message()) from error
    if not calls:
        raise UsageError(message="audit: expected a kind and its options, found a call for help")
    return calls[0]
