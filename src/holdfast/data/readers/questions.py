"""Read questions whose answers are spans of a text: SQuAD files, or tables with one question per row."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Question
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Records
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.formats import SUFFIXES, check_surrogates
from holdfast.data.readers.tables import METADATA, column_finder, role_rows, unlabelled_dataset

OUTPUTS = ("start", "end")  # outputs per token: whether the answer starts or ends there
ANSWERED = ReadOptions(need=("answers",))
ROLES = ("context", "question", "answers", "answer_start")

Row = tuple[int, Mapping[str, Any], dict[str, Any]]  # number, values by role, and those that are metadata


def read_questions(path: Path, options: ReadOptions = ANSWERED) -> Dataset:
    """Read a SQuAD .json file, or a table with the columns context, question, answers and answer_start.

    If answers are needed, questions without one are dropped, with a note.
    """
    columns, required = options.columns, "answers" in options.need
    if path.suffix.lower() == ".json":
        if columns:
            raise BadInput(f"{path} is a SQuAD file, which has no columns: remove --column")
        rows = _read_json(path)
    elif path.suffix.lower() in SUFFIXES:
        present = column_finder(path, columns).roles(ROLES if required else ROLES[:2], (*ROLES, *METADATA))
        rows = role_rows(path, present)
    else:
        raise BadInput(f"{path} holds no questions: use a SQuAD .json file, or one of {', '.join(SUFFIXES)}")
    questions, values, dropped = [], [], 0
    for number, row, metadata in rows:
        question = _question(path, number, row)
        if required and not question.answers:
            dropped += 1
            continue
        _check(path, number, question)
        questions.append(question)
        values.append(metadata)
    if not questions:
        raise BadInput(f"{path} has no question with an answer in its text: there is nothing to learn from")
    notes = [f"{dropped:,} questions of {path.name} have no answer in their text and were dropped"] if dropped else []
    columns_read = {role: [metadata[role] for metadata in values] for role in values[0]}
    return unlabelled_dataset(path, Records(questions), columns_read, classes=OUTPUTS, notes=notes)


def _question(path: Path, number: int, row: Mapping[str, Any]) -> Question:
    for role in ("context", "question"):
        if not isinstance(row[role], str | None):
            raise BadInput(f"{path}: question {number} has the {role} {str(row[role])[:60]}, expected a text: fix it")
    context, question = row["context"] or "", row["question"] or ""
    answered = "answers" in row and "answer_start" in row
    answers, starts = (_as_list(row[role]) if answered else [] for role in ("answers", "answer_start"))
    if len(answers) != len(starts):
        counts = f"{len(answers)} answers but {len(starts)} starts"
        raise BadInput(f"{path}: question {number} has {counts}: write one start per answer")
    try:
        answers, starts = tuple(map(str, answers)), tuple(map(int, starts))
    except (TypeError, ValueError, OverflowError):  # infinity overflows
        raise BadInput(f"{path}: question {number} has the start {starts}: it must be an integer from 0") from None
    return Question(context, question, answers, starts)


def _check(path: Path, number: int, question: Question) -> None:
    context = question.context
    if not context.strip() or not question.question.strip():
        raise BadInput(f"{path}: question {number} or its context is blank: fill it in or remove it")
    for answer, start in zip(question.answers, question.starts, strict=True):
        span = context[start : start + len(answer)]
        if not answer or span != answer:
            fault = f"the answer '{answer[:60]}' at character {start}, where its context has '{span[:60]}'"
            raise BadInput(f"{path}: question {number} has {fault}: fix the start, which counts from 0")


def _read_json(path: Path) -> Iterator[Row]:
    """Yield the questions of a SQuAD file as rows of a table."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        articles = json.loads(text)["data"]
        check_surrogates(text, articles, str(path))
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        entries = [(paragraph["context"], entry) for paragraph in paragraphs for entry in paragraph["qas"]]
        for number, (context, entry) in enumerate(entries, start=1):
            listed = entry.get("answers") or []
            answers, starts = ([answer[key] for answer in listed] for key in ("text", "answer_start"))
            row = {"context": context, "question": entry["question"], "answers": answers, "answer_start": starts}
            yield number, row, {"id": entry.get("id", "")}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not a SQuAD file (data, paragraphs, qas): {error!r}") from error


def _as_list(value: Any) -> list[Any]:
    if value is None or value == "":
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
