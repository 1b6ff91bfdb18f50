"""Outputs of a network with a batch context: examples are shuffled by seed, independent of the order of a file."""

from functools import partial

import numpy as np
import torch
from torch.testing import assert_close

from holdfast.core.store import TensorStore
from holdfast.data.batches import Examples
from holdfast.methods.erm import ERM
from holdfast.methods.optim import Optimizer, OptimizerSettings
from holdfast.nn.backbones.small import Features
from holdfast.nn.heads import Linear
from holdfast.nn.memory.heterogeneous import HeterogeneousMemory
from holdfast.nn.model import Model
from holdfast.protocols.evaluate import outputs
from holdfast.tasks.classify import Classify


def method(**options) -> ERM:
    torch.manual_seed(0)
    neck = HeterogeneousMemory(6, 2, real=0, slots=2, label_width=2, heads=2, support=8, **options)
    model = Model(Features(inputs=6), neck, Linear(neck.width, 2))
    return ERM(model, task=Classify(), optimizer=partial(Optimizer, OptimizerSettings()))


def test_a_batch_context_predicts_shuffled_batches_of_the_support_size():
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
    examples, rows = Examples(TensorStore(x), torch.zeros(32, dtype=torch.long), ()), np.arange(32)
    sizes = []
    trained = method(context="batch")
    trained.model.neck.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    predictions = outputs(trained, examples, rows)
    assert sizes == [8, 8, 8, 8]
    assert torch.equal(predictions, outputs(trained, examples, rows))
    assert not torch.allclose(predictions, outputs(method(context="batch", shuffle=1), examples, rows), atol=1e-5)
    with torch.no_grad():
        in_order = torch.cat([trained.eval().predict(chunk) for chunk in x.split(8)])
    assert not torch.allclose(predictions, in_order, atol=1e-5)


def test_without_batch_context_batches_are_large():
    x = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
    examples = Examples(TensorStore(x), torch.zeros(32, dtype=torch.long), ())
    sizes, trained = [], method()
    trained.model.neck.register_forward_pre_hook(lambda _, args: sizes.append(len(args[0])))
    predictions = outputs(trained, examples, np.arange(32))
    assert sizes == [32]
    assert_close(predictions[5:9], outputs(trained, examples, np.arange(5, 9)))
