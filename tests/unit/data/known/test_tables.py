"""Published tables with columns of several kinds."""

import pandas as pd

from holdfast.data.known.base import KnownSet


def test_heart_disease_has_two_classes_and_four_hospitals(tmp_path):
    hospitals = ["Cleveland", "Hungary", "Switzerland", "VA Long Beach"]
    rows = [
        {"id": i, "age": 40 + i % 7, "chol": None if i % 3 else 200 + i % 9, "sex": ["Male", "Female"][i % 2],
         "hospital": hospitals[i % 4], "num": i // 4 % 5}
        for i in range(40)
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "heart_disease_uci.csv", index=False)
    dataset = KnownSet.of("heart-disease").load_reader()(data_dir=tmp_path)
    assert dataset.classes == ("healthy", "disease")
    assert dataset.domains == ("cleveland", "hungary", "switzerland", "va-long-beach")
    assert dataset.y.tolist() == [int(row["num"] > 0) for row in rows]
    assert dataset.columns == ("age", "chol", "sex")
    assert dataset.raw.kind == "table"
