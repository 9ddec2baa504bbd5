"""Parsing of a user's input: numbers, spans, keys."""

from __future__ import annotations

import pytest

from lastkey.jobs.command.parse import (
    MAX_LONG,
    check_topics,
    nearest,
    parse_globs,
    parse_key,
    parse_numbers,
    parse_time,
    parse_topics,
)
from lastkey.jobs.command.read_options import InspectOptions
from lastkey.jobs.errors import CONFIG_FILE, UsageError
from lastkey.jobs.topics import EVERY_TOPIC, TopicFilter
from tests.builders.errors import raises_kind


@pytest.mark.parametrize(
    ("text", "numbers"), [("3", range(3, 4)), ("3-5", range(3, 6)), (" 0 - 0 ", range(1)), ("07", range(7, 8))]
)
def test_lists_and_ranges_of_numbers_are_parsed(text, numbers):
    assert parse_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "-", "3-", "-3", "5-3", "a", "1,2", "12345678901", "1.5"])
def test_malformed_numbers_are_refused(text):
    with pytest.raises(ValueError) as error:
        parse_numbers(text)
    assert str(error.value) == text


def checked(option, text):
    """Return the value of an option that this text gives."""
    return option.kind.check(option, text)


@pytest.mark.parametrize(
    ("text", "ends"), [("5..9", (5, 9)), ("..9", (None, 9)), ("5..", (5, None)), ("..", (None,) * 2)]
)
def test_a_span_may_be_open_at_either_end(text, ends):
    assert checked(InspectOptions.offsets, text) == ends


@pytest.mark.parametrize("text", ["", "5", "a..b", "5...9", f"{MAX_LONG + 1}.."])
def test_malformed_spans_are_refused(text):
    with pytest.raises(UsageError, match=r"^--offset: expected FROM\.\.TO, FROM\.\. or \.\.TO, found "):
        checked(InspectOptions.offsets, text)


def test_span_with_its_end_before_its_start_is_refused():
    """Such a span would silently match nothing. An empty span is allowed, because a script may compute one."""
    assert checked(InspectOptions.offsets, "5..5") == (5, 5)
    with pytest.raises(UsageError, match=r"^--offset: expected a FROM that is not after TO, found '10\.\.5'"):
        checked(InspectOptions.offsets, "10..5")


def test_invalid_time_in_a_span_is_explained():
    assert checked(InspectOptions.times, "1970-01-01T00:00:01Z..2000") == (1000, 2000)
    with pytest.raises(UsageError, match=r"^no such time: noon"):
        checked(InspectOptions.times, "noon..")


@pytest.mark.parametrize(
    ("text", "key"),
    [("0x6162", b"ab"), ("0x", b""), ("0x616", b"0x616"), ("0X61", b"0X61"), ("", b""), ("é", "é".encode())],
)
def test_keys_are_parsed_as_text_or_hexadecimal(text, key):
    assert parse_key(text) == key


@pytest.mark.parametrize(("text", "ms"), [("-5", -5), (f"{MAX_LONG}", MAX_LONG), ("1970-01-01T00:00:01Z", 1000)])
def test_times_are_parsed_as_epoch_milliseconds(text, ms):
    assert parse_time(text) == ms


@pytest.mark.parametrize("text", ["", "-", "--5", f"{MAX_LONG + 1}", "9" * 5000])
def test_malformed_times_are_refused(text):
    with pytest.raises(UsageError, match=r"^no such time: "):
        parse_time(text)


@pytest.mark.parametrize(
    ("given", "globs"),
    [
        ((), ()),
        (("a",), ("a",)),
        (("a,b*", "c"), ("a", "b*", "c")),
        ((" a ,, b,", "a"), ("a", "b")),
        (("[ab]*", "[!]a]", "[]]"), ("[ab]*", "[!]a]", "[]]")),
    ],
)
def test_globs_are_separated_by_commas(given, globs):
    assert parse_globs("--topics", given) == globs


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("",), "--topics: expected globs of topics' names, separated by commas, found ''"),
        (("a", " ,"), "--topics: expected globs of topics' names, separated by commas, found ' ,'"),
        (("[a,b]*",), "--topics: expected a ] after the [ of a glob, found '[a'"),
        (("[!]",), "found '[!]'"),
    ],
)
def test_malformed_globs_are_refused(given, message):
    """No malformed glob may select every topic."""
    with pytest.raises(UsageError) as error:
        parse_globs("--topics", given)
    assert message in str(error.value)


def test_topics_of_options_and_files_are_joined(tmp_path):
    (tmp_path / "one").write_text("\ufeff# ours\r\nb\r\n\r\n  c*  # theirs\r\n", encoding="utf-8")
    (tmp_path / "two").write_text("d")
    files = [str(tmp_path / "one"), str(tmp_path / "two")]
    wanted = parse_topics(["a", "b"], ["c1,d"], files)
    assert wanted == TopicFilter(("a", "b", "c*", "d"), ("c1", "d"))
    assert [topic for topic in ("a", "b", "c1", "c2", "d", "e") if wanted.takes(topic)] == ["a", "b", "c2"]
    assert parse_topics([]) == EVERY_TOPIC
    assert EVERY_TOPIC.takes("x")
    assert not TopicFilter((), ("x",)).takes("x")


@pytest.mark.parametrize(
    ("content", "description"),
    [
        (None, "found no such file"),
        (b"", "found none"),
        (b"# a\n\n", "found none"),
        (b"\xff\n", "found bytes that are"),
    ],
)
def test_file_without_a_topic_is_refused(tmp_path, content, description):
    path = tmp_path / "list"
    if content is not None:
        path.write_bytes(content)
    with raises_kind(CONFIG_FILE, match=f"^{path}: expected .*, {description}") as error:
        parse_topics([], files=[str(path)])
    assert error.value.exit_code == 2
    with raises_kind(CONFIG_FILE, match="found Is a directory"):
        parse_topics([], files=[str(tmp_path)])


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (TopicFilter(("users", "ordrs", "x*")), r"^no topic of A matches ordrs, x\*; did you mean orders\?$"),
        (TopicFilter(exclude=("usres",)), r"^exclude: no topic of A matches usres; did you mean users or orders\?$"),
        (TopicFilter(("users",), ("us*",)), r"^no topic of A is left: us\* leaves out all of users$"),
    ],
)
def test_patterns_without_a_match_are_refused(wanted, message):
    with pytest.raises(UsageError, match=message):
        check_topics(wanted, ["users", "orders"], "A")
    check_topics(wanted, [], "A")  # nothing is known of any


def test_patterns_with_a_match_are_accepted():
    for wanted in (EVERY_TOPIC, TopicFilter(("u*", "orders")), TopicFilter(exclude=("__*", "users"))):
        check_topics(wanted, ["users", "orders"], "A")


def test_topic_filter_refuses_a_plain_string():
    """Each letter of the text would be a glob, and a * would select every topic."""
    with pytest.raises(TypeError, match=r"found 'users\*'"):
        TopicFilter("users*")


def test_error_suggests_the_nearest_of_several_names():
    assert nearest(["usres", "ordrs"], ["users", "orders", "clicks"]) == "did you mean users or orders?"
    assert nearest("x", ["users", "orders"]) == "there are users, orders"
