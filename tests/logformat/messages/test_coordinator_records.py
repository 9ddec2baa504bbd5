"""Records of Kafka's own topics: real ones beside kafka-dump-log's text of them (4.3.0), and what is no such record.

All messages in all versions against Kafka's classes: tests/kafka/test_messages.py.
"""

from __future__ import annotations

import json
import struct
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lastkey.logformat.dump.files import DumpOptions, dump
from lastkey.logformat.dump.lines import control_record_text
from lastkey.logformat.dump.log import LogOptions
from lastkey.logformat.messages.coordinator_records import decode_records, decoder_names
from lastkey.logformat.messages.reader import MessageError, java_double, reader
from lastkey.logformat.messages.table import known_versions, messages
from tests.conftest import ROOT

# decoder, key and value as a broker wrote them, key and payload as the tool prints them
REAL = [
    (
        "offsets",
        "0001000d636c61737369632d67726f757000066f726465727300000000",
        "0004000000000000000affffffff08726f756e642030000001a1fcd33f7e010010a0755a2d7c11456bb1896d566a96ab34",
        '{"type":"1","data":{"group":"classic-group","topic":"orders","partition":0}}',
        '{"version":"4","data":{"offset":10,"leaderEpoch":-1,"metadata":"round 0","commitTimestamp":1795243065214,'
        '"topicId":"oHVaLXwRRWuxiW1WaparNA"}}',
    ),
    (
        "offsets",
        "0001000f73696d706c65202267726f7570220a00066f726465727300000001",
        None,
        '{"type":"1","data":{"group":"simple \\"group\\"\\n","topic":"orders","partition":1}}',
        "<DELETE>",
    ),
    (
        "offsets",
        "000500096e65772d67726f75700016647a42504132634951593676335364676d776b6f5a41",
        "000000077261636b2d3111636c69656e742d6e65772d67726f75700b2f3132372e302e302e3102076f726465727301000493e00001000100",
        '{"type":"5","data":{"groupId":"new-group","memberId":"dzBPA2cIQY6v3SdgmwkoZA"}}',
        '{"version":"0","data":{"instanceId":null,"rackId":"rack-1","clientId":"client-new-group","clientHost":'
        '"/127.0.0.1","subscribedTopicNames":["orders"],"subscribedTopicRegex":"","rebalanceTimeoutMs":300000,'
        '"serverAssignor":null,"classicMemberMetadata":null}}',
    ),
    (
        "transaction-log",
        "000000057061792d31",
        "0001000000000000000100000000ea600000000001a1fcd344e1ffffffffffffffff0100080000000000000001",
        '{"type":"0","data":{"transactionalId":"pay-1"}}',
        '{"version":"1","data":{"producerId":1,"previousProducerId":1,"producerEpoch":0,"transactionTimeoutMs":60000,'
        '"transactionStatus":0,"transactionPartitions":null,"transactionLastUpdateTimestampMs":1795243066593,'
        '"transactionStartTimestampMs":-1}}',
    ),
    (
        "share-group-state",
        "0000000b73686172652d67726f7570a0755a2d7c11456bb1896d566a96ab3400000000",
        "0000000000000000000200000000ffffffffffffffff000001a1fcd351c3000001a1fcd351c30100",
        '{"type":"0","data":{"groupId":"share-group","topicId":"oHVaLXwRRWuxiW1WaparNA","partition":0}}',
        '{"version":"0","data":{"snapshotEpoch":0,"stateEpoch":2,"leaderEpoch":0,"startOffset":-1,"createTimestamp":'
        '1795243069891,"writeTimestamp":1795243069891,"stateBatches":[]}}',
    ),
    (
        "cluster-metadata",
        None,
        "010200076f7264657273a0755a2d7c11456bb1896d566a96ab3400",
        None,
        '{"type":"TOPIC_RECORD","version":0,"data":{"name":"orders","topicId":"oHVaLXwRRWuxiW1WaparNA"}}',
    ),
]


def binary(*values):
    return pa.array([bytes.fromhex(v) if isinstance(v, str) else v for v in values], pa.binary())


def decoded(name, key, value, offset=7):
    key_text, payload = decode_records(name, binary(key), binary(value), [offset])
    return key_text[0].as_py(), payload[0].as_py()


@pytest.mark.parametrize(("name", "key", "value", "key_text", "payload"), REAL)
def test_records_of_a_broker_are_decoded(name, key, value, key_text, payload):
    assert decoded(name, key, value) == (key_text, payload)


