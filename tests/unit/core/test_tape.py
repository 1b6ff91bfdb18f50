"""The tape of side outputs, scoped values and the export check."""

import threading

import pytest
import torch
from torch import Tensor, nn

from holdfast.core.tape import (
    ScopedValue,
    auxiliary,
    auxiliary_loss,
    collect_shares,
    exporting,
    is_recording,
    mean_shares,
    record,
    tape,
    with_auxiliary,
)  # fmt: skip


def test_values_go_to_the_innermost_tape():
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


def test_auxiliary_loss_sums_losses_only():
    loss = torch.tensor(1.0)
    with tape() as side:
        assert auxiliary(side) is None
        assert auxiliary_loss(side) == 0.0
        assert with_auxiliary(loss, side) is loss
        record("loss/a", torch.tensor(2.0))
        record("loss/b", torch.tensor(0.5))
        record("weights", torch.tensor(9.0))
    assert float(auxiliary(side)) == float(auxiliary_loss(side)) == 2.5
    assert float(with_auxiliary(loss, side)) == 3.5


def test_shares_are_averaged_over_tapes_per_module_and_element():
    with collect_shares() as passes:
        for first in (0.0, 0.5):
            with tape():
                record("share/load", torch.tensor([first, 1 - first]))
                record("share/load", torch.tensor([1.0, 0.0]))
                record("share/dropped", torch.tensor(first))
                record("loss/a", torch.tensor(1.0))
    with tape():
        record("share/load", torch.tensor([0.0, 1.0]))
    means = {name: float(value) for name, value in mean_shares(passes).items()}
    assert means == {"load/0/0": 0.25, "load/0/1": 0.75, "load/1/0": 1.0, "load/1/1": 0.0, "dropped/0": 0.25}
    assert mean_shares([]) == {}


def test_a_scoped_value_is_per_thread_and_restored_after_an_error():
    scoped, in_thread = ScopedValue[str](), []
    with scoped.bind("outer"):
        with scoped.bind("inner"):
            assert scoped.value == "inner"
            other = threading.Thread(target=lambda: in_thread.append(scoped.value))
            other.start()
            other.join()
        assert scoped.value == "outer"
        with pytest.raises(ZeroDivisionError), scoped.bind("failing"):
            raise ZeroDivisionError
        assert scoped.value == "outer"
    assert scoped.value is None
    assert in_thread == [None]


class AddsTenOnExport(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 10 if exporting() else x


def test_exporting_is_true_only_during_an_export() -> None:
    x = torch.ones(1)
    compiled = torch.compile(AddsTenOnExport(), backend="eager")
    exported = torch.export.export(AddsTenOnExport(), (x,), strict=False).module()

    assert (AddsTenOnExport()(x), compiled(x), exported(x)) == (1, 1, 11)


def test_exporting_is_false_while_torch_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(exporting, backend="eager")
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)

    assert exporting()
    assert not compiled()
