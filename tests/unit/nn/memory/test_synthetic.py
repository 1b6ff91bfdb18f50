"""Learned slots per class: initialisation, labels and similarity."""

import pytest
import torch
from torch.testing import assert_close

from holdfast.nn.memory.queue import SyntheticMemory


def test_initial_slots_and_labels():
    torch.manual_seed(0)
    memory = SyntheticMemory(4, 50, 30)
    assert memory.values.shape == (200, 30)
    assert float(memory.values.detach().std()) == pytest.approx(0.02, rel=0.05)
    assert memory.labels.tolist() == [i // 50 for i in range(200)]
    assert set(memory.state_dict()) == {"values", "labels"}  # labels are saved with the weights
    assert not SyntheticMemory(4, 2, 3, start="zeros").values.any()


def test_slot_similarity_is_the_mean_cosine_of_pairs():
    memory = SyntheticMemory(2, 3, 4)
    expected = []
    for rows in memory.values.detach().split(3):
        pairs = [torch.cosine_similarity(rows[i], rows[j], dim=0) for i in range(3) for j in range(3) if i != j]
        expected.append(torch.stack(pairs).mean())
    assert_close(memory.slot_similarity(), torch.stack(expected))
    with torch.no_grad():
        memory.values[:3] = torch.tensor([1.0, 2.0, 0.0, -1.0])
    assert_close(memory.slot_similarity()[0], torch.tensor(1.0))
    assert_close(SyntheticMemory(2, 3, 4, start="zeros").slot_similarity(), torch.ones(2))
