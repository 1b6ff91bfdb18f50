"""Error messages: safe to print, one line, and with the nearest known name."""

import warnings

import pytest

from holdfast.core.errors import MAX_LENGTH, SHORT_LIST, escape_control, one_line, quiet_fit, unknown

PLAIN = [
    "data.csv has no label column: it has 'text', 'domain'; name it with --column label=NAME",
    "domain 'مرحبا' has 1 example: give it more or leave it out",
    "domain 'שלום' has 1 example",
    "unknown class '👩\u200d👩🏽' or '日本' or 'e\u0301' or 'İ'",
    "C:\\data\\new.csv does not exist: check the name",
    "row 3, column '[bold]x[/bold]' has '%s {}'",
]


@pytest.mark.parametrize("sentence", PLAIN)
def test_text_in_any_script_is_unchanged(sentence):
    assert one_line(sentence) == escape_control(sentence) == sentence


def test_line_breaks_become_spaces():
    assert one_line("  a\r\nb\t c\u2028d\x85e\n") == "a b c d e"
    assert escape_control("a\nb") == "a\nb"


def test_control_characters_and_surrogates_are_escaped():
    assert one_line("a\x1b[31mred\x00\x7f") == "a\\x1b[31mred\\x00\\x7f"
    assert one_line("'\u202eabc\u2066'") == "'\\u202eabc\\u2066'"
    assert one_line("lone \ud800").encode() == b"lone \\ud800"


def test_the_middle_of_a_long_message_is_omitted():
    assert one_line("x" * MAX_LENGTH) == "x" * MAX_LENGTH
    line = one_line(f"data.csv: row 7 has '{'a' * 200_000}': shorten it")
    assert line.startswith("data.csv: row 7 has 'aaa")
    assert line.endswith("aaa': shorten it")
    assert len(line) == MAX_LENGTH + len(" [...] ")


def test_an_unknown_name_suggests_the_nearest():
    assert "did you mean 'coral'" in str(unknown("method", "corall", ["erm", "coral"]))
    assert "known: coral, erm" in str(unknown("method", "zzz", ["erm", "coral"]))


def test_a_long_list_of_names_is_replaced_by_the_command_that_prints_it():
    names = [f"method-{i}" for i in range(SHORT_LIST + 1)]
    error = str(unknown("method", "method-x", names, command="holdfast list methods"))
    assert error.endswith("? `holdfast list methods` lists all names")
    assert "known:" not in error
    assert "lists all names" not in str(unknown("method", "method-x", names))


def test_only_expected_warnings_of_scikit_learn_are_ignored():
    from sklearn.exceptions import ConvergenceWarning

    with quiet_fit():
        warnings.warn("lbfgs failed to converge", ConvergenceWarning, stacklevel=1)
        warnings.warn("The number of unique classes is greater than 50% of the number of samples.", stacklevel=1)
        with pytest.warns(UserWarning, match="constant"):
            warnings.warn("features are constant", stacklevel=1)
    with pytest.warns(UserWarning, match="number of unique classes"):
        warnings.warn("The number of unique classes is greater than 50% of the number of samples.", stacklevel=1)
