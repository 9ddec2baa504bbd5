"""Control records of KRaft logs (__cluster_metadata and its snapshots) as kafka-dump-log shows them.

Source: DumpLogSegments and ControlRecordUtils of Kafka 4.3.0. Difference: a message is read by its own version; the
tool takes version 0 for all, and ends at a leader change of version 1.
"""

from __future__ import annotations

import struct
from typing import Final

from lastkey.logformat.messages.integers import MessageError
from lastkey.logformat.messages.reader import reader
from lastkey.logformat.messages.table import versions_of

_VERSION: Final = struct.Struct(">h")
_SHOWN: Final = {  # control type -> text before the message, and the message's name
    2: ("LeaderChange:", "LeaderChangeMessage"),
    3: ("SnapshotHeader", "SnapshotHeaderRecord"),
    4: ("SnapshotFooter", "SnapshotFooterRecord"),
    5: ("KRaftVersion", "KRaftVersionRecord"),
    6: ("KRaftVoters", "VotersRecord"),
}


def control_record_text(control_type: int, value: bytes | None) -> str | None:
    """Return the text of a control record; None for a marker of a transaction, and for a value that cannot be read."""
    if control_type not in _SHOWN or value is None or len(value) < _VERSION.size:
        return None
    head, name = _SHOWN[control_type]
    (version,) = _VERSION.unpack_from(value)
    if version not in versions_of(name):
        return None
    try:
        text, _ = reader(name, version)(value, 0)
    except MessageError:
        return None
    return f"{head} {text}"
