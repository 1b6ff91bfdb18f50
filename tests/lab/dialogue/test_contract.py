"""Contract of the dialogue encoders."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from holdfast import catalog
from holdfast.core.seeds import seeded
from holdfast.nn.engagement import mechanisms
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck
from lab.dialogue.head import NoHead
from lab.dialogue.respond import Respond
from tests.contract.test_encoders import check_encoder
from tests.contract.test_engagement import check_coverage, check_nulls, stirred
from tests.talks import talks

NAMES = ("dialogue-gru", "dialogue-lstm")


@pytest.mark.parametrize("name", NAMES)
def test_encoder(name, tmp_path):
    dataset, sizes = talks(4), {"embedding": 12, "hidden": 16, "slots": 8}

    def make():
        with seeded(0, "init"):
            return catalog.build("encoders", name, partial(dataset.raw.take, np.arange(8)), options=sizes)

    check_encoder(dataset, make, name, tmp_path)


@pytest.mark.parametrize("name", NAMES)
def test_memory_has_a_null(name):
    dataset, sizes = talks(4), {"embedding": 8, "hidden": 12, "slots": 6}
    encoder = catalog.build("encoders", name, partial(dataset.raw.take, np.arange(12)), options=sizes)
    model = stirred(Model(encoder, NoNeck(2), NoHead(2)))
    x = encoder.prepare(dataset.raw.take(np.arange(12))).take(torch.arange(12))
    words = Respond().predictions(model, x, torch.zeros(12))
    assert words.shape[0] == 12
    assert int((words >= 0).sum()) == int(model(x)[:, 1].sum())  # one per word of the reference
    encoder.grow(3, domain=1)
    assert list(mechanisms(model)) == ["memory"]
    check_coverage(model)
    check_nulls(model, x)
