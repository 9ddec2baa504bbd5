"""Meanings of the fields of JSON reports, for the reference pages and `tests/test_docs.py`."""

from __future__ import annotations

from typing import Final

EVERY: Final = {  # fields of every report
    "job": "name of the command",
    "exit_code": "exit code of the command",
    "problems": "all problems: `kind path position expected found base_offset hint`; of `inspect` text. The position "
    "is -1 for a whole partition or folder. Never empty at exit code 3, except for an audit with `findings`",
    "notes": "remarks, as text",
    "engine": "null if nothing was due; else `threads`, their number, or for Spark `spark` (version), `master`, "
    "`application` and `tasks`",
    "seconds": "seconds by phase",
    "io": "of `compact`, `verify`, `restore`, `reindex`, `merge` and `vacuum`: `bytes_read` and `bytes_written` of all "
    "tasks, and `requests` to buckets by kind: `open` (which also asks for the size), `read`, `write` (a file), "
    "`list`, `info`, `copy`, `delete`. Client libraries may split or repeat requests",
    "error": "of a run that was interrupted: `kind exit_code message hint path position expected found`",
}
FIELDS: Final = {  # command -> field -> meaning. A name with a dot is a field of the entries of a list
    "compact": {
        "run_id": "id of the run, which is part of the names of its folders",
        "now_ms": "clock of the run",
        "archive_needed": "false: the store replaces the archive",
        "archive_needed_because": "reasons, the worst first: `kind` (see below), `message` and `names`",
        "conflict": "another run committed one of the partitions first",
        "partial": "`--max-runtime` was over",
        "summary": "the last line of the text",
        "partitions": "one entry for each partition, see below",
        "not_compacted": "topics whose policy does not select them",
        "expired_nothing": "partitions with a retention that deleted nothing",
        "partitions.topic": "topic",
        "partitions.partition": "number of the partition",
        "partitions.status": "`cleaned`, `not_due`, `uncleanable`, `conflict`, or `stopped` (interrupted, "
        "or out of time)",
        "partitions.generation": "number of the committed generation; null: none",
        "partitions.reset": "`--reset` started the partition over from the archive alone",
        "partitions.problem": "null, or `kind path position expected found base_offset hint`",
        "partitions.state": "null, or the state of a partition with a problem: `uncleanable`, `diverged`, `gap`",
        "partitions.held_back": "reasons why the partition is not due: `rule` (see below), `offset` (first one that is "
        "held back), `path`, `since_ms`, `until_ms`, `producer_id`, `found`, `limit`, `in_future`, `message`. null: "
        "unknown, or the rule has no such value",
        "partitions.first_dirty_offset_before": "first dirty offset before the run",
        "partitions.first_dirty_offset": "first dirty offset after the run",
        "partitions.log_start_offset": "log start",
        "partitions.next_offset": "log end",
        "partitions.dirty_ratio": "dirty ratio before the run",
        "partitions.clean_bytes": "clean bytes before the run",
        "partitions.dirty_bytes": "dirty bytes before the run",
        "partitions.bytes_before": "size of the `.log` files before the run",
        "partitions.bytes_after": "size of the `.log` files after the run",
        "partitions.bytes_after_is_estimate": "a dry run estimated the size, from a sample of what it would compress",
        "partitions.bytes_read": "bytes read",
        "partitions.bytes_written": "bytes written",
        "partitions.recompressed_bytes": "bytes of batches that were rebuilt",
        "partitions.expired": "what retention deleted: `reason` (`log_start`, `size`, `time`), `first` and `until` "
        "(offsets), `segments`, `records`, `bytes`, and `bytes_above`: for the size limit, what the log holds above "
        "the high watermark",
        "partitions.segments_before": "number of segments before the run",
        "partitions.segments_after": "number of segments after the run",
        "partitions.gaps": "`[first, last]` offsets that the generation lacks",
        "partitions.records_read": "records read; like all counts only if the partition was cleaned",
        "partitions.records_kept": "records kept",
        "partitions.dropped_superseded": "records with a newer record of their key",
        "partitions.dropped_tombstones": "tombstones past their delete horizon",
        "partitions.dropped_aborted": "records of aborted transactions",
        "partitions.dropped_null_key": "records without a key",
        "partitions.dropped_markers": "transaction markers past their delete horizon",
        "partitions.dropped_expired": "records that `retention.exact` deleted",
        "partitions.dropped_erased": "records of erased keys",
        "partitions.null_keys": "records without a key",
        "partitions.tombstones_kept": "tombstones that stay",
        "partitions.batches_read": "record batches read",
        "partitions.batches_copied": "record batches that kept all records",
        "partitions.batches_rebuilt": "record batches that lost some records",
        "partitions.batches_emptied": "record batches that lost all records and stay as a header",
        "partitions.batches_dropped": "record batches that were dropped",
        "partitions.schedule": "by yield: the older segments with their records, those that are dead by the filter, "
        "and the reason to rewrite them",
        "partitions.splits": "tasks that shared the partition",
        "partitions.peak_memory_bytes": "peak memory of the process of a task; of threads, of the command",
        "partitions.seconds": "seconds by phase: `scan`, `clean`, `write`",
        "partitions.bytes": "bytes by phase: `scan`, `clean`, `write`, `read_back`",
        "partitions.notes": "what the run worked around, as text",
    },
    "archive-needed": {
        "bytes_read": "bytes that were read to compare files",
        "needed": "`segments` and `bytes` that are needed",
        "not_needed": "`segments` and `bytes` that may be deleted",
        "archive_needed": "false: the store replaces the archive",
        "archive_needed_because": "reasons, as for `compact`",
        "entries": "files and folders that no job reads",
        "partitions": "`topic partition path generation judged needed_from needed not_needed because segments files`: "
        "`because` has all reasons, each with the offset that it begins `from`; `files` may be deleted in this order; "
        "each of `segments` has `base_offset path bytes needed because`",
    },
    "verify": {
        "checked": "what was checked",
        "not_checked": "comparisons that were not possible, with the reason",
        "archive": "archive, or null",
        "store": "store, or null",
    },
    "reindex": {
        "mode": "`check`, `output` or `in-place`",
        "totals": "files by status",
        "partitions": "`topic partition path files notes segments log_bytes bytes_read bytes_written`; each of `files` "
        'has `path kind status reason position entry expected found bytes log`, with -1 and "" for no value; `bytes` '
        "is the size of the rebuilt file, `log` the log at fault",
    },
    "merge": {
        "partitions": "`ranges` taken, with `first last copy reason batches`; of each of `copies` what it `lacks` "
        "(`first until reason problem`) and its `losing` batches (`first last batches leader_epoch`)"
    },
    "export": {
        "topics": "`topic partitions records tombstones problems`; with `--latest` also the rows that were `inserted`, "
        "`updated` and `deleted`"
    },
    "replay": {
        "cluster": "bootstrap servers",
        "group": "consumer group that holds the progress",
        "partitions": "`topic partition target start next_offset records transactions without_timestamp problem`",
    },
    "restore": {
        "beyond": "what the archive holds beyond the end of the restored partitions",
        "partitions": "with `next_offset` (log end), `last_visible_offset` (the last offset that a consumer gets; -1: "
        "none; null: unknown), `topic_id`, `topic_id_is_given`, "
        "`is_beyond_topic`, `ends_in_empty_batch`, `converted`, `cleaned_until`, "
        "`cleaned_again_bytes` and `cleaned_bytes`",
    },
    "vacuum": {
        "kept": "generations that may be the only copy of offsets: `offsets` has pairs of first and last",
        "generations": "every generation, with `because`, the rules that keep it; `selected`: vacuum deletes it",
    },
    "erase": {
        "erasure": "id of the set of keys",
        "erased": "report of the compaction that erases",
        "searched": "report of the search, with places, keys and proof",
        "remains": "what is left, with `generations`, current ones too",
        "result": "`erased`, `vacuum_needed`, `incomplete` or `unknown`",
    },
    "runs": {
        "runs": "`run_id now_ms started_ms ended_ms outcome job exit_code user host pid application version error "
        "figures partitions`; null: unknown"
    },
    "rollback": {"partitions": "with `lost`: offsets that the archive no longer has"},
    "lookup": {
        "partitions": "answers. With `--sizing` the fields are `topics total estimates`, with `--at` also `start_ms "
        "end_ms refreshed`, with `--queries` `queries output answers`"
    },
    "policies": {
        "topics": "`topic settings ignored_settings`",
        "metadata_time_ms": "time of the cluster's state that the settings show",
        "metadata_offset": "its offset in `__cluster_metadata`; null: unknown",
    },
    "report": {
        "archives": "with several archives: a `name` and the report of each",
        "savings": "`bytes`, `by_settings_bytes` and `if_all_compacted_bytes`",
        "history": "rows of `cleaner_runs`",
        "codec_bytes": "of each topic `topic bytes codecs`; each of `codecs` has `codec bytes error_bytes`",
    },
    "audit": {
        "audits": "place of the tables",
        "findings": "number of findings; above 0 the exit code is 3",
        "summary": "figures of the audit",
        "stretches_read": "stretches of logs that were read",
        "partitions_answered": "partitions that were answered",
        "partitions_kept": "partitions whose result was kept",
        "keys_hidden": "`--hide-keys`: keys are shown as `#` and half of their hash",
        "partitions": "of `keys` counts, of `mirror` the keys of each kind, of `failover` the offset in B",
        "keys": "of `keys`: the first rows of `audit_keys` with the most `versions`, `misplaced` or in "
        "`several_partitions`",
        "unknown_groups": "of `delivery`: group, and why its commits are unknown",
        "worst": "of `delivery`: rows of `audit_deliveries` that have waited longest",
        "trend": "of `delivery`: figures of the same groups in earlier audits",
        "first": "of `mirror`: the first findings, rows of `audit_pairs`",
        "lost": "of `failover`: the first lost records",
        "mirror_maker": "of `failover`: the last checkpoints of MirrorMaker 2 beside the answers",
    },
}
HELD_BACK: Final = {  # rule of `held_back` -> what holds the partition back
    "open_transaction": "a transaction has no marker. If its producer is gone, end it on a broker: "
    "`kafka-transactions.sh abort`",
    "min.compaction.lag.ms": "the newest timestamp of a segment is too young; a timestamp in the future holds the "
    "partition back until then",
    "high_watermark": "nothing above the high watermark in the archive's `replication-offset-checkpoint` is read",
    "active_segment": "all new records are in the active segment. Give `--sealed` if nothing appends to this archive",
    "nothing_new": "everything is clean",
    "min.cleanable.dirty.ratio": "too small a share of the bytes is dirty",
    "min.dirty.bytes": "too few bytes are dirty",
    "retention.ms": "the first segment is young enough. A timestamp in the future holds back everything until then",
    "retention.bytes": "the log is small enough",
    "no_retention": "the policy is `delete`, and neither limit is set",
}
OUTCOMES: Final = {  # outcomes in `runs`
    "done": "exit code 0, and something was done",
    "nothing to do": "exit code 0, and nothing was due",
    "partial": "`--max-runtime` was over before everything was done",
    "problems": "exit code 3",
    "conflict": "exit code 4",
    "failed": "any other exit code; the note has the error",
    "interrupted": "Ctrl-C or SIGTERM",
    "killed": "the process ended without a report: its lease expired",
    "at work": "the run has a valid lease",
}
