"""Models of every task that is served say over HTTP's reader what they say offline."""

import json

import numpy as np
import pytest

from holdfast import BadInput, DomainClassifier
from holdfast.models.predict import predict
from holdfast.run.workspace import training_data
from holdfast.serve.requests import Limits, TooLarge
from holdfast.serve.server import Service
from tests.annotated import question_rows, tagged_sentences, write_corpus, write_names, write_questions
from tests.graphs import rings_and_stars, write_zip
from tests.tiny import tiny_bert

SMALL = {"encoder.length": 24}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tasks")
    tiny_bert(made / "bert")
    return made


def fitted(folder, data, task, **settings):
    made = DomainClassifier(
        encoder=f"hf:{folder / 'bert'}", steps=4, batch=8, device="cpu", settings={"task": task, **SMALL, **settings}
    )
    made.fit_dataset(training_data(str(data), task=task), folder=folder / task)
    return Service(folder / task, device="cpu")


def said(service, *bodies):
    """Answers to requests that arrive together."""
    return service.answer([service.parser.parse(json.dumps(body).encode()) for body in bodies])


def refused(service, body, match):
    with pytest.raises(BadInput, match=match):
        said(service, body)


def offline(model, data, out):
    predict(model, data, out, device="cpu")
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_tags(folder):
    service = fitted(folder, write_names(folder / "names", 8), "tag")
    words = [each for each, _ in tagged_sentences("sea", 5)]
    rows = folder / "new.jsonl"
    rows.write_text("".join(json.dumps({"id": f"s{i}", "tokens": each}) + "\n" for i, each in enumerate(words)))
    wanted = offline(folder / "tag", rows, folder / "said-tags.jsonl")
    objects = [{"id": f"s{i}", "words": each} for i, each in enumerate(words)]
    assert said(service, {"examples": objects[:2]}, {"examples": objects[2:]}) == wanted
    (plain,) = said(service, {"example": " ".join(words[0])})
    assert plain == {key: wanted[0][key] for key in ("tokens", "tags")}
    for body, match in (
        ({"example": []}, "example 1 has no words"),
        ({"examples": [["a"], [3]]}, "example 2 has no words"),
        ({"example": ["a", " "]}, "blank"),
        ({"example": ["\ud800"]}, "half a character"),
        ({"example": {"x": "a"}}, "no tokens column"),
        ({"examples": [{"text": "a"}, "b"]}, "example 2 is no object"),
        ({"example": {"text": "a", "id": [1]}}, "the id of example 1"),
    ):
        refused(service, body, match)
    service.parser.limits = Limits(text=10)
    with pytest.raises(TooLarge, match="12 characters"):
        said(service, {"example": ["a" * 12]})


def test_answers(folder):
    service = fitted(folder, write_questions(folder / "asked.jsonl", 8), "span")
    rows = folder / "new-asked.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in question_rows("sea", 5)))
    wanted = offline(folder / "span", rows, folder / "said-answers.jsonl")
    found = said(service, *({"example": row} for row in question_rows("sea", 5)))
    assert [row["answer"] for row in found] == [row["answer"] for row in wanted]
    assert [row["score"] for row in found] == pytest.approx([row["score"] for row in wanted], abs=1e-5)
    row = question_rows("sea", 1)[0]
    (pair,) = said(service, {"example": [row["question"], row["context"]]})
    assert pair["answer"] == wanted[0]["answer"]
    for body, match in (
        ({"example": "what?"}, "no question with a text"),
        ({"example": ["what?", ""]}, "blank"),
        ({"example": {"question": "what?"}}, "no context column"),
        ({"example": {"question": "what?", "context": 3}}, "no question with a text"),
    ):
        refused(service, body, match)


def test_an_encoder_that_fills_in_words_is_refused(folder):
    with pytest.raises(BadInput, match="task masked cannot be served"):
        fitted(folder, write_corpus(folder / "corpus.txt", 24), "masked")


@pytest.mark.graph
def test_graphs(folder):
    shapes = folder / "shapes"
    shapes.mkdir()
    for name, first in (("near", 3), ("far", 9)):
        write_zip(shapes / f"{name}.zip", rings_and_stars(16, first=first), tags=lambda g, node: node % 3)
    made = DomainClassifier(
        encoder="gin", steps=4, batch=8, device="cpu", settings={"encoder.hidden": 8, "encoder.layers": 2}
    ).fit_dataset(training_data(str(shapes)), folder=folder / "graphs")
    service = Service(folder / "graphs", device="cpu")
    some = training_data(str(shapes)).raw.take(np.arange(5))
    bodies = [
        {"id": f"g{i}", "nodes": each.nodes.tolist(), "edges": each.edges.T.tolist()} for i, each in enumerate(some)
    ]
    found = said(service, {"examples": bodies[:2]}, {"examples": bodies[2:]})
    assert [each["id"] for each in found] == ["g0", "g1", "g2", "g3", "g4"]
    wanted = made.predict_proba(some)
    for each, row in zip(found, wanted, strict=True):
        assert list(each["probabilities"].values()) == pytest.approx(row.tolist(), abs=1e-5)
    width = len(bodies[0]["nodes"][0])
    for body, match in (
        ({"nodes": [[1] * width], "edges": [[0, 1]]}, "names node 1"),
        ({"nodes": [[1] * (width + 1)], "edges": []}, "nodes of shape"),
        ({"nodes": [[1], [1, 2]], "edges": []}, "equally long"),
        ({"nodes": [["a"]], "edges": []}, "lists of numbers"),
        ({"nodes": [[1] * width], "edges": [[0, 0.5]]}, "whole numbers"),
        ({"nodes": [[1] * width], "edges": [[0, 0]], "weights": [[1.0]]}, "edge features"),
        ({"nodes": 0, "edges": []}, "nodes of shape"),
        ({"nodes": 10**9, "edges": []}, "more than 20000"),
        ({"nodes": [[1] * width]}, "is no graph"),
        ([1, 2], "is no graph"),
    ):
        refused(service, {"example": body}, match)


@pytest.mark.graph
@pytest.mark.molecules
def test_molecules_are_read_as_smiles(folder):
    table = folder / "molecules.csv"
    names = ("CCO", "CCC", "CCN", "c1ccccc1", "CC=O", "CCCC")
    rows = [f"{smiles},{i % 2},{domain}" for domain in "ab" for i, smiles in enumerate(names)]
    table.write_text("\n".join(["smiles,label,domain", *rows]) + "\n")
    small = {"encoder.hidden": 8, "encoder.layers": 2}
    DomainClassifier(encoder="gin", steps=2, batch=4, device="cpu", settings=small).fit_dataset(
        training_data(str(table)), folder=folder / "molecules"
    )
    wanted = offline(folder / "molecules", table, folder / "said-molecules.jsonl")[:6]
    found = said(Service(folder / "molecules", device="cpu"), {"examples": list(names)})
    assert [each["label"] for each in found] == [each["label"] for each in wanted]
    refused(Service(folder / "molecules", device="cpu"), {"example": "no molecule"}, "row 1: 'no molecule' is no")
