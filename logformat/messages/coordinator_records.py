"""Records of Kafka's own topics as kafka-dump-log shows them: groups, transactions, share groups, cluster metadata.

| decoder | topic | option of kafka-dump-log |
|---|---|---|
| offsets | __consumer_offsets | --decoder offsets |
| transaction-log | __transaction_state | --decoder transaction-log |
| share-group-state | __share_group_state | --decoder share-group-state |
| cluster-metadata | __cluster_metadata | --decoder cluster-metadata |
| remote-log-metadata | __remote_log_metadata | --decoder remote-log-metadata |
| mirror-checkpoints, -offset-syncs, -heartbeats | MirrorMaker 2's (`mirror_records`) | none |

    key, payload = decode_records("offsets", keys, values, offsets)

A key is its type (int16) and a message of version 0; a value is its version (int16) and a message. The type decides
which messages they are. Records of the last two topics are entirely in their value: frame version, type and version as
unsigned varints, then the message. For a group with the consumer protocol, the text also shows the subscriptions and
assignments of members. Source: DumpLogSegments, CoordinatorRecordSerde, AbstractApiMessageSerde and
RemoteLogMetadataSerde of Kafka 4.3.0; errors use their words.

Each distinct key and value is decoded once, in Python. Measured on one core: 180,000 committed offsets a second.

Records of __remote_log_metadata come in the form of their Java objects' toString. Source: RemoteLogSegmentMetadata,
RemoteLogSegmentMetadataUpdate, RemotePartitionDeleteMetadata and RemoteLogSegmentMetadataSnapshot of Kafka 4.3.0.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lastkey.logformat.errors import unknown_name
from lastkey.logformat.messages.mirror_records import MIRROR_RECORDS, MirrorRecord, key_text, value_text
from lastkey.logformat.messages.reader import MessageError, reader, varint
from lastkey.logformat.messages.table import known_versions, messages

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


_TOMBSTONE: Final = "<DELETE>"
_SKIPPED: Final = "Error at offset {}, skipping. "
_EMBEDDED: Final = (("subscription", "ConsumerProtocolSubscription"), ("assignment", "ConsumerProtocolAssignment"))
_CONSUMER_PROTOCOL: Final = b"consumer"
_TYPE: Final = struct.Struct(">h")
_TYPES: Final = 2**16
_MAX_SHORT: Final = 2**15 - 1

# Record type -> name of its messages, without Key and Value.
GROUP_RECORDS: Final = {
    0: "LegacyOffsetCommit",
    1: "OffsetCommit",
    2: "GroupMetadata",
    3: "ConsumerGroupMetadata",
    4: "ConsumerGroupPartitionMetadata",
    5: "ConsumerGroupMemberMetadata",
    6: "ConsumerGroupTargetAssignmentMetadata",
    7: "ConsumerGroupTargetAssignmentMember",
    8: "ConsumerGroupCurrentMemberAssignment",
    10: "ShareGroupMemberMetadata",
    11: "ShareGroupMetadata",
    12: "ShareGroupTargetAssignmentMetadata",
    13: "ShareGroupTargetAssignmentMember",
    14: "ShareGroupCurrentMemberAssignment",
    15: "ShareGroupStatePartitionMetadata",
    16: "ConsumerGroupRegularExpression",
    17: "StreamsGroupMetadata",
    19: "StreamsGroupMemberMetadata",
    20: "StreamsGroupTargetAssignmentMetadata",
    21: "StreamsGroupTargetAssignmentMember",
    22: "StreamsGroupCurrentMemberAssignment",
    23: "StreamsGroupTopology",
}
TRANSACTION_RECORDS: Final = {0: "TransactionLog"}
SHARE_RECORDS: Final = {0: "ShareSnapshot", 1: "ShareUpdate"}
METADATA_RECORDS: Final = {
    0: "RegisterBroker",
    1: "UnregisterBroker",
    2: "Topic",
    3: "Partition",
    4: "Config",
    5: "PartitionChange",
    7: "FenceBroker",
    8: "UnfenceBroker",
    9: "RemoveTopic",
    10: "DelegationToken",
    11: "UserScramCredential",
    12: "FeatureLevel",
    14: "ClientQuota",
    15: "ProducerIds",
    17: "BrokerRegistrationChange",
    18: "AccessControlEntry",
    19: "RemoveAccessControlEntry",
    20: "NoOp",
    21: "ZkMigrationState",
    22: "RemoveUserScramCredential",
    23: "BeginTransaction",
    24: "EndTransaction",
    25: "AbortTransaction",
    26: "RemoveDelegationToken",
    27: "RegisterController",
    28: "ClearElr",
    29: "UnregisterController",
}


@dataclass(frozen=True)
class DecodedText:
    """The text of a distinct key or value, or its problem, which is reported with a record's offset."""

    text: str | None = None
    problem: str | None = None
    record_type: int = -1