def test_decoded_rows_keep_their_order():
    rows = [row for row in REAL if row[0] == "offsets"]
    order = [0, 1, 2, 1, 0, 2, 2]
    keys, values = ([rows[i][at] for i in order] for at in (1, 2))
    key_text, payload = decode_records("offsets", binary(*keys), binary(*values), range(len(order)))
    assert key_text.to_pylist() == [rows[i][3] for i in order]
    assert payload.to_pylist() == [rows[i][4] for i in order]
    assert [len(column) for column in decode_records("offsets", binary(), binary(), [])] == [0, 0]


def consumer_protocol(*members):
    """Return a GroupMetadataValue, version 3, of these (subscription, assignment)."""
    text = b"\0\1x"
    each = [
        text
        + b"\xff\xff"
        + text
        + text
        + struct.pack(">ii", 5, 6)
        + b"".join(struct.pack(">i", len(b)) + b for b in member)
        for member in members
    ]
    head = struct.pack(">hh", 3, 8) + b"consumer" + struct.pack(">ihhqi", 1, -1, -1, 0, len(members))
    return head + b"".join(each)


def test_readable_member_metadata_is_shown():
    subscription = struct.pack(">hih", 0, 1, 3) + b"abc" + struct.pack(">i", -1)
    torn, later = subscription[:-1], struct.pack(">h", 9) + subscription[2:] + struct.pack(">iih", 0, 0, -1)
    value = consumer_protocol((subscription, b""), (torn, b"\0"), (later, b"\xff"))
    _, payload = decoded("offsets", b"\0\2\0\1g", value)
    shown = [(m["subscription"], m["assignment"]) for m in json.loads(payload)["data"]["members"]]
    assert shown[0] == ({"topics": ["abc"], "userData": None}, "")
    assert shown[1] == ("AAAAAAABAANhYmP///8=", "AA==")
    assert shown[2][0] == {
        "topics": ["abc"],
        "userData": None,
        "ownedPartitions": [],
        "generationId": 0,
        "rackId": None,
    }
    _, other = decoded("offsets", b"\0\2\0\1g", value.replace(b"consumer", b"connects"))
    assert json.loads(other)["data"]["members"][0]["subscription"] == "AAAAAAABAANhYmP/////"


@pytest.mark.parametrize(
    ("name", "key", "value", "key_text", "payload"),
    [
        ("offsets", "0063", "00", "Unknown record type 99 at offset 7, skipping.", None),
        ("offsets", "", None, "Error at offset 7, skipping. Could not read version from key's buffer.", None),
        (
            "offsets", "0003", None,
            "Error at offset 7, skipping. Could not read record with version 3 from key's buffer due to: null.", None,
        ),
        (
            "offsets", "0003000161", "0007",
            "Error at offset 7, skipping. Found an unknown record version 7 for 3 type", None,
        ),
        (
            "offsets", "0003000161", "000000",
            "Error at offset 7, skipping. Could not read record with version 0 from value's buffer due to: null.", None,
        ),
        (
            "offsets", None, None,
            "Failed to decode message at offset 7 using the specified decoder (message had a missing key)", None,
        ),
        ("cluster-metadata", None, "00", None, "Error at 7, skipping. Could not deserialize metadata record with frame "
         "version 0. Note that upgrades from the preview release of KRaft in 2.8 to newer versions are not supported."),
        ("cluster-metadata", None, "016300", None, "Error at 7, skipping. org.apache.kafka.common.errors."
         "UnsupportedVersionException: Unknown metadata id 99"),
        ("cluster-metadata", None, "0114000000", None, "Error at 7, skipping. Found 1 byte(s) of garbage after 20"),
    ],
)  # fmt: skip
def test_errors_of_invalid_records_equal_those_of_kafka(name, key, value, key_text, payload):
    assert decoded(name, key, value) == (key_text, payload)


@pytest.mark.long
@given(st.lists(st.tuples(st.none() | st.binary(max_size=40), st.none() | st.binary(max_size=40)), max_size=5))
def test_any_bytes_are_decoded_to_text(pairs):
    keys, values = binary(*(key for key, _ in pairs)), binary(*(value for _, value in pairs))
    for name in decoder_names():
        for column in decode_records(name, keys, values, range(len(pairs))):
            assert len(column) == len(pairs)


def test_a_misspelt_decoder_gets_the_nearest_one():
    with pytest.raises(ValueError, match="'offset'; did you mean offsets"):
        decode_records("offset", binary(), binary(), [])


