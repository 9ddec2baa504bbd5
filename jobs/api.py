"""Jobs as Python functions. Each is a command too, so an option means the same in both.

    import lastkey

    report = lastkey.compact("archive", "store", topics="orders-*", cleanup_policy="compact")
    print(report.to_text(), report.exit_code)

The parameters are the declarations in `command.options`. A function here has no body: `command` makes the one that
runs. Problems with data are in the report, and other partitions continue. An error that stops a job is
raised as a JobError with the command line's words, an argument of another type as a TypeError. A docstring is
Markdown, for the page of the command: its first paragraph is the help, a link with / begins at docs/.
"""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

from typing import TYPE_CHECKING

from lastkey.jobs.command.functions import command
from lastkey.jobs.command.option_groups import Listing, Monitoring
from lastkey.jobs.command.options import (
    CompactOptions,
    ConvertOptions,
    MergeOptions,
    PackOptions,
    PoliciesOptions,
    ReindexOptions,
    VerifyOptions,
)
from lastkey.jobs.command.read_options import ExportOptions, InspectOptions, LookupOptions, ReplayOptions, ReportOptions

if TYPE_CHECKING:
    from lastkey.jobs.command.reporting import JobReport
    from lastkey.jobs.compact.report import CompactReport
    from lastkey.jobs.convert.job import ConvertReport
    from lastkey.jobs.export.output import ExportReport
    from lastkey.jobs.merge.report import MergeReport
    from lastkey.jobs.pack import PackReport
    from lastkey.jobs.policies.job import PoliciesReport
    from lastkey.jobs.reindex.job import ReindexReport
    from lastkey.jobs.replay import ReplayReport
    from lastkey.jobs.verify.job import VerifyReport


