import pytest
import torch
from torch import Tensor, nn

from holdfast.core.tape import exporting


class Says(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 10 if exporting() else x


def test_only_an_export_is_one() -> None:
    x = torch.ones(1)
    compiled = torch.compile(Says(), backend="eager")
    exported = torch.export.export(Says(), (x,), strict=False).module()

    assert (Says()(x), compiled(x), exported(x)) == (1, 1, 11)


def test_a_compiler_that_says_it_exports_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = torch.compile(exporting, backend="eager")
    monkeypatch.setattr(torch.compiler, "is_exporting", lambda: True)

    assert exporting()
    assert not compiled()