def decoder_names() -> tuple[str, ...]:
    """Return the names of all decoders."""
    return tuple(_DECODERS)


def decode_records(name: str, keys: Any, values: Any, offsets: Any) -> tuple[Any, Any]:
    """Return (key, payload), the texts that kafka-dump-log prints for each record: pa.StringArray, null for none.

    keys, values: pa.BinaryArray; offsets: int64[n] of the records, for messages. If a coordinator's record has no key,
    kafka-dump-log ends; here the key's text states that. Raises ValueError for a name that is not in decoder_names().
    """
    if name not in _DECODERS:
        raise unknown_name("decoder of Kafka's own topics", name, _DECODERS)
    return _DECODERS[name](keys, values, np.asarray(offsets))


# -- coordinators: groups, transactions, share groups


def _coordinator(records: dict[int, str], keys: Any, values: Any, offsets: NDArray[np.int64]) -> tuple[Any, Any]:
    key_codes, distinct_keys = _distinct(keys)
    shown_keys = [_key(data, records) for data in distinct_keys]
    types = np.array([shown.record_type for shown in shown_keys], np.int64)[key_codes]
    value_codes, distinct_values = _distinct(values)
    pairs, pair_codes = np.unique(value_codes * _TYPES + types, return_inverse=True)
    shown_values = [
        _value(distinct_values[value], number, records[number]) if number in records else DecodedText()
        for value, number in (divmod(pair, _TYPES) for pair in pairs.tolist())
    ]
    key_text, key_problem = _taken(shown_keys, key_codes)
    payload, value_problem = _taken(shown_values, pair_codes)
    problem = pc.coalesce(key_problem, value_problem)
    payload = pc.if_else(problem.is_valid(), pa.scalar(None, pa.string()), payload)
    return _or_problem(key_text, problem, offsets), payload  # the problem takes the key's place


def _key(data: bytes | None, records: dict[int, str]) -> DecodedText:
    if data is None:
        message = "Failed to decode message at offset {} using the specified decoder (message had a missing key)"
        return DecodedText(problem=message)
    if len(data) < _TYPE.size:
        return DecodedText(problem=_error("Could not read version from key's buffer."))
    (record_type,) = _TYPE.unpack_from(data)
    if record_type not in records:
        return DecodedText(problem=f"Unknown record type {record_type} at offset {{}}, skipping.")
    try:
        text, _ = reader(records[record_type] + "Key", 0)(data, _TYPE.size)
    except MessageError as error:
        message = f"Could not read record with version {record_type} from key's buffer due to: {error}."
        return DecodedText(problem=_error(message))
    return DecodedText(f'{{"type":"{record_type}","data":{text}}}', record_type=record_type)


def _value(data: bytes | None, record_type: int, record: str) -> DecodedText:
    if data is None:
        return DecodedText(_TOMBSTONE)
    name = record + "Value"
    if len(data) < _TYPE.size:
        return DecodedText(problem=_error("Could not read version from value's buffer."))
    (version,) = _TYPE.unpack_from(data)
    if version not in known_versions(name):
        return DecodedText(problem=_error(f"Found an unknown record version {version} for {record_type} type"))
    is_consumers = name == "GroupMetadataValue" and _protocol_type(data, version) == _CONSUMER_PROTOCOL
    try:
        text, _ = reader(name, version, _EMBEDDED if is_consumers else ())(data, _TYPE.size)
    except MessageError as error:
        return DecodedText(
            problem=_error(f"Could not read record with version {version} from value's buffer due to: {error}.")
        )
    return DecodedText(f'{{"version":"{version}","data":{text}}}')


def _protocol_type(data: bytes, version: int) -> bytes:
    """Return the protocol type, the first field of GroupMetadataValue, if it is "consumer"; else empty bytes."""
    flexible = version in (messages()["GroupMetadataValue"].flexible or ())
    at = _TYPE.size + (1 if flexible else 2)
    size = len(_CONSUMER_PROTOCOL)
    said = data[_TYPE.size : at]
    return data[at : at + size] if said == (bytes([size + 1]) if flexible else size.to_bytes(2)) else b""


# -- records that are all in their value


def _framed(
    records: dict[int, str], show: Callable[[int, int, str], str], prefix: str, keys: Any, values: Any, offsets: Any
) -> tuple[Any, Any]:
    codes, distinct = _distinct(values)
    shown = [_shown(lambda data: show(*framed_message(data, records)), data, prefix) for data in distinct]
    return pa.nulls(len(values), pa.string()), _or_problem(*_taken(shown, codes), offsets)


