"""Commands on a store, and audits, as Python functions, as those of `jobs.api`.

`lastkey.audit(kind, ...)` has the commands of `audit` as one function:

    report = lastkey.audit("keys", "archive", audits="work/audits", topics="orders")
"""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from lastkey.jobs.command.config import Settings
from lastkey.jobs.command.functions import COMMANDS, command
from lastkey.jobs.command.option_groups import Listing, Monitoring
from lastkey.jobs.command.options import ArchiveNeededOptions
from lastkey.jobs.command.progress import Progress
from lastkey.jobs.command.store_options import (
    AuditDeliveryOptions,
    AuditFailoverOptions,
    AuditKeysOptions,
    AuditMirrorOptions,
    EraseOptions,
    RebuildStateOptions,
    RestoreOptions,
    RollbackOptions,
    RunsOptions,
    VacuumOptions,
)
from lastkey.jobs.errors import UsageError

if TYPE_CHECKING:
    from lastkey.jobs.archive_needed.job import ArchiveNeededReport
    from lastkey.jobs.audit.report import AuditReport
    from lastkey.jobs.erase.report import EraseReport
    from lastkey.jobs.rebuild_state import RebuildReport
    from lastkey.jobs.restore.report import RestoreReport
    from lastkey.jobs.rollback import RollbackReport
    from lastkey.jobs.runs import RunsReport
    from lastkey.jobs.vacuum import VacuumReport


@command(RestoreOptions, Monitoring)
def restore() -> RestoreReport:
    """Copy a generation into a log directory that a broker starts on.

    A full clean takes the settings of `config` or, for topics without any, of their last run. Raises a JobError if the
    job stops (kinds MissingFileError: a file of the generation is gone; NotEmptyError; NotCleanedError: the full clean
    found a problem).

    [Restore to a broker](/how-to/restore.md) has the steps. The broker starts without recovery.

    `--as-of` goes by the wall clock when each generation was committed, rollbacks included. If `vacuum` has deleted the
    generation that was current then, or one that may have been, no partition is restored (exit code 2). The error names
    the generations that are left before and after it.

    Every file is compared with the checksum of what was written, indexes and snapshots too. If one differs, `restore`
    names that file, removes its copies and ends with exit code 3; `compact --force` makes new files beside the logs
    (with `--reset TOPIC` for a missing `.txnindex`). The records of a `.log` that is damaged or missing are lost to
    this generation, so `--force` finds its partition uncleanable: bring the file back, restore an older generation, or
    start over from what the archive holds with `compact --force --reset TOPIC`. `--force` reads every file of a
    partition that is not due; remove a file that was cut short first, and add `--set gaps=accept` where a file of the
    archive is lost.

    Segments in magic 3, of an archive that `convert` made, become magic 2, with indexes made from the settings; JSON
    counts them in `converted`.

    Segments that were never rewritten come from the archive. If one is missing, `restore` fails (exit code 3) before it
    writes anything. It copies files and never links them, because a broker appends to them. The report lists what the
    archive holds beyond the end of the restored partitions. A restore that fails, or is interrupted, removes only the
    files and folders that it made; the error names what is left.

    **The end of a log.** The log end and the offset of the last record that a consumer gets may differ: a marker, a
    batch that lost its records, or records that a cleaner took are between them. A consumer that waits for the record
    at log end - 1 waits forever, as on the original cluster. The text shows the column `last record` where it differs.

    **Topic ids.** A KRaft broker treats a folder as stray if its cluster has no topic with the id in
    `partition.metadata`. The same applies if this file is missing (logs older than 2.8 have none). The broker renames
    the folder to `<partition>.<id>-stray`, keeps its files, and begins an empty log. `--topic-ids FILE` writes the ids
    of the cluster: FILE is the text of `kafka-topics.sh --describe`, or has lines `topic=id`. Notes name the partitions
    that a broker will treat as stray. They have no id (`topic_id` null in JSON), FILE does not name their topic
    (`topic_id_is_given` false), or the cluster's topic does not have them (`is_beyond_topic`). Another note names
    partitions of `__transaction_state` with a segment that ends in a batch without records (`ends_in_empty_batch`):
    brokers before 3.9.2 and 4.0 load these forever.

    **Missing partitions.** A partition that the archive has, and of which the store has no generation, is a problem
    (`no_generation`, exit code 3); all others are restored. It was never due, it is uncleanable, or it is newer than
    the last run. If the archive cannot be read, the states of the last runs show which partitions it had. A topic that
    no run was asked to compact is no part of the store: the report lists its partitions with what else the archive
    holds. Empty partitions are part of the store from the first run on, with their log start and log end.

    **Cleaning by the broker.** After runs [by yield](/../udfs/yields/YIELDS.md) a segment may hold records that later
    segments have superseded. So the cleaner checkpoint that `restore` writes may be below what the runs have cleaned. A
    broker counts all records from there on as dirty; once its dirty ratio is reached, it reads that part for its map of
    keys and copies the log again. The report names these partitions and bytes. With `--full-clean`, their topics are
    first compacted as by `compact --force`, and the new generation is restored: on Spark unless the settings name
    another engine. The archive must be where `compact` finds it: `--archive` with another place fails (exit code 2). If
    a partition cannot be cleaned, no partition is restored (exit code 3).
    """


