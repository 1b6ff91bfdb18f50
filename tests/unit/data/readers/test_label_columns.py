"""Sets of labels in several columns of 0 and 1, or in one column of lists, from files and from memory."""

import json

import pandas as pd
import pyarrow as pa
import pytest

from holdfast.core.errors import BadInput
from holdfast.train.training_data import training_data

ROWS = [("good film", 1, 0), ("bad film", 0, 1), ("odd film", 1, 1), ("no film", 0, 0)] * 3
COLUMNS = {"labels": "happy,sad"}


def frame() -> pd.DataFrame:
    table = pd.DataFrame(ROWS, columns=["text", "happy", "sad"])
    return table.assign(domain=["a", "b", "c"] * 4, label="unused")


def lists() -> pd.DataFrame:
    names = [[name for name, value in (("happy", a), ("sad", b)) if value] for _, a, b in ROWS]
    return frame()[["text", "domain"]].assign(label=names)


def check(data, **options) -> None:
    dataset = training_data(data, task="multilabel", **options)
    assert dataset.classes == ("happy", "sad")
    assert dataset.targets.tolist() == [[a, b] for _, a, b in ROWS]
    assert dataset.raw.kind == "text"
    assert any("3 rows have no label" in note for note in dataset.notes)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_several_columns_in_a_file(tmp_path, suffix):
    path, table = tmp_path / f"films{suffix}", frame()
    if suffix == ".csv":
        table.assign(sad=table["sad"].map({0: "false", 1: "TRUE"})).to_csv(path, index=False)
    elif suffix == ".jsonl":
        table.to_json(path, orient="records", lines=True)
    else:
        table.to_parquet(path)
    check(path, columns=COLUMNS)


def test_several_columns_in_memory():
    check(frame(), columns=COLUMNS)
    check(pa.Table.from_pandas(frame().astype({"happy": bool, "sad": bool})), columns=COLUMNS)


def test_a_column_of_lists(tmp_path):
    check(lists())
    lists().to_parquet(tmp_path / "films.parquet")
    check(tmp_path / "films.parquet")
    lines = [json.dumps(row) for row in lists().to_dict(orient="records")]
    (tmp_path / "films.jsonl").write_text("\n".join(lines) + "\n")
    check(tmp_path / "films.jsonl")


def test_bad_columns_are_named(tmp_path):
    frame().assign(sad=["0"] * 11 + ["maybe"]).to_csv(tmp_path / "films.csv", index=False)
    with pytest.raises(BadInput, match="row 12, column 'sad' is 'maybe', but columns of labels hold 0 or 1"):
        training_data(tmp_path / "films.csv", task="multilabel", columns=COLUMNS)
    with pytest.raises(BadInput, match=r"has no column 'angry'.*fix --column labels=happy,angry"):
        training_data(frame(), task="multilabel", columns={"labels": "happy,angry"})
    with pytest.raises(BadInput, match="both name the labels: remove one of them"):
        training_data(frame(), task="multilabel", columns={"label": "label", **COLUMNS})
    with pytest.raises(BadInput, match=r"contains \| or ;: rename it"):
        training_data(frame().rename(columns={"sad": "sad;low"}), columns={"labels": "happy,sad;low"})
    with pytest.raises(BadInput, match=r"the label 'a\|b', which contains \|: rename it"):
        training_data(lists().assign(label=[["a|b"], ["c"]] * 6), task="multilabel")
