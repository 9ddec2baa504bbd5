"""Kafka's generated messages, and records of its own topics, against its classes, its dump tool and a real broker."""

from __future__ import annotations

import base64
import random
import re
import zipfile
from functools import partial

import pyarrow as pa
import pytest

from lastkey.logformat.dump.files import DumpOptions, dump
from lastkey.logformat.dump.log import LogOptions
from lastkey.logformat.messages.coordinator_records import GROUP_RECORDS, decode_records
from lastkey.logformat.messages.reader import reader
from lastkey.logformat.messages.table import known_versions, messages
from tests.builders.trees import files_in
from tests.kafka_lab import Broker, dump_log_segments, make_logs
from tests.kafka_lab.jars import NEW, lab_jars
from tests.kafka_lab.jvm import lab
from tests.kafka_lab.own_topics import DECODERS, TOPICS, as_4_3_prints

pytestmark = pytest.mark.kafka

GENERATED = {  # jar -> names of its classes
    "group-coordinator": r"org/apache/kafka/coordinator/group/generated/\w+(Key|Value)",
    "transaction-coordinator": r"org/apache/kafka/coordinator/transaction/generated/\w+(Key|Value)",
    "share-coordinator": r"org/apache/kafka/coordinator/share/generated/\w+(Key|Value)",
    "metadata": r"org/apache/kafka/common/metadata/\w+Record",
    "storage": r"org/apache/kafka/server/log/remote/metadata/storage/generated/\w+Record",
    "clients": r"org/apache/kafka/common/message/(ConsumerProtocol(Subscription|Assignment)|LeaderChangeMessage|"
               r"Snapshot(Header|Footer)Record|KRaftVersionRecord|VotersRecord)",
}  # fmt: skip


NEW_IN_4_4 = {"UnregisterControllerRecord", "storedDescriptionTopologyEpoch", "failedDescriptionTopologyEpoch"}


def is_known(name: str) -> bool:
    """Return whether the reference version has a message or a field."""
    return NEW != "4.3.0" or name not in NEW_IN_4_4


@pytest.fixture(scope="module")
def classes() -> dict[str, str]:
    """Return name -> class of every message in the jars."""
    names = {}
    for jar, pattern in GENERATED.items():
        with zipfile.ZipFile(lab_jars() / f"kafka-{jar}-{NEW}.jar") as archive:
            for name in archive.namelist():
                if re.fullmatch(pattern + r"\.class", name):
                    names[name.removesuffix(".class").rpartition("/")[2]] = name.removesuffix(".class").replace(
                        "/", "."
                    )
    return names


# -- the table


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name.replace("kRaft", "kraft")).lower()


def wire(fields, version: int):
    """Return a version's fields as Kafka's schema has them, those with a tag last."""
    present = [of for of in fields if version in of.versions and is_known(of.name)]
    ordered = [of for of in present if of.tag is None] + sorted(
        (of for of in present if of.tag is not None), key=lambda of: of.tag
    )
    return [
        (snake(of.name), ("[]" if of.array else "") + of.kind, of.null is not None and version in of.null, of.tag,
         wire(of.fields, version))
        for of in ordered
    ]  # fmt: skip


def described(fields):
    return [
        (of["name"], of["type"], of["nullable"], of.get("tag"), described(of.get("fields", [])))
        for of in sorted(fields, key=lambda of: of.get("tag", -1))
    ]


def test_message_table_equals_the_classes_of_kafka(classes):
    table = messages()
    assert {name for name in table if is_known(name)} == set(classes)
    theirs = lab().call("describe_messages", classes=list(classes.values()))
    for name in classes:
        message = table[name]
        schema = theirs[classes[name]]
        assert (message.versions[0], message.versions[-1]) == (schema["lowest"], schema["highest"]), name
        assert [of.name for of in message.fields if is_known(of.name)] == [of["name"] for of in schema["order"]], name
        for version, fields in enumerate(schema["schemas"], schema["lowest"]):
            assert wire(message.fields, version) == described(fields), (name, version)


# -- messages


def made(classes, name: str, version: int, count: int, seed: int):
    messages = lab().call("make_messages", **{"class": classes[name]}, version=version, count=count, seed=seed)
    return [(base64.b64decode(message["bytes"]), message["json"]) for message in messages]


def test_random_messages_of_every_version_are_decoded(classes):
    n = 0
    for name in classes:
        for version in known_versions(name):
            for data, text in made(classes, name, version, 25, version + 1):
                assert reader(name, version)(b"??" + data, 2) == (text, 2 + len(data)), (name, version)
                n += 1
    assert n > 2500


# -- records, whole and damaged


def varint(n: int) -> bytes:
    return bytes([n]) if n < 0x80 else bytes([n & 0x7F | 0x80]) + varint(n >> 7)


