"""A DataFrame is read as a table file with the same content is."""

import numpy as np
import pandas as pd
import pytest

from holdfast.core.errors import BadInput
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
def test_it_is_what_a_file_would_be(tmp_path, name):
    frame = pd.DataFrame(TABLES[name], index=[7, 7, 9])
    frame.to_parquet(tmp_path / "data.parquet", index=False)
    found, wanted = read_frame(frame), read_table(tmp_path / "data.parquet")
    assert found.fingerprint == wanted.fingerprint
    assert (found.classes, found.domains, found.columns) == (wanted.classes, wanted.domains, wanted.columns)
    assert read_frame(frame.astype({"label": "category"})).fingerprint == found.fingerprint


def test_other_columns_are_named_as_for_a_file():
    frame = pd.DataFrame({0: [0.5, 1.5], 1: ["x", "y"], 2: ["p", "q"]})
    found = read_frame(frame, columns={"label": "1", "domain": "2", "features": "0"})
    assert found.raw.take(np.arange(2)).tolist() == [[0.5], [1.5]]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (pd.DataFrame({"text": ["a"], "domain": ["x"]}), "the DataFrame has no label column: it has"),
        (pd.DataFrame({"text": ["a"], "label": ["x"], "domain": ["y"]}).iloc[:0], "has no rows"),
        (
            pd.DataFrame({"a": [1, "two"], "label": [0, 1], "domain": [0, 1]}),
            r"neither all numbers nor .*column a ",
        ),
        (pd.DataFrame({"a": [1, None], "label": [0, 1], "domain": [0, 1]}), "the DataFrame: row 2, column 'a'"),
        (pd.DataFrame([["a", "b", 0, 1]], columns=["text", "text", "label", "domain"]), "two columns called 'text'"),
    ],
)
def test_faults_get_one_sentence(frame, said):
    with pytest.raises(BadInput, match=said):
        read_frame(frame)


def test_features_of_an_estimator_are_not_called_the_same():
    with pytest.raises(BadInput, match="the DataFrame has two columns called 'a': rename one of them"):
        as_raw(pd.DataFrame([[1.0, 2.0]], columns=["a", "a"]))
