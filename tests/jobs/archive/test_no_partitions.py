"""An error names the program whose files a folder holds, if they are no log directory of a broker."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from lastkey.jobs.command import cli
from lastkey.jobs.errors import USAGE
from tests.builders.logs import write_partition, write_segment

REDPANDA = struct.Struct("<Iiqbihiqqqhii")  # model::record_batch_header, packed: 61 bytes


def _redpanda(root: Path) -> str:
    folder = root / "kafka" / "orders" / "0_12"
    folder.mkdir(parents=True)
    header = REDPANDA.pack(7, REDPANDA.size + 9, 420, 1, 7, 0, 0, 0, 0, -1, -1, -1, 1)
    (folder / "420-1-v1.log").write_bytes(header + b"\x10" * 9)
    (folder / "420-1-v1.base_index").write_bytes(b"x")
    return "Redpanda's segments: kafka/orders/0_12/420-1-v1.log"


def _confluent(root: Path) -> str:
    folder = root / "0" / "-9twBPT1TWmFRZr_cKeDTA" / "e-RG-7KYTD22ym0zvWaCDA" / "1"
    folder.mkdir(parents=True)
    write_segment(root, "a=1 b=2", 500).rename(folder / "00000000000000000500_0_v0.segment")
    for path in root.glob("*.*index"):
        path.unlink()
    path = "0/-9twBPT1TWmFRZr_cKeDTA/e-RG-7KYTD22ym0zvWaCDA/1/00000000000000000500_0_v0.segment"
    return f"segments of Confluent's tiered storage: {path}"


def _kafka_backup(root: Path) -> str:
    (root / "orders").mkdir()
    (root / "orders" / "segment_partition_000_from_offset_0000000000_index").write_bytes(b"\x01")
    (root / "orders" / "segment_partition_000_from_offset_0000000000_records").write_bytes(b"\x01" + bytes(40))
    path = "orders/segment_partition_000_from_offset_0000000000_records"
    return f"a logical backup by kafka-backup (itadventurer): {path}"


def _kafka_backup_of_oso(root: Path) -> str:
    folder = root / "nightly" / "topics" / "orders" / "partition=0"
    folder.mkdir(parents=True)
    (folder / "segment-00000000000000000000.bin.zst").write_bytes(b"x")
    path = "nightly/topics/orders/partition=0/segment-00000000000000000000.bin.zst"
    return f"a logical backup by kafka-backup (osodevops): {path}"


def _sink_connector(root: Path) -> str:
    folder = root / "topics" / "orders" / "partition=0"
    folder.mkdir(parents=True)
    (folder / "orders+0+0000000000.avro").write_bytes(b"x")
    return "objects of a Kafka Connect sink: topics/orders/partition=0/orders+0+0000000000.avro"


def _marked(root: Path) -> str:
    for mark in ("stray", "future"):
        write_partition(root / f"t-0.6ba7b8109dad11d180b400c04fd430c8-{mark}", "a=1")
    folder = "t-0.6ba7b8109dad11d180b400c04fd430c8"
    return f"only folders that a broker marked (1 -stray, 1 -future): {folder}-future, {folder}-stray"


@pytest.mark.parametrize(
    "put",
    [_redpanda, _confluent, _kafka_backup, _kafka_backup_of_oso, _sink_connector, _marked],
    ids=lambda f: f.__name__,
)
def test_error_names_the_program_that_wrote_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], put) -> None:
    root = tmp_path / "archive"
    root.mkdir()
    program = put(root)
    assert cli.main(["verify", str(root)]) == USAGE
    message = capsys.readouterr().err
    assert f"{root}: expected folders <topic>-<partition> of an archive, found {program}" in message
    assert any(advice in message for advice in ("copy", "archive the broker's log directory", "--folders stray,future"))


@pytest.mark.parametrize(
    ("path", "data"),
    [
        ("kafka/orders/0_12/420-1-v1.log", b"text that is no batch, though the name looks like Redpanda's" * 2),
        ("orders/segment_partition_000_from_offset_0000000000_records", b"\x02"),
        ("0/-9twBPT1TWmFRZr_cKeDTA/e-RG-7KYTD22ym0zvWaCDA/1/00000000000000000500_0_v0.segment", bytes(80)),
        ("notes/readme.txt", b"x"),
    ],
)
def test_file_names_alone_do_not_identify_a_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], path: str, data: bytes
) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_bytes(data)
    assert cli.main(["verify", str(tmp_path)]) == USAGE
    assert "archive, found none" in capsys.readouterr().err
