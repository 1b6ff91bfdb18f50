"""An error for a missing domain column names columns that could be the domain."""

import pandas as pd
import pytest

from holdfast.core.errors import BadInput
from holdfast.data.load import load_data

ROWS = 120


def frame(**columns):
    base = {"x": [i / 7 for i in range(ROWS)], "label": ["n", "p"] * (ROWS // 2)}
    return pd.DataFrame({**base, **columns})


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"kind": list("abcd") * 30, "year": [1990 + i % 6 for i in range(ROWS)]}, ["year", "kind"]),
        ({"kind": list("ab") * 60, "region": list("pqr") * 40, "size": list(range(ROWS))}, ["region", "kind"]),
        ({"state_id": [i % 10 for i in range(ROWS)], "count": [i % 9 for i in range(ROWS)]}, ["state_id"]),
        ({"name": [f"name {i}" for i in range(ROWS)], "same": ["a"] * ROWS, "visit": ["2024-01-01"] * ROWS}, []),
        ({name: list("abc") * 40 for name in "pqrst"}, ["p", "q", "r"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("suffix", ["", ".csv", ".parquet", ".jsonl"])
def test_columns_for_the_domain(tmp_path, columns, names, suffix):
    data = frame(**columns)
    path = tmp_path / f"data{suffix}"
    if suffix == ".csv":
        data.to_csv(path, index=False)
    elif suffix == ".parquet":
        data.to_parquet(path)
    elif suffix:
        data.to_json(path, orient="records", lines=True)
    listing = f", for example --column domain={' or domain='.join(names)}" if names else ""
    with pytest.raises(BadInput) as caught:
        load_data(path if suffix else data)
    assert str(caught.value).endswith(f"; name it with --column domain=NAME{listing}")


def test_named_columns_are_not_suggested():
    data = frame(kind=list("abcd") * 30, group_name=list("xyz") * 40)
    with pytest.raises(BadInput, match=r"domain=NAME, for example --column domain=kind$"):
        load_data(data, columns={"label": "group_name", "ignore": "label"})
