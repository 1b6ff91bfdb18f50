"""Every answer of the table in docs/design.md is one file that can be read alone."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 400  # lines
TABLE = (ROOT / "docs" / "design.md").read_text(encoding="utf-8").partition("## Where is the answer?")[2]
ANSWERS = re.findall(r"^\| (.+\?) \| `(.+)` \|$", TABLE.partition("\n## ")[0], re.MULTILINE)


def test_the_table_has_questions():
    assert len(ANSWERS) >= 20


@pytest.mark.parametrize(("question", "file"), ANSWERS, ids=[file for _, file in ANSWERS])
def test_an_answer_is_one_file_of_a_readable_length(question, file):
    text = (ROOT / "src" / "holdfast" / file).read_text(encoding="utf-8")
    assert text.startswith('"""'), f"{file} does not say what it is about"
    assert len(text.splitlines()) <= LONGEST, question
