"""Parsing of request bodies."""

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from holdfast import BadInput
from holdfast.serve.requests import Limits, RequestParser, merge


def read(kind, examples, **more):
    return RequestParser(kind, Limits(), **more).parse(json.dumps({"examples": examples}).encode())


def test_pairs_and_named_columns():
    assert read("text", [["a", "b"]]).examples == [("a", "b")]
    assert read("text", [{"premise": "a", "hypothesis": "b"}]).shape == read("text", [["a", "b"]]).shape
    assert read("text", [{"x": "a"}], columns={"text": "x"}).examples == ["a"]
    assert read("text", [["a", "b"]]).shape != read("text", ["a"]).shape


def test_vectors_from_lists_and_columns():
    plain, rows = read("vector", [[1, 2.5], [0, 1]]), read("vector", [{"x": 1, "z": 2.5}, {"x": 0, "z": 1}])
    np.testing.assert_array_equal(plain.examples, rows.examples)
    assert plain.shape == rows.shape
    assert merge([plain, rows]).data.shape == (4, 2)
    for bad in ([[1], [1, 2]], [[1, "a"]], [[True]], [[1e39]], [{"x": None}], ["a"]):
        with pytest.raises(BadInput):
            read("vector", bad)


def test_vector_columns_are_matched_by_name():
    known = read("vector", [{"z": 2.5, "id": 7, "x": 1}, {"x": 0, "z": 1}], features=("x", "z"))
    np.testing.assert_array_equal(known.examples, [[1, 2.5], [0, 1]])
    with pytest.raises(BadInput, match=r"request .*'z' .*'x', 'w'"):
        read("vector", [{"x": 1, "w": 2}], features=("x", "z"))


def test_images_are_files_in_base64():
    file = io.BytesIO()
    Image.fromarray(np.full((5, 7, 3), 200, dtype=np.uint8)).save(file, "png")
    text = base64.b64encode(file.getvalue()).decode()
    request = read("image", [text, {"image": text}], size=4)
    assert request.examples.shape == (2, 3, 4, 4)
    assert (request.examples == 200).all()
    with pytest.raises(BadInput, match=r"example 1 .*base64"):
        read("image", ["%%"])
    with pytest.raises(BadInput, match=r"example 1 .*image"):
        read("image", [base64.b64encode(b"no image").decode()])
    with pytest.raises(BadInput, match=r"example 1 .*image"):
        read("image", [3])