@command(CompactOptions, Listing, Monitoring)
def compact() -> CompactReport:
    """Keep the last record of every key and drop the rest, as the broker's own cleaner does.

    Each partition is committed as a new generation of the store. Uncleanable partitions are in the report, with exit
    code 3; with exit code 4 another run committed first. Raises a JobError (UsageError, RunningError, MachineError,
    ...) if the job stops.

    **Topics.** `compact` takes topics whose `cleanup.policy` contains `compact`, and topics with a retention. The
    default policy is `delete`, as in Kafka. Name your topics in a settings file, or give `--topics` and
    `--cleanup-policy compact` together. `--topics` and `--exclude` alone only narrow the choice.

    **Retention.** A topic whose `cleanup.policy` contains `delete` loses its oldest segments by `retention.ms` and
    `retention.bytes` if they are set: there is no default of seven days. With `compact,delete` a run compacts first,
    then applies retention to the rest. The archive does not change: the new generation begins later, and the report
    lists what was deleted, by rule ([rules](/../udfs/compact/COMPACTION.md#retention)).

    **Due partitions.** A partition is due if it has a dirty record older than `max.compaction.lag.ms`; or if dirty
    bytes / (clean + dirty bytes) is above `min.cleanable.dirty.ratio` and there are at least `min.dirty.bytes` dirty
    bytes; or with `--force`. New settings alone make no partition due. The report counts other partitions as `not due`,
    and the exit code is still 0. Lines that begin with `not due:` name the [rule](/reference/json.md#held_back), the
    segment and offset where it applies, and since when: for each rule the partition that it has held back longest, with
    `--all` and `--json` every partition. If only retention applies, a run may still read one segment: the one at the
    end of the last generation. The run reads this segment if its archived file has another size or time than before, to
    verify that the log is the same.

    **Next runs** start where the last one ended: they read the last generation from the store, and from the archive
    only newer records. Segments that have left the archive are not needed if the store holds them. Each run reports
    whether the archive is still needed, with every reason, the worst first.

    **Tombstones take two passes.** The first pass gives them a delete horizon, `delete.retention.ms` ahead. A pass
    after the horizon drops them.

    **Uncleanable partitions** (exit code 3) keep their generation, and other partitions are processed. The state is
    `uncleanable` if files are damaged. The state is `diverged` if another log has the partition's name: topic
    recreated, archive rolled back or converted, another cluster, a checkpoint above the log end. The state is `gap` if
    a segment is missing, empty or cut short: between two segments, between store and archive, or where an index or a
    snapshot shows that there was more. A hole that a cleaner made is [not a gap](/../udfs/compact/COMPACTION.md#holes).
    The report and the table `cleaner_state` give path, position, expected and found. See [A partition is
    uncleanable](/how-to/uncleanable.md).

    **Other rules.** `compaction.strategy` selects the record of each key that is kept in place of the last one: the
    record with the highest timestamp, or with the highest version in a header ([version-based
    compaction](/../udfs/compact/COMPACTION.md#version-based-compaction)). With `compaction.schedule = "yield"` a run
    cleans new records and rewrites older segments only if at least `compaction.min.yield` of their records are dead
    ([yields](/../udfs/yields/YIELDS.md)); `--dry-run` shows the schedule.

    **Signals.** The first Ctrl-C or SIGTERM stops the work and commits the partitions that are finished. Files that the
    run wrote for other partitions are removed. The exit code is 130 or 143; with `--json` the report has `error`. With
    Spark this takes some four seconds. A second signal ends the run at once: commits stay, and vacuum removes the rest
    after its grace period. Signals within a quarter of a second count as one. Send SIGTERM to the command alone
    (`timeout --foreground`, systemd's `KillMode=mixed`): the JVM of a process group that gets it ends at once.

    **Limited time.** With `--max-runtime` a run takes the partitions first that were cleaned, or attempted, longest
    ago, so that over several runs each is processed. When the time is over, the run stops as at a first signal: up to
    some ten seconds, and the commit. The exit code is 6; 3 and 4 take precedence, and in JSON `partial` is true in
    either case. The time begins with the command's work and includes `--wait`. A note names the partitions that were
    being processed: their work is lost, and they go to the end of the queue. A partition that needs more than the whole
    time is never finished: give it more, or a run of its own with `--topics`.

    **Limited throughput.** The setting `max.bytes.per.second` is the limit (`--set max.bytes.per.second=N` for one
    run). Each task pauses after a read or write for as long as that should have taken. Threads share the limit. On
    Spark each task gets the limit divided by the tasks that can run at once, so a run with fewer tasks stays below it.
    The limit covers logs, their indexes and all data that is made from them; not listings, state tables, and what Spark
    moves by itself (key hashes of large partitions, `lookup --at`). In Google's store 8 MB more count for each log that
    is read backwards, because its library fetches that much in vain. `verify`, `reindex`, `convert`, `inspect`,
    `report`, `erase`, `lookup --store`, audits and `restore` keep to the same setting.

    **Concurrent runs.** A run holds a [lease](/../jobs/store/STORE.md#several-runs-at-once) in the store, which names
    its partitions, host and process id. A second run on one of these partitions ends with exit code 4 before it reads a
    log, and names the first run; with `--wait` it waits. Runs on other `--topics` work side by side. A killed run
    blocks its partitions until its lease expires, 90 seconds after the last renewal.
    """


@command(VerifyOptions, Listing, Monitoring)
def verify() -> VerifyReport:
    """Check ARCHIVE, or a generation of STORE, and list every problem.

    Every byte is read, by code that is separate from that of `compact`. Problems are in the report, with exit code 3.
    Raises a JobError if the job stops.

    To check a part in each run, give each run its topics (`--topics`, `--exclude`).

    Lines that begin with `not checked:` name comparisons that `verify` could not make. They need no action if the
    reason is in order: `vacuum` took the previous generation, the archive is gone, or its broker cleaned it or deleted
    its beginning. If the other side is damaged, cannot be read, or lacks files whose deletion is not recorded, that is
    a problem (exit code 3). An archive that `--archive` names must exist. A restored log directory is an archive too.

    Lines that begin with `held back:` name the oldest transaction of an archived partition that is open from below the
    active segment on. Such a line has the transaction's producer and the time of its beginning. No record from its
    first offset on is cleaned before a marker ends the transaction. These lines are no problems (`held_back` in JSON).

    No checksum covers leader epochs. A difference between the batches and the `leader-epoch-checkpoint` of a partition
    is a note: a log that was restored into another cluster has one. It is a problem of a generation if the archive's
    own file still names a batch's epoch and the generation's copy does not.
    """


