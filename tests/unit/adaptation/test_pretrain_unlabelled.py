"""Masked-word training on unlabelled texts gives another encoder, or keeps the old one if the loss does not fall."""

from dataclasses import replace

import numpy as np
import pytest

from holdfast.adaptation.pretrain import pretrain_for
from holdfast.core.errors import BadInput
from holdfast.data.synthetic import world
from holdfast.data.unlabelled import add_unlabelled
from holdfast.estimator import DomainClassifier
from tests.tiny import tiny_roberta

DATA = world("text", "vocabulary", domains=3, size=20, classes=2, seed=0)
SOURCES = replace(DATA.subset(np.flatnonzero(DATA.domain < 2)), domains=DATA.domains[:2])
TARGET = replace(DATA.subset(np.flatnonzero(DATA.domain == 2)), domains=DATA.domains, name="target")
BOTH = add_unlabelled(SOURCES, TARGET)
FEW = {"batch": 4, "length": 24, "device": "cpu"}


def test_the_encoder_is_trained_on_the_texts_or_refused(tmp_path):
    start = f"hf:{tiny_roberta(tmp_path / 'start')}"
    encoder, notes = pretrain_for(BOTH, start, tmp_path / "out", steps=25, lr=3e-3, **FEW)
    assert encoder == f"hf:{tmp_path / 'out'}"
    assert "for 25 steps: the loss per masked word of the unlabelled texts changed from" in notes[0]
    model = DomainClassifier("erm", encoder=encoder, steps=2, batch=4, device="cpu").fit_dataset(BOTH)
    assert model.record_.spec["encoder"] == encoder
    kept, notes = pretrain_for(BOTH, start, tmp_path / "refused", steps=2, lr=10.0, **FEW)
    assert kept == start
    assert "was refused" in notes[0]


def test_it_needs_unlabelled_texts(tmp_path):
    with pytest.raises(BadInput, match="needs unlabelled examples: add --unlabelled FILE"):
        pretrain_for(SOURCES, "minilm", tmp_path, steps=2)
    with pytest.raises(BadInput, match="needs texts"):
        pretrain_for(world("vector", "none", domains=2, size=4), "auto", tmp_path, steps=2)
    with pytest.raises(BadInput, match="does not support the task masked"):
        pretrain_for(BOTH, "bilstm", tmp_path, steps=2)
