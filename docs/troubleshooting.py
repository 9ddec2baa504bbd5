"""Tables of problems, errors, notes and exit codes for the reference page of errors.

Problems in data are the kinds of `logformat.errors`, with the remedies from here. Errors that end a job are the table
of kinds in `jobs.errors`.
"""

from __future__ import annotations

import re

from docs.tables import table
from lastkey.jobs import errors
from lastkey.logformat import errors as log_errors

NOT_UNCLEANABLE = {"index", "huge", "keys", "no_generation"}  # kinds of other commands and tasks
STATES = {"diverged": "the archive holds another log under this name"}  # states of `cleaner_state`
# Kinds of a problem, or a state of a partition -> what to do
REMEDIES = {
    ("length", "magic", "crc", "codec", "compressed", "varint", "record", "count", "offsets", "name", "overlap"): (
        "A `.log` is damaged at the byte that the message names. Bring an undamaged copy of the file, from another "
        "replica or backup, and run again. Nothing passes over damage in a compaction; the data source reads around it "
        "with `badRecords` = `quarantine`. A file under `segments/` is the store's: bring it back from a copy of the "
        "store, or `rollback` to a generation whose files are whole, or `--reset` to start over from what the archive "
        "holds, with `--force` where nothing is due, and without the file if it was cut short"
    ),
    ("torn_tail",): (
        "With `--sealed`, a last segment may not end so: leave `--sealed` out, and the log ends before the batch. "
        "Elsewhere it is damage: bring the whole file"
    ),
    ("bomb",): "If you trust it, raise `max.decompressed.batch.bytes`",
    ("relative_offset",): "A segment spans more than 2³¹ - 1 offsets. Let a broker load it once: it splits the segment",
    ("duplicate",): (
        "Take away the one that is out of date. If one holds "
        "remote segments, the message says what shows that the other holds another log"
    ),
    ("transaction",): (
        "It is damage that no broker could have written; or a `.txnindex` that contradicts the "
        "log, and it is unknown which one is wrong. Bring missing files back; if it is the index, delete it, and the "
        "markers in the log decide"
    ),
    ("version",): "Correct the setting",
    ("null_key",): "Should this topic be compacted at all? If so, give `--set null.keys=keep` or `drop`",
    ("side_file",): (
        "A checkpoint is damaged, or lies beyond the log end. Bring the right one back, or delete it; if the log was "
        "replaced, `--reset`"
    ),
    ("unreadable",): (
        "With an errno such as EIO or ESTALE the archive's disk or mount fails; a mode may keep you out (EACCES). "
        "Repair it and run again; Lastkey used nothing of that partition. It may be a small file beside the log, such "
        "as `leader-epoch-checkpoint`: what it says would be lost for good in a generation that was made without it. "
        "If it is gone for good, delete it, and Lastkey rebuilds it from the log"
    ),
    ("changed",): "Something writes to the archive, or a disk or its cable is faulty. Find out which, and run again",
    ("readback",): "The store's disk is faulty. The next run writes the file again",
    ("erased",): (
        "The archive still holds what an [erasure](/how-to/erase.md) removed: give `--hmac-key FILE`, the file that "
        "`erase` was given"
    ),
    ("unwritable",): "The store's disk fails or is not writable",
    ("memory",): "Give Lastkey more memory, or lower `chunk.bytes`",
    ("defect",): "Shown as `internal error`, a bug in Lastkey: please report it with the traceback on stderr",
    ("gap",): (
        "A file is missing or short. Bring it back; if it is lost, `--set gaps=accept` "
        "(see [A gap](/how-to/uncleanable.md#a-file-is-missing))"
        ', or `gaps = "accept"` below `[topics."<topic>"]` in the settings file for all runs. If the message says that '
        "it may be a cleaner's work, nothing may be missing ([Holes](/../udfs/compact/COMPACTION.md#holes)); if "
        "it names remote storage, put its folder into the archive "
        "([Tiered storage](/../logformat/tiered/TIERED.md#the-log-directory-of-a-broker)); after a rollback to before "
        "what you deleted of the archive, roll forward again; in Spark the option `gaps` = `accept` "
        "([Gaps](/reference/data-source.md#gaps)). If a file that a generation uses is lost, or one has "
        "come back that it passed over, `--reset` too. If the end of a transaction lies in the gap, only the file "
        "helps: it is unknown whether its records count"
    ),
    ("diverged",): (
        "Look first, then `--reset`. The old generation stays: `restore --generation N` copies it, and `vacuum` keeps "
        "it until `--give-up`"
    ),
}
NOTES = {  # other messages -> cause, and what to do
    "`expected a marker of producer ... found a batch of epoch ...`": (
        "A problem of `verify`, and a note of `compact`: a producer has two transactions without a marker between "
        "them. A replica fetched behind its leader's cleaner, or a transaction reached the partition after its own "
        "marker (KIP-890). The outcome of the earlier transaction is unknown. Compact keeps its records, and they "
        "supersede "
        'nothing ([COMPACTION.md](/../udfs/compact/COMPACTION.md#rules), "Lost markers"). If another replica or an '
        "older copy has the marker, archive that copy, and start the partition over with `--reset`"
    ),
    "the note `expected the transaction of producer ... found none`": (
        "The newest `.snapshot` says that no transaction is open, and the log shows one without its end: the snapshot "
        "was made from a part of the log, or a broker before 3.3 took the marker too early. Lastkey cleans up to that "
        "transaction and no further. If the transaction is known to have ended, let a broker load the log and write "
        "the marker: `kafka-transactions.sh abort`"
    ),
    "`this store serves the archive ...`": "The store belongs to another archive. Give each archive a store of its own",
    "the notes `cannot write the lease of this run`, `cannot list the leases`, `cannot read the lease`": (
        "The store's folder `state/running` cannot be written or read, or holds a file that is no lease. The result is "
        "correct: if two runs work on one partition, one of them reports a conflict at its commit"
    ),
    "exit code 130 or 143, and the number of committed partitions": (
        "Somebody pressed Ctrl-C or sent SIGTERM. Run again: the next run does the rest"
    ),
    "exit code 6": (
        "`--max-runtime` was over. The next run with it begins with the rest. A partition that is "
        "`not finished within --max-runtime` in run after run needs more time than a run has"
    ),
    "the note `this run is not in the table ...`": (
        "The result is correct, but `runs` will not list the run: the store could not be written at the end, or did "
        "not answer"
    ),
    "exit code 3, and a note that a folder was left out": (
        "A folder of the archive could not be listed, so its content was not processed"
    ),
    "`a .log beside ...`": (
        "The folder of a partition came without its log. Copy it again with a tool that also copies files of 0 bytes: "
        "their names say where an empty partition ends"
    ),
    "exit code 3, `a generation to restore`": (
        "The archive has this partition and the store does not; the line names the reason. Everything else is "
        "restored. Select topics with `--topics` if you can do without the partition"
    ),
    "the note `not in the archive any more`": (
        "The folder of a partition is gone, and with it segments that its generation uses: a disk is not mounted, or "
        "the topic was deleted. Bring the segments back if you still need the partition"
    ),
    "`rollback`: `unless you roll forward again`": (
        "The archive has lost what the generations above N hold. Roll back only if you can do without these offsets; "
        "`vacuum` keeps them, and `rollback` to the previous generation brings them back"
    ),
    "`this store has format ...`": (
        "An unreleased version wrote the store. Use that version to `restore` what you need, or begin a new store from "
        "the archive"
    ),
    "a run had a wrong clock": (
        "A clock that was ahead: `retention.ms` deleted too much, and so did delete horizons of tombstones; new "
        "tombstones stay until a horizon in the future. `rollback` to the previous generation while vacuum still has "
        "it, and run again. A clock that was behind: due partitions wait, and new tombstones may go with the next "
        "cleaning. The archive is unchanged, and no later run fails because of it. `vacuum` also reads the clock of "
        "the store, so a clock that is ahead deletes nothing young (a `--dry-run` writes nothing, so it uses the wall "
        "clock alone); files dated in the future stay until they are old"
    ),
    "Spark's DATA_SOURCE_NOT_FOUND for kafka_log": (
        "Spark looks for data sources with `python3` of the PATH, not with the Python that runs your script. Set "
        "`PYSPARK_PYTHON` to that Python: [Python of the workers](/reference/data-source.md#python-of-the-workers)"
    ),
    "`hdfs://...: expected a path, or the URI of a bucket`": (
        "HDFS is not supported: copy the archive to a disk or a bucket, or mount it"
    ),
    "a stream ends with Spark's 'Python worker failed to connect back'": (
        "Spark gives the Python of a stream's source 10 seconds to start, and all cores were busy. Start the query "
        "again, or leave a core free (`local[3]` on four cores)"
    ),
    "`no place for compiled kernels`": (
        "No folder can be written by you alone, so each process compiles: "
        "[Compiled kernels](/how-to/cluster.md#compiled-kernels)"
    ),
    "`NUMBA_CACHE_DIR=...: expected a folder that no other user can write`": (
        "Others can write to the folder that you named. The message continues with the reason"
    ),
    "`Spark needs Java 17 or newer and found none`": (
        "Install Java (Debian: `apt install openjdk-17-jre-headless`), set JAVA_HOME, or use `--engine threads`, which "
        "needs no Java"
    ),
    "`Python 3.11 or newer with its venv module is needed`": (
        "Install it with its venv module, or name it: `LASTKEY_PYTHON=/path/python3.12`"
    ),
    "`the packages could not be installed`": (
        "Check that PyPI can be reached; pip's message is above. To use an environment of your own, set `LASTKEY_VENV`"
    ),
    "`io.delta:delta-spark... could not be fetched`": (
        "Check network and proxy. Spark's resolver is confused by poms without jars in `~/.m2/repository`: rename that "
        "folder meanwhile"
    ),
    "`no partition of a compacted topic in the archive`": (
        "No topic has the policy compact: give `--config`, or `--topics` with `--cleanup-policy compact`"
    ),
    "everything is `not due`": (
        "The lines `not due:` name the rule ([held_back](/reference/json.md#held_back)); `--force` compacts partitions "
        "that are clean, or too little dirty"
    ),
    "the first run takes minutes": (
        "It installs packages, jars and kernels once, and keeps them in `.venv` and `.numba`. To start over, remove "
        "both"
    ),
}
EXIT_CODES = {  # code -> (name in `jobs.errors`, meaning)
    0: ("DONE", "Done, or nothing was due"),
    1: (
        "UNEXPECTED",
        "A bug in Lastkey outside of any partition; a traceback follows. A bug within a partition makes it "
        "uncleanable: exit code 3",
    ),
    2: ("USAGE", "Wrong option, setting or path, or no topic selected; nothing was done"),
    3: (
        "PROBLEMS",
        "Partitions are uncleanable and keep their generation; the others are committed. Or problems that `verify` or "
        "`reindex --check` found, findings of an audit, a log that cannot be indexed, or files of a generation that "
        "are missing. See [A partition is uncleanable](/how-to/uncleanable.md)",
    ),
    4: (
        "CONFLICT",
        "Another run holds the lease of the same partitions (`--wait` waits for it), committed first, or a vacuum took "
        "files of this run. Its committed partitions remain; run it again. A killed run's lease expires 90 s after its "
        "last renewal. Or another process holds a lock: vacuum, `lookup --at`, a broker",
    ),
    5: (
        "ENVIRONMENT",
        "Python, Java or jars are missing, Spark did not start, the disk is full, a bucket cannot be used",
    ),
    6: (
        "PARTIAL",
        "`compact --max-runtime` was over: finished partitions are committed, and the next run with it begins with the "
        "rest. 3 and 4 take precedence",
    ),
    130: ("", "Ctrl-C. `compact` commits the partitions that are finished; a second signal ends it at once"),
    143: ("", "SIGTERM, as Ctrl-C"),
    141: ("", "stdout was closed early (`inspect ... | head`)"),
}
_FIELD = re.compile(r"\{(\w+)(?:!r)?\}")
_SHOWN = {"expiry": "90 seconds", "near": "the names that are near", "advice": "the message continues with it"}


def problems() -> str:
    """Return the table of problems in data."""
    meanings = log_errors.KINDS | STATES
    rows = [("; ".join(f"`{kind}`: {meanings[kind]}" for kind in kinds), remedy) for kinds, remedy in REMEDIES.items()]
    return table(("what is wrong", "what to do"), rows)


def stops() -> str:
    """Return the table of errors that end a job, by exit code."""
    rows = [
        (
            f"`{kind.name}`",
            str(kind.error_class.exit_code),
            _message(kind.template),
            kind.cause,
            _FIELD.sub(lambda field: _SHOWN.get(field[1], field[1].upper()), kind.hint),
        )
        for kind in sorted(errors.KINDS.values(), key=lambda kind: kind.error_class.exit_code)
    ]
    return table(("kind", "exit code", "message", "cause", "what to do"), rows)


def _message(template: str) -> str:
    """Return a message with its fields in capitals; "" if it has no words of its own."""
    shown = _FIELD.sub(lambda field: field[1].upper(), template)
    return f"`{shown}`" if re.search("[a-z]", shown.replace("expected EXPECTED, found FOUND", "")) else ""