@command(ReindexOptions, Listing, Monitoring)
def reindex() -> ReindexReport:
    """Rebuild the index files of ARCHIVE from its logs, and show what was wrong with them.

    Give `--check`, `--output DIR` or `--in-place`. Wrong files are in the report, with exit code 3 if any stays wrong.
    Raises a JobError if the job stops (kind LogDirectoryInUseError: a broker holds the archive).

    It rebuilds `.index`, `.timeindex`, `.txnindex`, producer `.snapshot` files and a lost `leader-epoch-checkpoint`
    from the `.log` files alone, as Kafka's recovery does.

    Each file is `same`, `rebuilt` (`differs` with `--check`) or `impossible`: its log is damaged, and the report has
    the place. Reasons are `missing`, `torn`, `padded`, `stale`, `wrong`, `foreign`, `huge` and `other_entries`
    ([meanings](/../udfs/reindex/REINDEX.md)). A file with `other_entries` serves every look-up:
    `--in-place` leaves it alone, and it does not cause exit code 3.

    `--in-place` fails (exit code 4) while a broker holds the log directory's `.lock`, and holds that lock itself while
    it works. If it is killed, each file is either the old or the new one; run it again. Ctrl-C and SIGTERM end every
    mode at once, and the message has the number of finished partitions. The folder of `--output` is then
    incomplete: remove it.
    """


@command(ConvertOptions, Listing)
def convert() -> ConvertReport:
    """Write ARCHIVE, or a generation of STORE, again in another message format, without loss.

    The source is only read. Raises a JobError if the job stops (kinds NotEmptyError; ConvertFullError: the disk is
    full).

    `--to v3` writes a message format of our own, which takes less room and whose keys are read without their values
    ([magic 3](/../logformat/FORMAT.md#magic-3)); `--to v2` writes Kafka's. Every job reads both; a broker reads v2
    alone.

    A batch that v3 would not give back byte for byte stays as it is, so a file may hold both formats. Each new batch is
    read again and compared; if a byte of a record or a field of its header differed, that log would be a problem
    (`readback`) and left out. Control batches and magic 0 and 1 always stay. On the way back the bytes are those of the
    original, except for bodies that snappy or zstd compressed elsewhere: these are equal when decompressed. Logs get
    new indexes and keep their times; other files of a partition, and checkpoints beside it, are copied.

    A log that cannot be read is a problem (exit code 3), and is left out; others are converted. A log never grows
    beyond 2 GiB - 1: on the way to v3 batches stay as they are in logs of more than 7/8 of that; a log that would on
    the way to v2 is such a problem.

    A run that was killed, or found no space, continues when you give the same command again: it keeps each segment that
    is complete. Until the end the output holds `convert.part`. An incomplete partition is in a folder `TOPIC-N.part`:
    no job takes this folder for a log, and a broker does not start on it. In a bucket it is an object `TOPIC-N.part`
    beside the folder. If the archive or the settings have changed since, the command fails (exit code 2): remove the
    output, or choose another.

    A store identifies its archive by sizes of files and by the checksum of the last batch. So the store does not
    continue with a converted copy. In another place, the copy is another archive (exit code 2). In the archive's place,
    its partitions are `diverged` (exit code 3), also with `--force`: they are not cleaned, and the generations stay.
    The exception is a generation that uses no file of the archive. Such a generation continues if the last batch before
    its end did not change, as a transaction's marker does not: the copy holds the same records. So keep the archive, or
    begin a new store, or `--reset`.
    """


