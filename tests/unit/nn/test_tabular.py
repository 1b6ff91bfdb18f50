"""Encoders of tables."""

import numpy as np
import pandas as pd
import pytest
import torch

from holdfast.core.errors import BadInput
from holdfast.data.readers.in_memory import read_frame
from holdfast.nn.backbones.mixed import Mixed, MixedColumns
from holdfast.nn.backbones.tabular import CATEGORIES, Columns, Tabular, quantile_knots


def rows(**changes):
    rng = np.random.default_rng(0)
    values = {
        "a": rng.exponential(size=60), "b": rng.integers(0, 3, 60), "c": rng.choice(["x", "y", None], 60),
        "label": [0, 1] * 30, "domain": ["p", "q", "r"] * 20,
    }  # fmt: skip
    frame = pd.DataFrame({**values, **changes})
    frame.loc[:4, "a"] = np.nan
    dataset = read_frame(frame)
    return dataset.raw.take(np.arange(60))


TEXTS = [f"the patient {'feels' if i % 2 else 'is'} well on day {i}" for i in range(60)]


def features(encoder, table) -> torch.Tensor:
    return encoder.eval()(encoder.prepare(table).take(torch.arange(len(table)))).detach()


def test_columns_have_known_values():
    table = rows()
    encoder = Columns.build(lambda: table)
    values = features(encoder, table)
    assert values.shape == (60, encoder.width) == (60, 4 + len(encoder.schema[2].categories))
    assert values[:5, 0].tolist() == [0] * 5
    assert values[:, 2].tolist() == [1] * 5 + [0] * 55
    filled = values[5:, 0]
    assert abs(float(filled.mean())) < 0.05
    assert abs(float(filled.std()) - 1) < 0.05
    assert (filled.argsort() == table.numbers[5:, 0].argsort()).all()  # the order of the values stays
    assert values[:, 3:].sum(1).tolist() == [1] * 60


def test_values_outside_of_the_training_range_are_clipped():
    knots, levels = quantile_knots(np.asarray([1.0, 1.0, 2.0, 5.0]))
    assert knots[:3].tolist() == [1, 2, 5]
    assert (levels[3:] == levels[2]).all()
    table = rows()
    encoder = Columns.build(lambda: table)
    x = torch.tensor([[-1e9, 0.0], [1e9, 2.0], [float(table.numbers[5:, 0].max()), 2.0]])
    scores, _ = encoder.scores(x)
    assert scores[1, 0] == scores[2, 0]
    assert scores.isfinite().all()


def test_rare_categories_are_unknown():
    table = rows(c=[f"v{i}" for i in range(30)] * 2)
    encoder = Columns.build(lambda: table.take(list(range(10))))
    unknown = features(encoder, table.take([20]))
    assert unknown[0, 3:].tolist() == [0] * (encoder.width - 3)
    assert len(encoder.schema[2].categories) == 10 < CATEGORIES


@pytest.mark.parametrize("family", [Mixed, MixedColumns])
def test_texts_next_to_columns(family):
    table = rows(note=TEXTS)
    assert table.companion == TEXTS
    encoder = family.build(lambda: table)
    values = features(encoder, table)
    changed = features(encoder, rows(note=TEXTS[::-1]))
    assert torch.equal(values[:, : encoder.table.width], changed[:, : encoder.table.width])
    assert not torch.equal(values, changed)


def test_invalid_settings():
    with pytest.raises(BadInput, match=r"multiple of encoder\.heads"):
        Tabular.Settings(form="transformer", dimension=10)
    table = rows()
    encoder = Columns.build(lambda: table)
    with pytest.raises(BadInput, match="lacks the model's column 'a'"):
        encoder.prepare(rows(a=["u", "v"] * 30))
