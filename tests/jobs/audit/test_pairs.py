"""Topics of two sides under one name, and unreadable parts of a side."""

from __future__ import annotations

import pytest

from lastkey.jobs.audit.pairs import Pair, names_in_a, unread
from lastkey.jobs.audit.records import Gathered
from lastkey.jobs.command.kinds import AuditSource, audit_side
from lastkey.jobs.command.parse import Rename
from lastkey.jobs.command.store_options import AuditMirrorOptions
from lastkey.jobs.errors import UsageError
from lastkey.udfs.problem import Problem

PROBLEM = Problem("crc", "orders-0/00000000000000000000.log", 61, "1", "2")


@pytest.mark.parametrize(
    ("renames", "names"),
    [
        ([], {"A.orders": "A.orders", "orders": "orders", "users": "users"}),
        ([r"A\.(.*)=\1"], {"A.orders": "orders"}),  # B's own orders, of another direction, is left out
        ([r"A\.(?P<name>.*)=\g<name>", "(users)=\\1"], {"A.orders": "orders", "users": "users"}),
        (["A.*=x=y"], None),
        (["orders=items", r"A\.orders=orders"], {"orders": "items", "A.orders": "orders"}),
    ],
)
def test_rename_patterns_map_names(renames, names):
    topics = {"A.orders", "orders", "users"}
    if names is None:  # the last = counts
        assert Rename.of(renames[0]) == Rename("A.*=x", "y")
    else:
        assert names_in_a(topics, [Rename.of(text) for text in renames]) == names


@pytest.mark.parametrize("text", ["", "=", "=x", "orders", "(=x", r"a=\1", r"a=\g<b>"])
def test_malformed_rename_patterns_are_refused(text):
    with pytest.raises(UsageError, match="--rename"):
        Rename.of(text)


def test_two_topics_with_one_renamed_name_are_refused():
    with pytest.raises(UsageError, match=r"topics A\.orders and orders of B would both be orders"):
        names_in_a({"A.orders", "orders"}, [Rename(r"(A\.)?(.*)", r"\2")])


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("archive", AuditSource("archive")),
        ("s3://b/archive", AuditSource("s3://b/archive")),
        ("store@3", AuditSource(store="store", generation=3)),
        ("s3://b/store@current", AuditSource(store="s3://b/store")),
        ("store@", AuditSource("store@")),
        ("@3", AuditSource("@3")),
        ("home/me@work/archive", AuditSource("home/me@work/archive")),
    ],
)
def test_archive_and_generation_are_parsed_from_text(text, source):
    assert audit_side(text) == source


def test_audit_of_an_archive_requires_a_folder_for_tables():
    with pytest.raises(UsageError, match="--audits STORE"):
        AuditMirrorOptions("a", "b").validate()
    assert AuditMirrorOptions("a", "b@2").b == AuditSource(store="b", generation=2)
    assert AuditMirrorOptions("a", "b", audits="c").audits == "c"


def pair() -> Pair:
    pair = Pair("a", "b", {"orders", "users"}, {"A.orders": "orders"})
    pair.partitions = {("orders", 0), ("orders", 1), ("users", 0)}, {("orders", 0), ("orders", 2)}
    return pair


def test_problems_name_the_archive_that_has_them():
    gathered = Gathered()
    for place in (("a", "orders", 1), ("b", "A.orders", 0), ("b", "orders", 1), ("a", "others", 0), ("c", "orders", 2)):
        gathered.problems[place].append(PROBLEM)
    gathered.problems["a", "orders", 0] += []
    assert unread(pair(), gathered) == ({("orders", 1)}, {("orders", 0)})


def test_unlisted_folder_makes_missing_partitions_unknown():
    assert unread(pair(), Gathered(unlisted=[PROBLEM])) == ({("orders", 2)}, {("orders", 1), ("users", 0)})