@command(MergeOptions, Listing)
def merge() -> MergeReport:
    """Write the most complete log of several copies of a log directory, batch by batch.

    The archives are only read. Raises a JobError if the job stops (kinds NotEmptyError; LogDirectoryFullError: the disk
    is full).

    Each batch comes from a sound copy, and a broker loads the output without recovery. [Rebuild a partition from
    damaged copies](/how-to/merge.md) has the steps.

    **Lineage.** Leader epochs decide between different batches at the same offsets, as when a follower truncates its
    log (KIP-101, KIP-279; `OffsetsForLeaderEpoch`): the copy with the highest last epoch leads. Batches of every other
    copy count up to the offset where its epochs diverge from the leader's. Epochs come from the batches and from
    `leader-epoch-checkpoint`; a checkpoint that contradicts the batches beside it is not used, with a note. Batches of
    the leader's own last epoch count in every copy, because one broker wrote them all. Batches that lost, such as those
    of an unclean leader, are listed with their offsets: `export` writes them from that copy. Batches of magic 0 and 1
    have no epochs: equal ones are merged, different ones are a contradiction.

    **Choice.** Of batches with the same offsets the one with the most records counts, because a cleaner may have
    removed some elsewhere; then the one that no cleaner rewrote; then that of the copy with the most sound batches. A
    checksum does not cover a batch's base offset and leader epoch. If they do not fit the batches around them, another
    copy is taken. A leader epoch that is wrong in every copy is corrected, with a note.

    A range that only a compacted copy holds is merged with ranges of copies that are less compacted. Each key keeps its
    last value. But if a cleaner has removed a tombstone there, older values of its key in other ranges show again.
    Data of an aborted transaction whose marker is lost is a problem (exit code 3).

    **Contradictions.** A partition is a problem (exit code 3) and is not written if its copies contradict each other;
    other partitions are written. Copies contradict each other if they have different topic ids, or leader epochs
    without any common offset. Different batches of one leader epoch also do, if a cleaner cannot have made one of them
    from the other. The message names both copies.

    **Missing offsets.** A copy that cannot be read is reported; it is no problem where others cover it. Offsets that no
    copy has stay a gap and are a problem (exit code 3); the rest is written.

    **Output.** Indexes, transaction indexes, producer snapshots and the epochs checkpoint are built from the result,
    and every written byte is read back. Segments end where those of the preferred copy end. `partition.metadata` keeps
    the topic id. The cleaner checkpoint is the lowest of the copies that were used. A folder that a running broker
    holds is refused (exit code 4). A folder that is given twice, also by a link, is refused too (exit code 2). A run
    that fails removes what it wrote.
    """