@command(ArchiveNeededOptions, Listing)
def archive_needed() -> ArchiveNeededReport:
    """Show which segments of ARCHIVE are still needed beside STORE, and why; the others may be deleted.

    The command only reads. All segments from the first needed segment of a partition on are needed. So the segments
    that may be deleted are always the beginning of a log, and the rest has no new hole. A segment is not needed only if
    all of this holds:

    - a run has read it from its first byte to its last, and size and checksum are still what that run saw;
    - the store's own generation is complete: every file is there, and each `.log` has its checksum;
    - the next run would not open it, and neither would a run after a rollback to a generation that the store still has;
      no such generation uses the file;
    - it is below each gap that a generation passed over;
    - it is not the last segment: the log continues there, and later runs recognise the log by it.

    A whole partition is needed if it is uncleanable, or if the store has no generation of it. The whole partition is
    also needed if its folder holds an entry that no job reads, or while a broker holds it. While a run works on it, or
    if something cannot be read, it is not judged: all of it is needed, and the exit code is 3. So exit code 0 means
    that each partition has an answer. A store that an older version made does not know what its runs have read: it
    needs all of the archive until a partition starts over (`--reset`).

    The command reads the segments that may be deleted and, where there are any, the partition's generation, once. Until
    `vacuum` takes older generations, a rollback could return to them; so with a grace of a week the archive keeps a
    week.

    The report ends with one answer for the whole archive, the same that `compact` ends with. "The archive is no longer
    needed" appears only if the last run of each partition was `--sealed` and read its last segment whole. The store
    must also replace every segment, and each must have been compared. The archive must hold no other data that may be a
    log: no topic that `--topics` left out, no unreadable folder, and no entry that no job reads. Every file and folder
    is such an entry, with these exceptions: partitions, the checkpoints beside them, `meta.properties`, `.lock`,
    `.kafka_cleanshutdown`, unfinished checkpoints (`.tmp`) and the cache of remote indexes. `__cluster_metadata-0`, a
    `.tar` file or a folder marked `-stray` keep the archive; JSON lists their paths under `entries`. `compact` reports
    on the files that its run read, and refers to this command for the others.

    See [Which archive segments can I delete](/how-to/delete-archive.md).
    """


@command(RunsOptions)
def runs() -> RunsReport:
    """List all runs on STORE with their outcomes and savings.

    The list has every compaction, erasure, check of an erasure, rollback and vacuum, and every audit whose tables the
    store holds: its [outcome](/reference/exit-codes.md), user and host, and the number of partitions, records and bytes
    before and after.

    A run is listed with the partitions whose current generation derives from it: for 30 days, or 10 generations of a
    partition if that is more. The newest 1,000 runs are listed in any case, and every erasure. Not listed: dry runs,
    runs that failed for a wrong option, setting or path (exit code 2), and runs below a path that held no store yet.
    `--topics` lists only runs that committed one of these topics. A run cannot write its row if the store does not
    answer within 5 s or cannot be written. Such a run ends as it would have ended, with a note.
    """


