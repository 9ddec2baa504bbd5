"""Files of a group's offsets, as kafka-consumer-groups writes and reads them: `topic,partition,offset`, no header.

`--reset-offsets --dry-run --export` writes them, with the group as first column if there are several groups;
`--reset-offsets --from-file FILE --execute` takes them.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Final

from lastkey.jobs.audit.translate_offsets import TranslatedOffset
from lastkey.jobs.errors import MissingPathError, UsageError
from lastkey.jobs.topics import Key
from lastkey.logformat.errors import LogFormatError
from lastkey.udfs.storage import normal_uri, open_root, read_file

_WIDTHS: Final = (3, 4)


def read_offsets(file: str, group: str) -> dict[Key, int]:
    """Return a group's offsets by topic and partition. Raise UsageError that names a malformed line."""
    uri = normal_uri(file)
    folder, _, name = uri.rpartition("/")
    try:
        text = read_file(open_root(folder or "/"), name).decode()
    except LogFormatError as error:
        raise MissingPathError(path=uri, expected="a file of offsets", found=error.found) from error
    except UnicodeDecodeError as error:
        raise UsageError(message=f"{uri}: expected UTF-8, found {error}") from None
    found: dict[Key, int] = {}
    for number, row in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not row:
            continue
        *of, topic, partition, offset = row if len(row) in _WIDTHS else ["", "", ""]
        if not topic or not partition.isdecimal() or not offset.isdecimal():
            expected = "[group,]topic,partition,offset"
            raise UsageError(message=f"{uri}: line {number}: expected {expected}, found {','.join(row)!r}")
        if of and of[0] != group:
            continue
        if (topic, int(partition)) in found:
            raise UsageError(message=f"{uri}: line {number}: {topic}-{partition} appears twice")
        found[topic, int(partition)] = int(offset)
    return found


def encode_offsets(answers: Sequence[TranslatedOffset]) -> bytes:
    """Return the file that sets a group's offsets in B."""
    out = io.StringIO()
    rows = ((one.b_topic, one.partition, one.offset) for one in answers if one.offset is not None)
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue().encode()