@command(ExportOptions)
def export() -> ExportReport:
    """Write the records of ARCHIVE, or of a generation of STORE, as JSON lines, Parquet or Delta.

    Each topic gets a folder, for programs that do not read Kafka's files. Tasks write the files where they read the
    logs, about 128 MiB of log in each file. Kafka's own topics (`__*`) come only if `--topics` names them.

    A record is a row: `partition`, `offset`, `timestamp`, `timestamp_ms`, `timestampType`, `key`, `value`, `headers`,
    and `tombstone`, true without a value. Control records are left out. With a decoder, bytes that it refuses give
    null, and stay in a column `key_malformed` or `value_malformed`; a note counts them. In JSON bytes are base64, also
    values of headers. Rows of a file are in the order of the log.

    A folder of Parquet or JSON files is complete once it holds `_SUCCESS`. A Delta table appears with its first commit,
    after all its files.

    Unreadable data is skipped, and each such place is named: path, position, expected, found (exit code 3). An
    export that was killed leaves `"state": "unfinished"` in its file: the same command removes what is there and begins
    again. Any other folder that is not empty is refused (exit code 2).

    **The last record of each key.** `--latest` needs Spark (`--engine threads` fails). Each topic then has a Delta
    table with a row for each key of each partition: `partition`, `offset`, `timestamp`, `key`, `value`. A run reads
    from an archive, or a store, what came after the last run, up to the first open transaction, and merges it: newer
    records replace rows, tombstones delete them. Records without a key are left out, and counted in a note. After each
    run the table has the state that a consumer of the whole log, from its first record ever, would have.

    The offsets that a table has reached are in the same Delta commit as its rows (in its user metadata). So a killed
    run has committed both or neither; run it again. Of two concurrent runs one fails. OPTIMIZE and VACUUM may work on
    the table; if another program changed rows, the topic is left alone and named. A partition that cannot continue
    keeps its rows, and the reason is named (exit code 3):

    - damage, a gap: stops before the segment with the damage, or at the transaction that is open there, until the file
      is complete again;
    - records that retention took before a run read them: stops; `--set gaps=accept` continues at the log's start;
    - a log that ends before the table's offset: stops: an older copy, or another log;
    - a partition, or the whole topic, is not in the archive: stops;
    - another topic id in `partition.metadata`: the topic was recreated; in a store, a `--reset`: starts over, in one
      commit, and reports it.

    In an archive without `partition.metadata`, a recreated topic is noticed only while its log is shorter. As for any
    consumer, a tombstone that a broker's cleaner dropped before a run read it deletes no row: run more often than
    `delete.retention.ms`. A note names partitions that were cleaned beyond the table's offset. With `--key-decoder`
    only types that distinguish all keys are allowed.

    With `--store` the table follows the current generations, or the one that `--generation` names, and needs no archive
    of what compactions have read. Compactions between two runs do not change the table: superseded records have
    successors. If a compaction dropped tombstones that the table may not have seen, the run also reads the keys of the
    whole generation. Such a run deletes rows whose keys are no longer in the generation. If retention may have taken
    these keys (the row is below the log start, or `retention.exact` is on), the partition stops and is named; `--set
    gaps=accept` continues, and leaves those rows.
    """


@command(ReplayOptions)
def replay() -> ReplayReport:
    """Write the records of ARCHIVE, or of a generation of STORE, into topics of a live cluster, each once.

    Records are written in order, with their timestamps and headers, into the partition of the same number. Kafka's own
    topics (`__*`) come only if `--topics` names them. The package confluent-kafka, of the extra `cluster`, must be
    where tasks run.

    Each partition has a transactional producer (`acks=all`). It commits a transaction every 20,000 records. The same
    transaction commits the next offset in the source, as the group's offset for the target's topic and that partition.
    `kafka-consumer-groups --describe --group` shows this offset. A killed run continues there; its last transaction is
    aborted, so consumers with `read_committed` see each record once. Consumers that read uncommitted data see those
    records too. The cluster forgets a group's offsets after `offsets.retention.minutes` (seven days); a run that finds
    none, and records in the partition, refuses to begin (exit code 3) without `--append`.

    Damage ends its partition: what precedes it is written, the place is named (exit code 3), and after a repair the
    same command continues. If damage hides where transactions end, no record of the partition is written. Topics must
    exist, with at least as many partitions, and with `message.timestamp.type` = `CreateTime`: otherwise no record is
    written (exit code 2). Their retention counts by the records' own timestamps: give old records a long `retention.ms`
    first. Offsets are new. Records without a timestamp (of magic 0), or with 0, get the time of the run; a note counts
    them.
    """


