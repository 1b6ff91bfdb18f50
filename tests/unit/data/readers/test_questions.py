"""Questions from SQuAD files and from tables; answers must match their positions."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.questions import read_questions
from tests.annotated import question_rows

ROWS = question_rows("home", 5)


def squad(rows):
    paragraphs = [
        {
            "context": row["context"],
            "qas": [
                {
                    "id": row["id"],
                    "question": row["question"],
                    "answers": [
                        {"text": text, "answer_start": start}
                        for text, start in zip(row["answers"], row["answer_start"], strict=True)
                    ],
                }
            ],
        }
        for row in rows
    ]
    return json.dumps({"version": "1", "data": [{"title": "t", "paragraphs": paragraphs}]})


def test_every_format_gives_the_same_questions(tmp_path):
    (tmp_path / "a.json").write_text(squad(ROWS))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    pyarrow.parquet.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    lines = [f'"{r["context"]}",{r["question"]},"{r["answers"][0]}",{r["answer_start"][0]}\n' for r in ROWS]
    (tmp_path / "a.csv").write_text("context,question,answer,answer_start\n" + "".join(lines))
    found = [read_questions(tmp_path / f"a.{end}") for end in ("json", "jsonl", "parquet", "csv")]
    first = found[0].raw.take(np.arange(5))
    for each in found:
        assert each.raw.take(np.arange(5)) == first
        assert each.classes == ("start", "end")
        assert each.raw.digest(np.arange(5)) == found[0].raw.digest(np.arange(5))
    assert first[2].answers == tuple(ROWS[2]["answers"])
    assert found[0].ids == [row["id"] for row in ROWS]
    assert found[1].domains == ("home",)


def test_question_without_answer_is_dropped_with_a_note(tmp_path):
    rows = [{**ROWS[0], "answers": [], "answer_start": []}, *ROWS[1:]]
    (tmp_path / "a.json").write_text(squad(rows))
    found = read_questions(tmp_path / "a.json")
    assert len(found) == 4
    assert found.ids == [row["id"] for row in ROWS[1:]]
    assert "1 questions of a.json" in found.notes[0]
    assert len(read_questions(tmp_path / "a.json", ReadOptions(need=()))) == 5  # for prediction


BAD = {
    "elsewhere": (
        [{**ROWS[0], "answer_start": [ROWS[0]["answer_start"][0] + 1]}],
        "question 1 has the answer",
    ),
    "one start too many": ([{**ROWS[0], "answer_start": [0, 1]}], "1 answers but 2 starts"),
    "no number": ([{**ROWS[0], "answer_start": ["x"]}], r"question 1 has the start \['x'\]"),
    "infinite": ([{**ROWS[0], "answer_start": [float("inf")]}], "question 1 has the start"),
    "no column": ([{"question": "a", "answers": ["b"], "answer_start": [0]}], "no context column"),
    "blank": ([{**ROWS[0], "question": " "}], "question 1 .*blank"),
    "none at all": ([{**ROWS[0], "answers": [], "answer_start": []}], "nothing to learn from"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_files_are_rejected(tmp_path, case):
    rows, message = BAD[case]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(BadInput, match=message):
        read_questions(tmp_path / "a.jsonl")


def test_other_files_are_rejected(tmp_path):
    (tmp_path / "a.json").write_text('{"questions": []}')
    (tmp_path / "b.json").write_text('{"data": ["\\uD83d"]}')
    (tmp_path / "a.xml").write_text("<a/>")
    told = {"a.json": "SQuAD", "b.json": "surrogate", "a.xml": "holds no questions"}
    for name, message in told.items():
        with pytest.raises(BadInput, match=message):
            read_questions(tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer_start": [float("inf")]}, "question 1 has the start"),
        ({"context": 5}, "question 1 has the context 5, expected a text"),
        ({"question": None}, "question 1 or its context is blank"),
    ],
)
def test_squad_file_with_other_types_is_rejected(tmp_path, change, message):
    (tmp_path / "a.json").write_text(squad([{**ROWS[0], **change}]))
    with pytest.raises(BadInput, match=message):
        read_questions(tmp_path / "a.json")
