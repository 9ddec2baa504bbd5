"""The table of records in a bucket: what tasks write there, what a later audit finds there again, and what is lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import fs as pafs

from lastkey.jobs.audit.keys import run
from lastkey.jobs.command.progress import Silent
from lastkey.jobs.command.store_options import AuditKeysOptions
from lastkey.jobs.errors import UsageError
from lastkey.jobs.store.audits import audit_reads, check_files
from lastkey.jobs.store.tables import open_state
from tests.builders.audits import audit, seen
from tests.builders.logs import write_partition
from tests.builders.s3_server import BUCKET, s3_server

pytestmark = pytest.mark.slow  # a server of its own

AUDITS = f"{BUCKET}/audits"


def test_only_new_or_lost_segments_are_read_again(tmp_path: Path) -> None:
    archive, here = tmp_path / "archive", tmp_path / "audits"
    write_partition(archive / "t-0", "a=1 b=1 || {pid=7 txn} c=1 | {pid=7 abort} || d=1")
    write_partition(archive / "u-0", "=1 e=1")
    with s3_server():
        there = audit(archive, AUDITS)
        assert seen(AUDITS, there) == seen(here, audit(archive, here)) and len(seen(AUDITS, there)) == 5
        assert (there.stretches_read, audit(archive, AUDITS).stretches_read) == (4, 0)
        write_partition(archive / "v-0", "f=1 g=1")
        assert audit(archive, AUDITS).stretches_read == 1
        state = open_state(AUDITS)
        files = {read.file for read in audit_reads(state)} - {""}
        first = next(read.file for read in audit_reads(state) if read.topic == "t" and read.file)
        check_files(state, files)
        filesystem, folder = state.root.filesystem, state.root.full("state/audit_entries")
        listed = filesystem.get_file_info(pafs.FileSelector(folder))
        assert files == {info.base_name for info in listed if info.type == pafs.FileType.File}
        filesystem.delete_file(f"{folder}/{first}")
        lost = len([read for read in audit_reads(state) if read.file == first])
        again, expected = audit(archive, AUDITS), seen(here, audit(archive, here))
        assert (again.stretches_read, seen(AUDITS, again)) == (lost, expected)
        with filesystem.open_output_stream(f"{folder}/{next(iter(again.files))}") as file:
            file.write(b"")  # cut off
        cut = audit(archive, AUDITS)
        assert cut.stretches_read > 0 and seen(AUDITS, cut) == expected and not cut.all_problems
        assert audit(archive, AUDITS).stretches_read == 0


def test_threads_refuse_tables_in_a_bucket(tmp_path: Path) -> None:
    write_partition(tmp_path / "archive" / "t-0", "a=1")
    with s3_server(), pytest.raises(UsageError, match="audit keys needs Spark for its tables"):
        run(AuditKeysOptions(str(tmp_path / "archive"), audits=AUDITS, engine="threads"), Silent())