@command(PoliciesOptions)
def policies() -> PoliciesReport:
    """Write the policies of a cluster's topics as settings for --config.

    Each topic gets a table with its cleanup policy and each other setting that differs from Lastkey's defaults. The
    source is FILEs, or with `--bootstrap-server` the cluster itself; the same state gives the same tables from each
    source.

    FILEs are recognised by their content, those of `__cluster_metadata` by their names:

    - output of `kafka-configs.sh --entity-type topics --describe`, with `--all`: every setting of a topic as its broker
      resolved it (`producer.id.expiration.ms` is of brokers alone); without `--all` the topic's own;
    - the same for brokers (`--entity-type brokers`): dynamic settings of each broker and of all; with `--all` and
      `--entity-name ID` static ones too;
    - a snapshot (`*.checkpoint`) or segment (`*.log`) of `__cluster_metadata`, or its folder (`__cluster_metadata-0`,
      or the one above): topics with their own settings, brokers with their dynamic ones. The newest snapshot, then the
      log after it;
    - a broker's `server.properties`: its static settings. One file counts for all brokers; several, each for the broker
      that it names.

    A topic without a value of its own takes the brokers' value, as in Kafka: dynamic ones of the broker, then of all
    brokers, then static ones, then Kafka's defaults; `log.retention.ms` before `log.retention.minutes` before
    `log.retention.hours`. Brokers that disagree on such a value are an error that names them: set it for the topic, or
    name other topics. Of a live cluster every broker is asked, and a note names those with replicas that do not run. A
    note is added if no source shows the static settings. Settings without effect here are named: those of topics beside
    their table, dynamic ones of brokers in a note; static ones are not listed. `retention.ms` and `retention.bytes` of
    a topic whose policy has no `delete` are left out. A topic with an empty policy
    ([KIP-1161](https://cwiki.apache.org/confluence/display/KAFKA/KIP-1161)) gets `"delete"` without limits, which keeps
    all records.

    There is no `[defaults]`: a topic that the file does not name, because it was deleted or is newer, stays as it is in
    the archive.

    **Damage.** The command ends with exit code 2 and writes no settings if its input is damaged: a wrong checksum, a
    snapshot without its end, a missing segment or offset, or an incomplete batch at the end. The same applies to a
    record of a newer Kafka. Record types that Kafka 4.4 does not have are counted in a note. The log of a node may end
    with records that its quorum takes back later; take a snapshot if that matters.

    **Changes since then.** The table `[made]` names the moment of the file: the offset in `__cluster_metadata`, and the
    time of the last record, of the question to the cluster, or of a described file. If the archive of `compact` has a
    `__cluster_metadata`, `compact` notes changes of topics or settings after that offset. Without an offset, it notes
    changes after that time. `compact` reads the log from there on, 12 MB for a day of a quiet cluster. Changes in the
    brokers' own files are not in it.

    **Connections.** `--command-config`, here and for `replay`, takes `security.protocol`, SASL's PLAIN and SCRAM by
    `sasl.mechanism` and `sasl.jaas.config`, and TLS: trust in PEM, keys in PEM or PKCS12,
    `ssl.endpoint.identification.algorithm`. A setting that the client does not support is an error and never ignored;
    for a JKS store the message explains how to make PEM or PKCS12 of it. Secrets are never shown.
    """


@command(PackOptions)
def pack() -> PackReport:
    """Pack what a cluster's executors need into OUTPUT, for Spark's --archives OUTPUT#lastkey.

    OUTPUT, `lastkey.tar.gz` by custom, holds Lastkey, the packages that it needs except pyspark, compiled kernels, and
    a launcher for the Python of the node. Spark unpacks it beside each executor: `--archives lastkey.tar.gz#lastkey`
    before the command's name. OUTPUT gets its name when it is complete. The same installation gives the same bytes: 181
    MiB, unpacked 486 MiB (with `--driver` 238 and 626). See [Run on a cluster](/how-to/cluster.md).
    """


@command(InspectOptions)
def inspect() -> JobReport:
    """Print log files, indexes and snapshots as kafka-dump-log does.

    PATHs are files and folders, as paths or URIs. An `--output`, and a search in more than 64 MiB, work in parallel.

    With `--key`, `--offset` or `--time`, a folder is searched in parallel: only logs whose names allow a match are
    read, and only files with a match are mentioned. In a partition's folder the segments that are missing in the range
    are named; files that you name one by one need not be neighbours.

    Where kafka-dump-log ends with a stack trace, `inspect` skips the batch or index entry, reports it on stderr, and
    ends with exit code 3. With `--json` each batch, record and entry is an object on its own line, with its `file` and
    `type`, ready for `jq` and Spark.

    With `--print mismatches` the objects are the entries that contradict their log: of an offset index `offsetMismatch`
    (`indexOffset logOffset`), of a time index `timestampMismatch` (`indexTimestamp logTimestamp`),
    `timestampOutOfOrder` (`indexTimestamp previousTimestamp`) and `offsetNotFound` (`indexOffset logOffset`).
    `logOffset` is null where no batch begins, or the log has ended. Without `--json`, and on stderr with it too, they
    are Kafka's text.

    On a terminal every command shows control characters in keys, values and names as `\\x1b` or `\\u202e`: C0 and C1
    (without tab and newline), DEL, and characters that set the direction of text. In a pipe or a file, `--output`
    included, the bytes stay as kafka-dump-log prints them; read those with `less` or `cat -v`. `--json` escapes them
    everywhere.
    """


