import torch

from holdfast.core.seeds import own_chance, own_state, seeded, shared_chance, two_streams


def test_alone_there_is_one_stream():
    with seeded(0):
        expected = torch.rand(3)
    with seeded(0), two_streams(0):
        with own_chance():
            first = torch.rand(1)
            with shared_chance():
                second = torch.rand(1)
        found = torch.cat([first, second, torch.rand(1)])
        assert own_state() == {}
    assert torch.equal(found, expected)