def _shown(show: Callable[[Any], str], data: bytes | None, prefix: str = _SKIPPED) -> DecodedText:
    try:
        return DecodedText(show(data))
    except MessageError as error:
        return DecodedText(problem=prefix + _braces(str(error)))


def framed_message(data: bytes | None, records: dict[int, str]) -> tuple[int, int, str]:
    """Return (type, version, JSON text) of a record that is all in its value. Raise MessageError for any other bytes.

    An unknown version is read as the highest known one, as Kafka does.
    """
    if data is None:
        raise MessageError("there is no value")
    frame, at = _unsigned(data, 0, "frame version")
    if frame == 0:
        raise MessageError(
            "Could not deserialize metadata record with frame version 0. Note that upgrades from the preview release"
            " of KRaft in 2.8 to newer versions are not supported."
        )
    if frame != 1:
        raise MessageError(
            "Could not deserialize metadata record due to unknown frame version"
            f" {frame}(only frame version 1 is supported)"
        )
    record_type, at = _unsigned(data, at, "type")
    version, at = _unsigned(data, at, "version")
    if record_type not in records:
        unknown = f"Unknown metadata id {record_type}"
        raise MessageError(f"org.apache.kafka.common.errors.UnsupportedVersionException: {unknown}")
    try:
        text, at = reader(records[record_type] + "Record", version)(data, at)
    except MessageError:
        raise MessageError(f"Failed to deserialize record with type {record_type}") from None
    if at < len(data):
        raise MessageError(f"Found {len(data) - at} byte(s) of garbage after {record_type}")
    return record_type, version, text


def _unsigned(data: bytes, at: int, what: str) -> tuple[int, int]:
    try:
        value, at = varint(data, at)
    except (MessageError, IndexError):
        raise MessageError(f"Error while reading {what}") from None
    if value > _MAX_SHORT:
        raise MessageError(f"Value for {what} was too large.")
    return value, at


def _cluster_metadata(record_type: int, version: int, text: str) -> str:
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", METADATA_RECORDS[record_type]).upper()
    return f'{{"type":"{name}_RECORD","version":{version},"data":{text}}}'


# -- MirrorMaker 2


def _mirror(record: MirrorRecord, keys: Any, values: Any, offsets: NDArray[np.int64]) -> tuple[Any, Any]:
    key_codes, distinct_keys = _distinct(keys)
    value_codes, distinct_values = _distinct(values)
    shown_keys = [DecodedText() if data is None else _shown(partial(key_text, record), data) for data in distinct_keys]
    shown_values = [
        DecodedText(_TOMBSTONE) if data is None else _shown(partial(value_text, record), data)
        for data in distinct_values
    ]
    key = _or_problem(*_taken(shown_keys, key_codes), offsets)
    return key, _or_problem(*_taken(shown_values, value_codes), offsets)


# -- arrays


def _distinct(column: Any) -> tuple[NDArray[np.int64], list[bytes | None]]:
    """Return (codes, values): row i holds values[codes[i]]."""
    encoded = column.dictionary_encode(null_encoding="encode")
    return np.asarray(encoded.indices).astype(np.int64), encoded.dictionary.to_pylist()


def _taken(shown: list[DecodedText], codes: NDArray[np.int64]) -> tuple[Any, Any]:
    """Return (texts, problems) of the rows."""
    texts = pa.array([one.text for one in shown], pa.string())
    problems = pa.array([one.problem for one in shown], pa.string())
    return texts.take(pa.array(codes)), problems.take(pa.array(codes))


def _or_problem(text: Any, problem: Any, offsets: NDArray[np.int64]) -> Any:
    """Return the texts, with the problem of a row in its place."""
    if problem.null_count == len(problem):
        return text
    pairs = zip(problem.to_pylist(), offsets.tolist(), strict=True)
    said = [None if one is None else one.format(offset) for one, offset in pairs]
    return pc.coalesce(pa.array(said, pa.string()), text)


def _error(message: str) -> str:
    return _SKIPPED + _braces(message)


def _braces(message: str) -> str:
    return message.replace("{", "{{").replace("}", "}}")


_DECODERS: Final[dict[str, Callable[[Any, Any, Any], tuple[Any, Any]]]] = {
    "offsets": partial(_coordinator, GROUP_RECORDS),
    "transaction-log": partial(_coordinator, TRANSACTION_RECORDS),
    "share-group-state": partial(_coordinator, SHARE_RECORDS),
    "cluster-metadata": partial(_framed, METADATA_RECORDS, _cluster_metadata, "Error at {}, skipping. "),
    "remote-log-metadata": partial(_framed, REMOTE_RECORDS, remote_metadata_text, _SKIPPED),
    **{name: partial(_mirror, record) for name, record in MIRROR_RECORDS.items()},
}