@command(LookupOptions)
def lookup() -> JobReport:
    """Find offsets by time, and positions by offset, in ARCHIVE or a generation of STORE, without a broker.

    A time is milliseconds since 1970, ISO 8601 (UTC if it names no zone), earliest, latest or max-timestamp.

    A search by offset skips the hole that contains the offset; a search by time skips all holes before its answer. If
    one of them is a [gap](/../udfs/compact/COMPACTION.md#holes), the missing segment may have held the answer. An
    offset out of range returns the valid range. `--time` alone searches every partition. Missing or wrong indexes make
    a search slower, never wrong, because what is used of them is checked against the log.
    [Lookup](/../udfs/lookup/LOOKUP.md) explains the search, its cost, and both kinds of time index.
    """


@command(ReportOptions)
def report() -> JobReport:
    """Make a page that shows what is in each ARCHIVE and what a compaction would save.

    The page is one HTML file without requests, light and dark, for a mail or a ticket. Partitions are read in parallel,
    and only the page is written.

    For each partition the page shows its size, live and dead records and bytes by segment, and distinct and hot keys.
    The page also shows tombstones by age, records by time and out of order, compression by codec, and the dirty ratio.
    Two figures are forecasts. The first one is the size after a compaction, as `compact --dry-run` gives it. The second
    one is the bytes that `retention.ms` and `retention.bytes` would take of the log, without those that
    `retention.exact` takes beyond that. A topic that no settings name counts as compacted if the archive's
    `cleaner-offset-checkpoint` names it, or if the store holds a generation of it.

    Several archives, such as the log directories of each broker, become one page, `report /b/one/data /b/two/data ...`:
    its sums are of all, and each row, plot and fold names its partition as `one/users-0`, after the part of the path
    that differs. A topic of `--topics` needs to be in one of them. An archive that is the same as another one, or is
    inside it, is refused.

    One table has every partition, and each name in it leads to the partition's segments, which fold below their topic.
    A click on the head of a table sorts by this column, by mouse or keyboard; topics and partitions are searched by
    words of their names (`dlq -1`). Both are a short script within the page; its policy names it by hash and allows no
    other one. Where scripts do not run, as in a mail, the same page folds, and shows all content in one order.

    A plot with a bar for each topic, partition or key draws the first twelve different values, most bytes or records
    first; equal values share a bar, `users-0 and 121 more`, and its table has all of them. The twelve largest topics
    have plots of their own; `--topics` draws those of any other. Hot keys are the 200 with the most records. On paper,
    a report of more than 40 partitions shows the details that you have opened; a search limits what is printed. Tables
    join consecutive segments; `--json` lists them all.

    The table of codecs shows each topic's bytes as they are, and if all of its data batches had a codec. Up to 256
    batches of each partition (16 MiB at most) are compressed with every codec; `±` is three standard errors of the
    estimate, and without it the figure is exact. `compact --set compression.type=CODEC --set recompress=true --force`
    rewrites them ([another codec](/../udfs/compact/COMPACTION.md#another-codec)). Batches of aborted transactions count
    as they are.

    Page, text and JSON (`savings`) give two figures: what a compaction would save by the settings, and what it would
    save if every topic were compacted. For the second one, topics that are not compacted are read twice, and records
    without a key count as kept.

    Exit code 3 means that a partition could not be read, or has more keys than `task.memory.bytes` holds (5.5 million
    by default). The page shows the reason.
    """
