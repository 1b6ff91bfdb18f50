"""Model folders written by the first version load and predict the same probabilities."""

import json
from pathlib import Path

import numpy as np
import pytest

from holdfast import DomainClassifier

FOLDERS = Path(__file__).with_name("saved")
EXPECTED = json.loads((FOLDERS / "predictions.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", EXPECTED)
def test_folder_of_the_first_version_predicts_the_same(name):
    classifier = DomainClassifier.from_pretrained(FOLDERS / name)
    probabilities = classifier.predict_proba(EXPECTED[name]["inputs"])
    np.testing.assert_allclose(probabilities, EXPECTED[name]["probabilities"], atol=1e-6)
