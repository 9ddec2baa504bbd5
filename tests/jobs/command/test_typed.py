"""What a user types: numbers, spans, keys."""

from __future__ import annotations

import pytest

from jobs.command.typed import MAX_LONG, parse_key, parse_numbers, parse_span, parse_time
from jobs.errors import UsageError


@pytest.mark.parametrize(
    ("text", "numbers"), [("3", range(3, 4)), ("3-5", range(3, 6)), (" 0 - 0 ", range(1)), ("07", range(7, 8))]
)
def test_numbers(text, numbers):
    assert parse_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "-", "3-", "-3", "5-3", "a", "1,2", "12345678901", "1.5"])
def test_what_is_no_numbers(text):
    with pytest.raises(ValueError) as error:
        parse_numbers(text)
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("text", "ends"), [("5..9", (5, 9)), ("..9", (None, 9)), ("5..", (5, None)), ("..", (None,) * 2)]
)
def test_a_span(text, ends):
    assert parse_span("--offsets", text, int) == ends


@pytest.mark.parametrize("text", ["", "5", "a..b", "5...9", f"{MAX_LONG + 1}.."])
def test_what_is_no_span(text):
    with pytest.raises(UsageError, match=r"^--offsets: expected FROM\.\.TO, FROM\.\. or \.\.TO, found "):
        parse_span("--offsets", text, int)


def test_a_span_that_ends_before_it_begins():
    """It would show nothing, as if there were nothing; an empty one is what a script may come to."""
    assert parse_span("--offsets", "5..5", int) == (5, 5)
    with pytest.raises(UsageError, match=r"^--offsets: expected a FROM that is not behind TO, found '10\.\.5'"):
        parse_span("--offsets", "10..5", int)


def test_a_span_of_times_says_what_is_wrong_with_a_time():
    assert parse_span("--times", "1970-01-01T00:00:01Z..2000", parse_time) == (1000, 2000)
    with pytest.raises(UsageError, match=r"^no such time: noon"):
        parse_span("--times", "noon..", parse_time)


@pytest.mark.parametrize(
    ("text", "key"),
    [("0x6162", b"ab"), ("0x", b""), ("0x616", b"0x616"), ("0X61", b"0X61"), ("", b""), ("é", "é".encode())],
)
def test_a_key(text, key):
    assert parse_key(text) == key


@pytest.mark.parametrize(("text", "ms"), [("-5", -5), (f"{MAX_LONG}", MAX_LONG), ("1970-01-01T00:00:01Z", 1000)])
def test_a_time(text, ms):
    assert parse_time(text) == ms


@pytest.mark.parametrize("text", ["", "-", "--5", f"{MAX_LONG + 1}", "9" * 5000])
def test_what_is_no_time(text):
    with pytest.raises(UsageError, match=r"^no such time: "):
        parse_time(text)