@command(RollbackOptions)
def rollback() -> RollbackReport:
    """Make an older generation of STORE the current one.

    Every partition above generation N goes back to it: all of them, or none. The commit adds a new generation, one
    above the highest, that uses the files of generation N. So a rollback can be undone: roll back to the generation
    that was current before it, until vacuum takes its files.

    The next run reads the archive again from where generation N ended. If the archive no longer has all of that,
    `rollback` names the offsets (`lost` in JSON): they cannot be read unless you roll forward again. `rollback` fails
    if files of N are missing, in the store or the archive. Partitions at N or below do not change. Vacuum keeps what
    you rolled back for its grace period, and after that as long as it has offsets that no later run has read.
    """


@command(RebuildStateOptions)
def rebuild_state() -> RebuildReport:
    """Restore the lost tables of STORE (its folder state) from the manifests of its generations.

    First end all runs on the store: their leases are lost with the tables.

    The highest generation of each partition whose folder has a file `committed` becomes the current one, and the lower
    ones its history. `rebuild-state` does not guess. It lists a partition with its candidates, and writes no file until
    `--choose` names the run that counts, if

    - a folder above it has a manifest and no file `committed`: a run died before its commit, or just after it;
    - files of the highest one, or its manifest, are missing;
    - two generations of one number have the file, as after `state/` was replaced by an older copy;
    - no folder has the file.

    If you choose a generation that is not the highest, it comes back as a rollback to it. Vacuum keeps what you leave
    out as long as it has offsets of its own. The rows of the time index are not restored; `lookup --at` makes them.
    """


@command(VacuumOptions, Listing, Monitoring)
def vacuum() -> VacuumReport:
    """Delete files of STORE that no generation needs any more, after a grace period.

    No other job deletes files of a store, and `vacuum` deletes only below STORE.

    `--keep N`, `--keep Nd` and `--keep Nw` count as borg's `prune` does: by the time of the run, newest first, and a
    generation that an earlier of the three keeps is not counted by the later ones. These options only add to the
    generations that vacuum keeps by its own rules.

    Vacuum keeps current generations whatever their age. An older generation can be restored until vacuum takes its
    files. A generation may be the only copy of records: from before a `--reset`, before a gap that was accepted, or
    after a rollback. So vacuum keeps each one that holds offsets which the current generation, and those that it
    derives from, never read into files of the store. It lists them with these offsets (`kept:`) until a later run has
    read them, or `--give-up` names the topic. If a manifest that vacuum needs cannot be read, it deletes no file of
    that partition. Without `--topics`, `--topics-from` and `--exclude`, vacuum also runs Delta's own VACUUM over the
    state tables. Delta's VACUUM keeps files younger than 7 days whatever the grace period. [The
    store](/../jobs/store/STORE.md#generations-and-vacuum) has every rule.
    """


@command(EraseOptions, Listing, Monitoring)
def erase() -> EraseReport:
    """Erase every record of some keys from STORE for good, and show where these keys still are.

    The report's `result` is erased, vacuum_needed, incomplete or unknown. It lists uncleanable partitions, with exit
    code 3. Raises a JobError if the job stops.

    Each partition that held one of the keys gets a new generation without them, and no later run, reset or rollback
    brings them back. Then archive and store are searched for the keys, and a row is added to the table `cleaner_runs`.
    Without `--topics` all topics are erased from except Kafka's own. The exit code is 3 if a partition is uncleanable,
    something could not be searched, or a current generation still holds a key; with `--check` also if any file of the
    store does. With exit code 0 the line `result` still shows whether `vacuum --erased` has something to delete.

    Each current generation that still holds a key is a problem that names the number of keys and the remedy: a topic of
    Kafka's own must be named (`--topics __mine`). With `--check` each older generation, and each other file of the
    store, is a problem too.

    For a trial any file serves as `--hmac-key`; for your own take 32 random bytes. See [Erase a key with
    proof](/how-to/erase.md) and [Erasure](/reference/erasure.md).
    """


