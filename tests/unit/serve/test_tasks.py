"""Served predictions of every task equal offline predictions, and invalid examples are rejected."""

import json

import numpy as np
import pytest

from holdfast import BadInput, DomainClassifier
from holdfast.prediction.predict import predict
from holdfast.serve.requests import Limits, TooLarge
from holdfast.serve.service import Service
from holdfast.train.training_data import training_data
from tests.annotated import question_rows, tagged_sentences, write_corpus, write_names, write_questions
from tests.graphs import rings_and_stars, write_zip
from tests.tiny import tiny_bert

SMALL = {"encoder.length": 24}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    base = tmp_path_factory.mktemp("tasks")
    tiny_bert(base / "bert")
    return base


def fitted(folder, data, task, **settings):
    classifier = DomainClassifier(
        encoder=f"hf:{folder / 'bert'}", steps=4, batch=8, device="cpu", settings={"task": task, **SMALL, **settings}
    )
    classifier.fit_dataset(training_data(str(data), task=task), folder=folder / task)
    return Service(folder / task, device="cpu")


def served(service, *bodies):
    """Answer requests that arrive together."""
    return service.answer([service.parser.parse(json.dumps(body).encode()) for body in bodies])


def assert_rejected(service, body, match):
    with pytest.raises(BadInput, match=match):
        served(service, body)


def offline(model, data, out):
    predict(model, data, out, device="cpu")
    return [json.loads(line) for line in out.read_text().splitlines()]


def test_tags(folder):
    service = fitted(folder, write_names(folder / "names", 8), "tag")
    words = [each for each, _ in tagged_sentences("sea", 5)]
    rows = folder / "new.jsonl"
    rows.write_text("".join(json.dumps({"id": f"s{i}", "tokens": each}) + "\n" for i, each in enumerate(words)))
    expected = offline(folder / "tag", rows, folder / "offline-tags.jsonl")
    objects = [{"id": f"s{i}", "words": each} for i, each in enumerate(words)]
    assert served(service, {"examples": objects[:2]}, {"examples": objects[2:]}) == expected
    (plain,) = served(service, {"example": " ".join(words[0])})
    assert plain == {key: expected[0][key] for key in ("tokens", "tags")}
    for body, match in (
        ({"example": []}, "example 1 .*words"),
        ({"examples": [["a"], [3]]}, "example 2 .*words"),
        ({"example": ["a", " "]}, "blank"),
        ({"example": ["\ud800"]}, "example 1 .*surrogate"),
        ({"example": {"x": "a"}}, "tokens"),
        ({"examples": [{"text": "a"}, "b"]}, "example 2 .*object"),
        ({"example": {"text": "a", "id": [1]}}, "id of example 1"),
    ):
        assert_rejected(service, body, match)
    service.parser.limits = Limits(text=10)
    with pytest.raises(TooLarge, match="12 characters"):
        served(service, {"example": ["a" * 12]})


def test_spans(folder):
    service = fitted(folder, write_questions(folder / "questions.jsonl", 8), "span")
    rows = folder / "new-questions.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in question_rows("sea", 5)))
    expected = offline(folder / "span", rows, folder / "offline-answers.jsonl")
    answers = served(service, *({"example": row} for row in question_rows("sea", 5)))
    assert [row["answer"] for row in answers] == [row["answer"] for row in expected]
    assert [row["score"] for row in answers] == pytest.approx([row["score"] for row in expected], abs=1e-5)
    row = question_rows("sea", 1)[0]
    (pair,) = served(service, {"example": [row["question"], row["context"]]})
    assert pair["answer"] == expected[0]["answer"]
    for body, match in (
        ({"example": "what?"}, "example 1 .*question"),
        ({"example": ["what?", ""]}, "blank"),
        ({"example": {"question": "what?"}}, "context"),
        ({"example": {"question": "what?", "context": 3}}, "example 1 .*question"),
    ):
        assert_rejected(service, body, match)


def test_masked_language_models_are_not_served(folder):
    with pytest.raises(BadInput, match="masked"):
        fitted(folder, write_corpus(folder / "corpus.txt", 24), "masked")


@pytest.mark.graph
def test_graphs(folder):
    shapes = folder / "shapes"
    shapes.mkdir()
    for name, first in (("near", 3), ("far", 9)):
        write_zip(shapes / f"{name}.zip", rings_and_stars(16, first=first), tags=lambda g, node: node % 3)
    classifier = DomainClassifier(
        encoder="gin", steps=4, batch=8, device="cpu", settings={"encoder.hidden": 8, "encoder.layers": 2}
    ).fit_dataset(training_data(str(shapes)), folder=folder / "graphs")
    service = Service(folder / "graphs", device="cpu")
    graphs = training_data(str(shapes)).raw.take(np.arange(5))
    bodies = [
        {"id": f"g{i}", "nodes": each.nodes.tolist(), "edges": each.edges.T.tolist()} for i, each in enumerate(graphs)
    ]
    answers = served(service, {"examples": bodies[:2]}, {"examples": bodies[2:]})
    assert [each["id"] for each in answers] == ["g0", "g1", "g2", "g3", "g4"]
    expected = classifier.predict_proba(graphs)
    for each, row in zip(answers, expected, strict=True):
        assert list(each["probabilities"].values()) == pytest.approx(row.tolist(), abs=1e-5)
    width = len(bodies[0]["nodes"][0])
    for body, match in (
        ({"nodes": [[1] * width], "edges": [[0, 1]]}, "nodes 0 to 1 .*1 nodes"),
        ({"nodes": [[1] * (width + 1)], "edges": []}, "nodes of shape"),
        ({"nodes": [[1], [1, 2]], "edges": []}, "example 1 .*nodes"),
        ({"nodes": [["a"]], "edges": []}, "example 1 .*nodes"),
        ({"nodes": [[1] * width], "edges": [[0, 0.5]]}, "example 1 .*edge"),
        ({"nodes": [[1] * width], "edges": [[0, 0]], "weights": [[1.0]]}, "edge features"),
        ({"nodes": 0, "edges": []}, "nodes of shape"),
        ({"nodes": 10**9, "edges": []}, "1000000000 nodes.*20000"),
        ({"nodes": [[1] * width]}, "example 1 .*graph"),
        ([1, 2], "example 1 .*graph"),
    ):
        assert_rejected(service, {"example": body}, match)


@pytest.mark.graph
@pytest.mark.molecules
def test_molecules_are_parsed_from_smiles(folder):
    table = folder / "molecules.csv"
    names = ("CCO", "CCC", "CCN", "c1ccccc1", "CC=O", "CCCC")
    rows = [f"{smiles},{i % 2},{domain}" for domain in "ab" for i, smiles in enumerate(names)]
    table.write_text("\n".join(["smiles,label,domain", *rows]) + "\n")
    small = {"encoder.hidden": 8, "encoder.layers": 2}
    DomainClassifier(encoder="gin", steps=2, batch=4, device="cpu", settings=small).fit_dataset(
        training_data(str(table)), folder=folder / "molecules"
    )
    expected = offline(folder / "molecules", table, folder / "offline-molecules.jsonl")[:6]
    answers = served(Service(folder / "molecules", device="cpu"), {"examples": list(names)})
    assert [each["label"] for each in answers] == [each["label"] for each in expected]
    assert_rejected(Service(folder / "molecules", device="cpu"), {"example": "no molecule"}, "row 1.*'no molecule'")