def test_dump_shows_decoded_coordinator_records(tmp_path):
    log = next((ROOT / "examples/archive/__transaction_state-0").glob("*.log"))
    out = []
    dump([str(log)], DumpOptions(LogOptions(True, partial(decode_records, "transaction-log"))), out.append)
    text = b"".join(out).decode()
    assert ' key: {"type":"0","data":{"transactionalId":' in text
    assert ' payload: {"version":"1","data":{"producerId":' in text
    assert "skipping" not in text


# -- the reader


def test_message_table_is_complete():
    table = messages()
    assert len(table) == 88
    assert known_versions("OffsetCommitValue")[-1] == 4
    for message in table.values():
        for version in message.versions:
            reader(message.name, version)


def test_versions_and_tagged_fields_are_read():
    value = struct.pack(">qh", 5, 1) + b"m" + struct.pack(">qq", 6, 7)
    text = '{"offset":5,"metadata":"m","commitTimestamp":6'
    assert reader("OffsetCommitValue", 0)(value, 0) == (text + "}", 19)
    assert reader("OffsetCommitValue", 1)(value, 0) == (text + ',"expireTimestamp":7}', 27)
    flexible = struct.pack(">qi", 5, -1) + b"\2m" + struct.pack(">q", 6)
    text = '{"offset":5,"leaderEpoch":-1,"metadata":"m","commitTimestamp":6'
    unknown = b"\x09\x02ab"
    for tail, more in ((b"\0", ""), (b"\1" + unknown, ""), (b"\1\0\x10" + bytes(16), ""),
                       (b"\2\0\x10" + bytes(15) + b"\1" + unknown, ',"topicId":"AAAAAAAAAAAAAAAAAAAAAQ"')):  # fmt: skip
        assert reader("OffsetCommitValue", 4)(flexible + tail, 0) == (text + more + "}", 22 + len(tail))


def test_text_is_escaped_as_by_jackson():
    name = 'é"\\\b\f\n\r\t\x01\x1f\x7f\u2028</\\u001f'
    data = name.encode()
    text, _ = reader("GroupMetadataKey", 0)(struct.pack(">h", len(data)) + data, 0)
    assert text == '{"group":"é\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001F\x7f\u2028</\\\\u001f"}'
    assert reader("GroupMetadataKey", 0)(b"\0\2a\xff", 0)[0] == '{"group":"a\ufffd"}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (1024.0, "1024.0"), (0.001, "0.001"), (0.0001, "1.0E-4"),
        (9999999.0, "9999999.0"), (1e7, "1.0E7"), (-12345678.9, "-1.23456789E7"), (1.5e300, "1.5E300"),
        (1e22, "1.0E22"), (123456789012345680.0, "1.2345678901234568E17"),
        (float("nan"), '"NaN"'), (float("-inf"), '"-Infinity"'),
    ],
)  # fmt: skip
def test_doubles_are_printed_as_by_java(value, text):
    assert java_double(value) == text


def test_reader_reports_malformed_bytes():
    read = reader("ConsumerGroupRegularExpressionValue", 0)
    for data, message in (
        (b"\0", "non-nullable field topics was serialized as null"),
        (b"\x7f\0", "Tried to allocate a collection of size 126, but there are only 1 bytes remaining."),
        (b"\2\0", "non-nullable field topics element was serialized as null"),
        (b"\2\5ab", r"Error reading byte array of 4 byte\(s\): only 2 byte\(s\) available"),
        (b"\xff\xff\xff\xff\xff", "Varint is too long, .* converted value: "),
        (b"", "null"),
    ):
        with pytest.raises(MessageError, match=f"^{message}"):
            read(data, 0)


def test_control_records_are_printed():
    change = bytes.fromhex("0000") + struct.pack(">i", 1) + b"\2" + struct.pack(">i", 1) + b"\0\1\0"
    assert (
        control_record_text(2, change)
        == 'LeaderChange: {"version":0,"leaderId":1,"voters":[{"voterId":1}],"grantingVoters":[]}'
    )
    assert control_record_text(5, b"\0\0\0\1\0") == 'KRaftVersion {"version":0,"kRaftVersion":1}'
    for kind, value in ((0, change), (9, change), (2, None), (2, b"\0"), (2, change[:-1]), (2, b"\0\x09" + change[2:])):
        assert control_record_text(kind, value) is None
