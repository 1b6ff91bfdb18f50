"""A DataFrame is read like a table file with the same content."""

import numpy as np
import pandas as pd
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.readers.columns import ReadOptions
from holdfast.data.readers.memory import as_raw, read_frame
from holdfast.data.readers.table import read_table

TABLES = {
    "texts": {
        "review": ["a", "b", "c"],
        "label": ["x", "y", "x"],
        "domain": [3, 1, 1],
        "date": ["2020", "2019", "2018"],
    },
    "numbers": {"b": [1.5, 2, 3], "a": [True, False, True], "label": [1.0, 0.0, 1.0], "domain": ["p", "q", "q"]},
}


@pytest.mark.parametrize("name", TABLES)
def test_frame_equals_a_file(tmp_path, name):
    frame = pd.DataFrame(TABLES[name], index=[7, 7, 9])
    frame.to_parquet(tmp_path / "data.parquet", index=False)
    found, wanted = read_frame(frame), read_table(tmp_path / "data.parquet")
    assert found.fingerprint == wanted.fingerprint
    assert (found.classes, found.domains, found.columns) == (wanted.classes, wanted.domains, wanted.columns)
    assert read_frame(frame.astype({"label": "category"})).fingerprint == found.fingerprint


def test_columns_can_be_named():
    frame = pd.DataFrame({0: [0.5, 1.5], 1: ["x", "y"], 2: ["p", "q"]})
    found = read_frame(frame, ReadOptions(columns={"label": "1", "domain": "2", "features": "0"}))
    assert found.raw.take(np.arange(2)).tolist() == [[0.5], [1.5]]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (pd.DataFrame({"text": ["a"], "domain": ["x"]}), "the DataFrame has no label column: it has"),
        (pd.DataFrame({"text": ["a"], "label": ["x"], "domain": ["y"]}).iloc[:0], "has no rows"),
        (
            pd.DataFrame({"a": [1, "two"], "label": [0, 1], "domain": [0, 1]}),
            r"neither numbers nor .*column a ",
        ),
        (pd.DataFrame({"a": [1, float("inf")], "label": [0, 1], "domain": [0, 1]}), "the DataFrame: row 2, column 'a'"),
        (pd.DataFrame([["a", "b", 0, 1]], columns=["text", "text", "label", "domain"]), "two columns named 'text'"),
    ],
)
def test_invalid_frames_are_rejected(frame, message):
    with pytest.raises(BadInput, match=message):
        read_frame(frame)


def test_duplicate_feature_names_are_rejected():
    with pytest.raises(BadInput, match="two columns named 'a'"):
        as_raw(pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]))
