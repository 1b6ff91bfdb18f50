import torch

from holdfast.core.seeds import derive, generator, rng_state, seeded, set_rng_state
from holdfast.core.tape import auxiliary, collect_shares, is_recording, mean_shares, record, tape


def test_nothing_is_kept_without_a_tape_and_an_inner_tape_hides_the_outer():
    record("loss/a", torch.tensor(1.0))
    assert not is_recording()
    with tape() as outer:
        assert is_recording()
        record("loss/a", torch.tensor(2.0))
        with tape() as inner:
            record("loss/a", torch.tensor(3.0))
        record("weights", torch.tensor(9.0))
    assert [float(v) for v in outer["loss/a"]] == [2.0]
    assert [float(v) for v in inner["loss/a"]] == [3.0]


def test_auxiliary_sums_losses_alone():
    with tape() as side:
        assert auxiliary(side) is None
        record("loss/a", torch.tensor(2.0))
        record("loss/b", torch.tensor(0.5))
        record("weights", torch.tensor(9.0))
    assert float(auxiliary(side)) == 2.5


def test_shares_of_all_tapes_are_told_as_their_mean_by_module_and_place():
    with collect_shares() as heard:
        for first in (0.0, 0.5):
            with tape():
                record("share/load", torch.tensor([first, 1 - first]))
                record("share/load", torch.tensor([1.0, 0.0]))
                record("share/dropped", torch.tensor(first))
                record("loss/a", torch.tensor(1.0))
    with tape():
        record("share/load", torch.tensor([0.0, 1.0]))
    found = {name: float(value) for name, value in mean_shares(heard).items()}
    assert found == {"load/0/0": 0.25, "load/0/1": 0.75, "load/1/0": 1.0, "load/1/1": 0.0, "dropped/0": 0.25}
    assert mean_shares([]) == {}


def test_named_generators_are_apart_and_repeatable():
    assert derive(0, "split") == derive(0, "split")
    assert len({derive(s, n) for s in range(5) for n in ("split", "init", "batches")}) == 15
    a, b = generator(3, "batches"), generator(3, "batches")
    assert torch.equal(torch.rand(4, generator=a), torch.rand(4, generator=b))


def test_seeded_puts_chance_back():
    torch.manual_seed(1)
    state = torch.get_rng_state()
    with seeded(5, "init"):
        inside = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), state)
    with seeded(5, "init"):
        assert torch.equal(torch.rand(2), inside)


def test_chance_state_round_trips():
    state = rng_state()
    first = torch.rand(3)
    set_rng_state(state)
    assert torch.equal(torch.rand(3), first)
