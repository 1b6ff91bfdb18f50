"""Random number generators: named seeds, restored global state, and the single stream of one process."""

import torch

from holdfast.core.seeds import (
    derive,
    generator,
    process_rng_state,
    process_rng_streams,
    seeded,
    use_process_rng,
    use_shared_rng,
)  # fmt: skip


def test_named_generators_are_independent_and_repeatable():
    assert derive(0, "split") == derive(0, "split")
    assert len({derive(s, n) for s in range(5) for n in ("split", "init", "batches")}) == 15
    a, b = generator(3, "batches"), generator(3, "batches")
    assert torch.equal(torch.rand(4, generator=a), torch.rand(4, generator=b))


def test_seeded_restores_the_global_rng():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with seeded(5, "init"):
        inside = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), state)
    with seeded(5, "init"):
        assert torch.equal(torch.rand(2), inside)


def test_a_single_process_has_one_stream():
    with seeded(0):
        expected = torch.rand(3)
    with seeded(0), process_rng_streams(0):
        with use_process_rng():
            first = torch.rand(1)
            with use_shared_rng():
                second = torch.rand(1)
        drawn = torch.cat([first, second, torch.rand(1)])
        assert process_rng_state() == {}
    assert torch.equal(drawn, expected)
