"""Tables of jobs/TROUBLESHOOTING.md: `python -m docs.troubleshooting` writes them into the page, a test compares it.

Problems in data are the kinds of `logformat.errors`, with what to do about them from here. What ends a job is the table
of kinds in `jobs.errors`.
"""

from __future__ import annotations

import re
from pathlib import Path

from lastkey.jobs import errors
from lastkey.logformat import errors as log_errors

PAGE = Path(__file__).parents[1] / "jobs" / "TROUBLESHOOTING.md"
NOT_UNCLEANABLE = {"index", "huge", "keys", "no_generation"}  # of `verify`, `inspect`, a task's memory, `restore`
STATES = {"diverged": "the archive holds another log under this name"}  # of `cleaner_state`
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
        "log, of which nobody can say which is wrong. Bring missing files back; if it is the index, delete it, and the "
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
        "The archive still holds what an [erasure](erase/ERASURE.md) removed: give `--hmac-key FILE`, the file that "
        "`erase` was given"
    ),
    ("unwritable",): "The store's disk fails or is not writable",
    ("memory",): "Give Lastkey more memory, or lower `chunk.bytes`",
    ("defect",): "Shown as `internal error`, a bug in Lastkey: please report it with the traceback on stderr",
    ("gap",): (
        "A file is missing or short. Bring it back; if it is lost, `--set gaps=accept` "
        "([COMMANDS.md](COMMANDS.md#compact))"
        ', or `gaps = "accept"` below `[topics."<topic>"]` in the settings file for all runs. If the message says that '
        "it may be a cleaner's work, nothing may be missing ([COMPACTION.md](../udfs/compact/COMPACTION.md#holes)); if "
        "it names remote storage, put its folder into the archive "
        "([TIERED.md](../logformat/tiered/TIERED.md#the-log-directory-of-a-broker)); after a rollback to before what "
        "you deleted of the archive, roll forward again; in Spark the option `gaps` = `accept` "
        "([DATA_SOURCE.md](data_source/DATA_SOURCE.md#gaps)). If a file that a generation uses is lost, or one has "
        "come back that it passed over, `--reset` too. If the end of a transaction lies in the gap, only the file "
        "helps: nobody can say whether its records count"
    ),
    ("diverged",): (
        "Look first, then `--reset`. The old generation stays: `restore --generation N` copies it, and `vacuum` keeps "
        "it until `--give-up`"
    ),
}
_FIELD = re.compile(r"\{(\w+)(?:!r)?\}")
_SHOWN = {"expiry": "90 seconds", "near": "the names that are near", "advice": "the message goes on with it"}


def problems() -> str:
    """Return the table of problems in data."""
    meanings = log_errors.KINDS | STATES
    rows = [("; ".join(f"`{kind}`: {meanings[kind]}" for kind in kinds), remedy) for kinds, remedy in REMEDIES.items()]
    return _table(("what is wrong", "what to do"), rows)


def stops() -> str:
    """Return the table of what ends a job, by exit code."""
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
    return _table(("kind", "exit code", "message", "cause", "what to do"), rows)


def _message(template: str) -> str:
    """Return a message with its fields in capitals; "" if it has no words of its own."""
    shown = _FIELD.sub(lambda field: field[1].upper(), template)
    return f"`{shown}`" if re.search("[a-z]", shown.replace("expected EXPECTED, found FOUND", "")) else ""


TABLES = {"problems": problems, "stops": stops}


def filled(page: str) -> str:
    """Return a page with its tables made again, each between two comments."""
    place = re.compile(r"(<!-- docs/troubleshooting\.py: (\w+) -->\n).*?(<!-- until here -->)", re.DOTALL)
    return place.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n{found[3]}", page)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