@command(AuditKeysOptions)
def audit_keys() -> AuditReport:
    """Show what ARCHIVE, or a generation of STORE, holds of each key.

    For each key of each partition: last offset and time, tombstone or value, number of versions, bytes of all versions
    and of the last; keys that the default partitioner (murmur2) would have put into another partition; and keys in
    several partitions. The table `audit_keys` has a row for each key.

    Kafka's own topics (`__*`) are left out without `--topics`. The exit code is 3 if a place could not be read, or if
    the audit has findings. [Audits](/reference/audits.md) explains the tables. `--engine threads` needs tables on a
    disk, and reads no table of `--deliveries`.
    """


@command(AuditDeliveryOptions)
def audit_delivery() -> AuditReport:
    """Show the versions of each key of ARCHIVE, or of a generation of STORE, that groups received, and their lag.

    For each group and key: the delivered offset; whether the last update was delivered; the lag in versions, offsets
    and time; for each group and topic the percentiles of these lags, and the keys that have waited longest; and the
    figures of earlier audits of the same source. Offsets that groups have committed come from `__consumer_offsets` and
    `__share_group_state` in the source, or from a table of deliveries by key. The table `audit_deliveries` has a row
    for each key and group ([Deliveries](/reference/audits.md#deliveries)).
    """


@command(AuditMirrorOptions)
def audit_mirror() -> AuditReport:
    """Compare B with A, whose copy it is, key by key.

    B may be MirrorMaker's copy, a restored log directory or a generation. A and B are archives, or `STORE@GENERATION`
    or `STORE@current`. The audit finds keys that are missing, stale, different, extra, ahead or in another order in B,
    and the same of records without a key; offsets may differ ([Mirrors](/reference/audits.md#mirrors)). The table
    `audit_pairs` has a row for each finding. A topic of A that B lacks is missing; topics that only B has are named and
    not compared. Topics that MirrorMaker and Connect keep for themselves (`*.internal`, `*-internal`) are left out,
    unless `--topics` names them.
    """


@command(AuditFailoverOptions)
def audit_failover() -> AuditReport:
    """Find the offsets of B at which a group that read A loses nothing.

    For each partition the report has the offset of B at which the group continues. It measures how much the group then
    reads again, in records and milliseconds. It also has the records that are lost because the mirror has no copy of
    them (exit code 3). A and B are named as for `audit mirror`. The table `audit_pairs` has a row for each partition,
    and for each lost record ([Failing over](/reference/audits.md#failing-over)).

    If B holds topics of MirrorMaker 2, `*.checkpoints.internal`, `mirror_maker` compares its last checkpoint of the
    group with each answer: `confirms`; `skips`, with the number of offsets of B from the answer on that a consumer
    would skip (records of others, or lost ones); or `open`, if the answer is by time or the start of B.
    """


def audit(
    kind: str,
    *places: str | os.PathLike[str],
    config: Settings | None = None,
    progress: Progress | bool = False,
    **options: object,
) -> AuditReport:
    """Run an audit and return its report, which displays itself in a notebook.

    kind: "keys", "delivery", "mirror" or "failover". places: the command's arguments, such as the archive. options: the
    command's long options with underscores; one that may be repeated takes several values, a switch True; None leaves
    it out. config: settings, as of `compact`; progress: True shows a bar on stderr.

    Raises a JobError if the job stops, and TypeError for an argument of another type. What is found is in the report.
    """
    kinds = {name.removeprefix("audit "): found for name, found in COMMANDS.items() if name.startswith("audit ")}
    if kind not in kinds:
        raise UsageError(message=f"audit: expected {' or '.join(kinds)}, found {kind!r}")
    names = {value.flag[2:].replace("-", "_"): value.name for value in kinds[kind].values if not value.argument}
    given = {names.get(name, name): value for name, value in options.items() if value is not None}
    report = kinds[kind].function(*places, config=config, progress=progress, **given)
    return cast("AuditReport", report)
