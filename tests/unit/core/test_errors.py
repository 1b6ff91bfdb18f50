"""Sentences for users: the nearest name, and whatever is quoted in them fit to be shown."""

import pytest

from holdfast.core.errors import MAX_LENGTH, escape_control, one_line, unknown

PLAIN = [
    "data.csv has no label column: it has 'text', 'domain'; name it with --column label=NAME",
    "domain 'مرحبا' has 1 example: give it more or leave it out",
    "domain 'שלום' has 1 example",
    "unknown class '👩\u200d👩🏽' or '日本' or 'e\u0301' or 'İ'",
    "C:\\data\\new.csv does not exist: check the name",
    "row 3, column '[bold]x[/bold]' has '%s {}'",
]


@pytest.mark.parametrize("sentence", PLAIN)
def test_a_plain_sentence_in_any_script_stays_as_it_is(sentence):
    assert one_line(sentence) == escape_control(sentence) == sentence


def test_a_sentence_is_one_line():
    assert one_line("  a\r\nb\t c\u2028d\x85e\n") == "a b c d e"
    assert escape_control("a\nb") == "a\nb"


def test_what_steers_a_terminal_or_cannot_be_written_is_told_by_its_number():
    assert one_line("a\x1b[31mred\x00\x7f") == "a\\x1b[31mred\\x00\\x7f"
    assert one_line("'\u202eabc\u2066'") == "'\\u202eabc\\u2066'"
    assert one_line("lone \ud800").encode() == b"lone \\ud800"


def test_of_a_long_sentence_the_beginning_and_the_end_stay():
    assert one_line("x" * MAX_LENGTH) == "x" * MAX_LENGTH
    told = one_line(f"data.csv: row 7 has '{'a' * 200_000}': mend it")
    assert told.startswith("data.csv: row 7 has 'aaa")
    assert told.endswith("aaa': mend it")
    assert len(told) == MAX_LENGTH + len(" [...] ")


def test_unknown_names_suggest_the_nearest():
    assert "did you mean 'coral'" in str(unknown("method", "corall", ["erm", "coral"]))
    assert "known: coral, erm" in str(unknown("method", "zzz", ["erm", "coral"]))
