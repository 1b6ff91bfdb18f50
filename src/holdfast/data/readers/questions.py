"""Questions whose answers are stretches of a text: files of SQuAD's form, and tables with one question a row.

n questions
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Question
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Raw
from holdfast.data.readers.table import ABOUT, check_characters, finder, gathered, iter_rows

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
OUTPUTS = ("start", "end")  # what a network says of each token: whether the answer begins, and ends, there
PARTS = ("context", "question", "answers", "answer_start")


class Questions(Raw):
    """Questions with their texts and answers; texts are held once in arrow where neighbours share them."""

    kind = "text"

    def __init__(self, questions: list[Question]) -> None:
        texts: dict[str, int] = {}
        self.owner = np.asarray([texts.setdefault(each.context, len(texts)) for each in questions], dtype=np.int64)
        self.contexts = pa.array(list(texts), type=pa.large_string())
        self.asked = pa.array([each.question for each in questions], type=pa.large_string())
        self.answers = pa.array([list(each.answers) for each in questions], type=pa.large_list(pa.large_string()))
        self.starts = pa.array([list(each.starts) for each in questions], type=pa.large_list(pa.int64()))

    def __len__(self) -> int:
        return len(self.asked)

    def take(self, rows: np.ndarray, *, size: int | None = None) -> list[Question]:
        at = pa.array(rows)
        contexts = self.contexts.take(pa.array(self.owner[rows])).to_pylist()
        parts = (column.take(at).to_pylist() for column in (self.asked, self.answers, self.starts))
        return [Question(c, q, tuple(a), tuple(s)) for c, q, a, s in zip(contexts, *parts, strict=True)]

    def digest(self, rows: np.ndarray) -> str:
        found = hashlib.sha256()
        for each in self.take(rows):
            found.update(repr(tuple(each)).encode())
        return found.hexdigest()


def read_questions(
    path: Path, *, columns: Mapping[str, str] | None = None, need: Collection[str] = ("answers",)
) -> Dataset:
    """A .json file of SQuAD's form, or a table with the columns context, question, answers and answer_start.

    Where answers are needed, a question without one is left out, and a note says how many were.
    """
    about: dict[str, list[Any]] = {}
    if path.suffix.lower() == ".json":
        if columns:
            raise BadInput(f"{path} is JSON of SQuAD's form, which has no columns: leave --column out")
        found = _from_json(path)
        about["id"] = []
    elif path.suffix.lower() in TABLES:
        found = _from_table(path, columns, about, answered="answers" in need)
    else:
        raise BadInput(f"{path} holds no questions: use .json of SQuAD's form, or one of {', '.join(TABLES)}")
    kept, without = [], 0
    for row, (each, facts) in enumerate(found, start=1):
        if "answers" in need and not each.answers:
            without += 1
            continue
        kept.append(_checked(path, row, each))
        for role in about:
            about[role].append(facts[role])
    if not kept:
        raise BadInput(f"{path} has no question with an answer in its text: there is nothing to learn from")
    notes = [f"{without:,} questions of {path.name} have no answer in their text and are left out"] if without else []
    return gathered(path, Questions(kept), about, classes=OUTPUTS, notes=notes)


def _checked(path: Path, row: int, each: Question) -> Question:
    if not each.context.strip() or not each.question.strip():
        raise BadInput(f"{path}: question {row} is blank, or its text is: fill it in or take it out")
    for answer, start in zip(each.answers, each.starts, strict=True):
        if not answer or each.context[start : start + len(answer)] != answer:
            raise BadInput(
                f"{path}: question {row} has the answer '{answer[:60]}' at character {start}, where its text has "
                f"'{each.context[start : start + len(answer)][:60]}': mend the start, counted from 0"
            )
    return each


def _from_json(path: Path) -> Iterator[tuple[Question, dict[str, Any]]]:
    try:
        written = path.read_text(encoding="utf-8-sig")
        articles = json.loads(written)["data"]
        check_characters(written, articles, str(path))
        for article in articles:
            for paragraph in article["paragraphs"]:
                for each in paragraph["qas"]:
                    given = each.get("answers") or []
                    answers, starts = ([answer[key] for answer in given] for key in ("text", "answer_start"))
                    question = Question(paragraph["context"], each["question"], tuple(answers), tuple(starts))
                    yield question, {"id": each.get("id", "")}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not JSON of SQuAD's form (data, paragraphs, qas): {error!r}") from error


def _from_table(
    path: Path, columns: Mapping[str, str] | None, about: dict[str, list[Any]], *, answered: bool
) -> Iterator[tuple[Question, dict[str, Any]]]:
    found = finder(path, columns)
    roles = {role: found.role(role) for role in (*PARTS, *ABOUT)}
    for role in PARTS if answered else PARTS[:2]:
        if roles[role] is None:
            raise found.missing(role)
    there = {role: name for role, name in roles.items() if name is not None}
    about.update({role: [] for role in ABOUT if role in there})
    both = "answers" in there and "answer_start" in there
    return _rows(path, there, both=both)


def _rows(path: Path, there: Mapping[str, str], *, both: bool) -> Iterator[tuple[Question, dict[str, Any]]]:
    for row, each in enumerate(iter_rows(path, list(there.values())), start=1):
        context, question = (str(each[there[role]] or "") for role in ("context", "question"))
        answers, starts = (_listed(each[there[role]]) if both else [] for role in ("answers", "answer_start"))
        if len(answers) != len(starts):
            raise BadInput(f"{path}: row {row} has {len(answers)} answers but {len(starts)} starts: give each one")
        try:
            made = Question(context, question, tuple(map(str, answers)), tuple(map(int, starts)))
        except (TypeError, ValueError):
            raise BadInput(f"{path}: row {row} has the start {starts}: it is a number of characters from 0") from None
        yield made, {role: each[there[role]] for role in ABOUT if role in there}


def _listed(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