def random_records(classes, decoder: str):
    """Return (offset, key, value) of every type and version."""
    rows = []
    for record_type, name in DECODERS[decoder][2].items():
        is_framed = decoder in ("cluster-metadata", "remote-log-metadata")
        value_name = name + ("Record" if is_framed else "Value")
        if value_name not in classes:
            continue
        for version in known_versions(value_name):
            values = [data for data, _ in made(classes, value_name, version, 12, version + 7)]
            if is_framed:
                rows += [(None, b"\1" + varint(record_type) + varint(version) + data) for data in values]
                continue
            keys = [record_type.to_bytes(2) + data for data, _ in made(classes, name + "Key", 0, 12, version)]
            rows += list(zip(keys, [version.to_bytes(2) + data for data in values], strict=True))
            rows.append((keys[0], None))
    return [(3 * i, key, value) for i, (key, value) in enumerate(rows)]


def damaged(data: bytes | None, drawn: random.Random) -> bytes:
    """Cut, changed, or with something between."""
    data = bytearray(data or b"\0")
    at = drawn.randrange(len(data) + 1)
    kind = drawn.randrange(4)
    if kind == 0:
        return bytes(data[:at])
    if kind == 1:
        return bytes(data[:at] + drawn.randbytes(drawn.randrange(4)) + data[at:])
    near = min(len(data), 6) if kind == 2 else len(data)
    for _ in range(3 if near else 0):
        data[drawn.randrange(near)] = drawn.choice([0, 1, 127, 128, 255, drawn.randrange(256)])
    return bytes(data)


def in_base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def is_as_printed(ours: str | None, theirs: str | None) -> bool:
    """Return whether both texts are equal, whichever reference version printed the second one."""
    if ours is None or theirs is None:
        return ours is theirs
    # 4.4 compares the count of tagged fields with the bytes that are left, before it reads the fields
    head, is_refused, _ = as_4_3_prints(theirs).partition("Tried to read")
    return ours.startswith(head) if is_refused else ours == head


@pytest.mark.parametrize("decoder", DECODERS)
def test_coordinator_records_are_printed_as_by_kafka(classes, decoder):
    drawn = random.Random(decoder)
    rows = random_records(classes, decoder)
    whole = len(rows)
    for i in range(2000):
        _, key, value = drawn.choice(rows[:whole])
        rows.append((i, damaged(key, drawn) if key and drawn.random() < 0.3 else key, damaged(value, drawn)))
    records = [(offset, in_base64(key), in_base64(value)) for offset, key, value in rows]
    theirs = lab().call("parse_records", parser=DECODERS[decoder][0], records=records)
    offsets, keys, values = zip(*rows, strict=True)
    ours = decode_records(decoder, pa.array(keys, pa.binary()), pa.array(values, pa.binary()), offsets)
    for row, expected, *texts in zip(rows, theirs, *(column.to_pylist() for column in ours), strict=True):
        if not is_known("UnregisterControllerRecord") and (expected[1] or "").endswith("Unknown metadata id 29"):
            continue
        assert all(map(is_as_printed, texts, expected)), (row, texts, expected)
    refused = [text for pair in theirs[:whole] for text in pair if text and "skipping" in text]
    if decoder == "remote-log-metadata":  # Kafka's classes refuse most random numbers: no segment ends before it begins
        assert len(refused) < whole - 10
    else:
        assert refused == []


# -- what a broker writes


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Broker:
    """Run a broker until it has had groups of every kind, transactions, and deleted groups; return it stopped."""
    with Broker(tmp_path_factory.mktemp("broker"), {"share.coordinator.state.topic.num.partitions": 1}) as running:
        make_logs(running.bootstrap, ["topic=orders partitions=2 records=300 keys=50 roll=false"])
        lab().call("run_groups", bootstrap=running.bootstrap, topic="orders")
    return running


def test_every_record_of_internal_topics_is_printed_as_by_kafka(broker):
    folders = [*broker.data.glob("__*"), *(broker.directory / "meta").glob("__*")]
    assert {folder.name.rpartition("-")[0] for folder in folders} == set(TOPICS)
    kinds = set()
    for folder in folders:
        name = TOPICS[folder.name.rpartition("-")[0]]
        for log in files_in(folder):
            theirs = as_4_3_prints(dump_log_segments(DECODERS[name][1], "--files", log))
            ours = []
            dump([str(log)], DumpOptions(LogOptions(True, partial(decode_records, name))), ours.append)
            assert b"".join(ours).decode().splitlines() == theirs.splitlines(), folder.name
            kinds |= {(name, kind) for kind in re.findall(r'(?:key|payload): \{"type":"(\w+)"', theirs)}
    groups = {GROUP_RECORDS[int(kind)] for name, kind in kinds if name == "offsets"}
    assert {"OffsetCommit", "GroupMetadata", "ConsumerGroupCurrentMemberAssignment", "ConsumerGroupRegularExpression",
            "ShareGroupMemberMetadata"} <= groups  # fmt: skip
    assert len(kinds) > 25
