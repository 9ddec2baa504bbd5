"""Control records of KRaft logs (__cluster_metadata and its snapshots) as kafka-dump-log shows them.

Source: DumpLogSegments and ControlRecordUtils of Kafka 4.3.0. Different: a message is read by the version that it says
itself, where the tool takes version 0 for all and ends at a leader change of version 1.
"""

from __future__ import annotations

import struct
from typing import Final

from logformat.messages.integers import MessageError
from logformat.messages.reader import reader
from logformat.messages.table import versions_of

_VERSION: Final = struct.Struct(">h")
_SHOWN: Final = {  # control type -> what stands before the message, and its name
    2: ("LeaderChange:", "LeaderChangeMessage"),
    3: ("SnapshotHeader", "SnapshotHeaderRecord"),
    4: ("SnapshotFooter", "SnapshotFooterRecord"),
    5: ("KRaftVersion", "KRaftVersionRecord"),
    6: ("KRaftVoters", "VotersRecord"),
}


def control_record_text(control_type: int, value: bytes | None) -> str | None:
    """What a control record says; None for markers of transactions, and for what cannot be read."""
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
