import torch

from holdfast.core.seeds import process_rng_state, process_rng_streams, seeded, use_process_rng, use_shared_rng


def test_alone_there_is_one_stream():
    with seeded(0):
        expected = torch.rand(3)
    with seeded(0), process_rng_streams(0):
        with use_process_rng():
            first = torch.rand(1)
            with use_shared_rng():
                second = torch.rand(1)
        found = torch.cat([first, second, torch.rand(1)])
        assert process_rng_state() == {}
    assert torch.equal(found, expected)
