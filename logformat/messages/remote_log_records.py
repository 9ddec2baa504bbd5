"""Records of __remote_log_metadata in the form of their Java objects' toString, which kafka-dump-log shows.

Source: RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate, RemotePartitionDeleteMetadata and
RemoteLogSegmentMetadataSnapshot of Kafka 4.3.0.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from lastkey.logformat.messages.integers import MessageError

_SEGMENT, _UPDATE, _DELETE, _SNAPSHOT = range(4)
REMOTE_RECORDS: Final = {
    _SEGMENT: "RemoteLogSegmentMetadata",
    _UPDATE: "RemoteLogSegmentMetadataUpdate",
    _DELETE: "RemotePartitionDeleteMetadata",
    _SNAPSHOT: "RemoteLogSegmentMetadataSnapshot",
}
SEGMENT_STATES: Final = (
    "COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED", "DELETE_SEGMENT_FINISHED",
)  # fmt: skip
PARTITION_STATES: Final = ("DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED", "DELETE_PARTITION_FINISHED")


def remote_metadata_text(record_type: int, version: int, message: str) -> str:
    """Return a record as text, from the JSON text of its message. Raise MessageError if Kafka's class refuses it."""
    data = json.loads(message)
    name = REMOTE_RECORDS[record_type]
    if record_type == _DELETE:
        fields = {
            "topicPartition": _topic_partition(data["topicIdPartition"]),
            "state": _state(PARTITION_STATES, data["remotePartitionDeleteState"], "null"),
            "eventTimestampMs": data["eventTimestampMs"],
            "brokerId": data["brokerId"],
        }
    elif record_type == _UPDATE:
        fields = {
            "remoteLogSegmentId": _segment_id(data["remoteLogSegmentId"]),
            "customMetadata": _custom_metadata(data["customMetadata"]),
            "state": _segment_state(data),
            "eventTimestampMs": data["eventTimestampMs"],
            "brokerId": data["brokerId"],
        }
    else:
        fields = _segment(record_type, data)
    return name + "{" + ", ".join(f"{field}={value}" for field, value in fields.items()) + "}"


def _segment(record_type: int, data: Any) -> dict[str, Any]:
    start, end, epochs = data["startOffset"], data["endOffset"], data["segmentLeaderEpochs"]
    if record_type == _SNAPSHOT:  # keeps the order of Kafka's checks
        _segment_state(data)
    if record_type != _SNAPSHOT and start < 0:
        raise MessageError(f"Unexpected start offset = {start}. StartOffset for a remote segment cannot be negative")
    if record_type != _SNAPSHOT and end < start:
        raise MessageError(
            f"Unexpected end offset = {end}. EndOffset for a remote segment cannot be less than startOffset = {start}"
        )
    if not epochs:
        raise MessageError("segmentLeaderEpochs can not be null or empty")
    by_epoch = {entry["leaderEpoch"]: entry["offset"] for entry in epochs}
    rest = {
        "segmentLeaderEpochs": "{" + ", ".join(f"{epoch}={by_epoch[epoch]}" for epoch in sorted(by_epoch)) + "}",
        "segmentSizeInBytes": data["segmentSizeInBytes"],
        "customMetadata": _custom_metadata(data["customMetadata"]),
        "state": _segment_state(data),
        "txnIdxEmpty": str(data.get("txnIndexEmpty", False)).lower(),
    }
    offsets = {"startOffset": start, "endOffset": end}
    if record_type == _SNAPSHOT:
        return {"segmentId": data["segmentId"], **offsets, "maxTimestampMs": data["maxTimestampMs"], **rest}
    times = {name: data[name] for name in ("brokerId", "maxTimestampMs", "eventTimestampMs")}
    return {"remoteLogSegmentId": _segment_id(data["remoteLogSegmentId"]), **offsets, **times, **rest}


def _segment_id(data: Any) -> str:
    return f"RemoteLogSegmentId{{topicIdPartition={_topic_partition(data['topicIdPartition'])}, id={data['id']}}}"


def _topic_partition(data: Any) -> str:
    return f"{data['id']}:{data['name']}-{data['partition']}"


def _custom_metadata(text: str | None) -> str:
    return "Optional.empty" if text is None else f"Optional[CustomMetadata{{{len(base64.b64decode(text))} bytes}}]"


def _segment_state(data: Any) -> str:
    return _state(SEGMENT_STATES, data["remoteLogSegmentState"], "state can not be null")


def _state(names: tuple[str, ...], number: int, problem: str) -> str:
    if not 0 <= number < len(names):
        raise MessageError(problem)
    return names[number]
