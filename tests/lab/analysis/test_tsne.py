"""Projections by t-SNE."""

from __future__ import annotations

import numpy as np
import pytest

from lab.analysis.tsne import panels
from tests.unit.analysis.test_projection import views


@pytest.mark.slow
def test_tsne_separates_the_target():
    result = panels(views(n=60), seed=0)
    assert result is not None
    assert result["how"] == "tsne"
    panel = result["panels"]["backbone"]
    assert panel["variance"] is None
    assert len(panel["target"]["x"]) == 60
    near = np.array([panel["target"]["x"], panel["target"]["y"]]).T
    far = np.array([panel["sources"]["x"], panel["sources"]["y"]]).T
    middle = near.mean(axis=0)  # the target is one cluster without sources
    assert np.linalg.norm(far - middle, axis=1).min() > np.median(np.linalg.norm(near - middle, axis=1))
