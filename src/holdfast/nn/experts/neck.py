"""Experts as a neck, so that `experts+erm` stands beside `erm` in one comparison; features pass as they are.

d width
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from holdfast.nn.backbones.base import Backbone
from holdfast.nn.experts.graft import put_experts
from holdfast.nn.experts.layer import Options


class ExpertsNeck(nn.Module):
    """Puts experts into the layers of the transformer below it, and does nothing itself."""

    def __init__(self, width: int, *, at: str | Sequence[int], options: Options) -> None:
        super().__init__()
        self.width, self.at, self.options, self.attached = width, at, options, False

    def attach(self, backbone: Backbone) -> None:
        if not self.attached:
            put_experts(backbone.stack(), self.options, at=self.at)
            self.attached = True

    def forward(self, z: Tensor) -> Tensor:
        return z


def experts(
    width: int,
    *,
    count: int = 6,
    at: str | Sequence[int] = "last-two",
    top: int = 2,
    renormalise: bool | None = None,
    router: str = "cosine",
    inner: int = 256,
    temperature: float = 0.5,
    temperature_learned: bool = True,
    noise: float = 1.0,
    balance: float = 0.01,
    form: str = "logit",
    threshold_learns: bool = True,
    capacity: float = 0.0,
    eval_capacity: float = 0.0,
    dropout: float = 0.0,
) -> ExpertsNeck:
    """GMoE's layers: what each setting means is said in `Options`."""
    options = Options(
        count=count,
        top=top,
        renormalise=renormalise,
        router=router,
        inner=inner,
        temperature=temperature,
        temperature_learned=temperature_learned,
        noise=noise,
        balance=balance,
        form=form,
        threshold_learns=threshold_learns,
        capacity=capacity,
        eval_capacity=eval_capacity,
        dropout=dropout,
    )
    return ExpertsNeck(width, at=at, options=options)
