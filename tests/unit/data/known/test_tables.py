"""Published tables with columns of several kinds."""

import pandas as pd
import pytest

from holdfast.core.errors import Absent
from holdfast.data.known.base import KnownSet
from holdfast.run.workspace import training_data


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


def test_cars_are_a_regression_on_three_continents(tmp_path):
    continents = ["usa", "europe", "japan"]
    rows = [
        {"mpg": 15 + i / 4, "cylinders": 4 + 2 * (i % 3), "horsepower": None if i == 4 else 70 + i, "model_year": 70,
         "origin": continents[i % 3], "name": f"car number {i}"}
        for i in range(60)
    ]  # fmt: skip
    pd.DataFrame(rows).to_csv(tmp_path / "mpg.csv", index=False)
    dataset = training_data("cars", data_dir=tmp_path)
    assert dataset.task == "regress"
    assert dataset.targets.tolist() == [row["mpg"] for row in rows]
    assert dataset.domains == ("usa", "europe", "japan")
    assert dataset.columns is not None
    assert "name" not in dataset.columns


def test_a_missing_table_names_its_columns_and_its_home(tmp_path):
    with pytest.raises(Absent, match=r"archive\.ics\.uci\.edu/dataset/9.*with the columns mpg, origin"):
        training_data("cars", data_dir=tmp_path)
