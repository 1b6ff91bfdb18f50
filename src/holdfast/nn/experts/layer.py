"""SparseMoE: a sparse mixture of experts in place of a feed-forward network.

t tokens, k chosen, e experts, d width, h hidden width
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.accel.fused_experts import Weights, fused_experts
from holdfast.core.errors import BadInput
from holdfast.core.settings import checked_settings, choice, retired_settings, setting
from holdfast.core.tape import ScopedValue, exporting, is_recording, record
from holdfast.nn.experts.router import ROUTERS, CosineRouter, make_router, route
from holdfast.ops.balance import Config, importance, weighted_balance
from holdfast.ops.expert_dispatch import (
    FeedForward,
    apply_all_experts,
    apply_experts,
    by_confidence,
    expert_capacity,
    sort_pairs,
)
from holdfast.ops.routing import GATES, MAX_SCALE, Routing

_mask = ScopedValue[Tensor]()
_shuffle = ScopedValue[torch.Generator]()
BALANCE_RECORDS = ("loss/experts", "experts/importance-loss", "experts/load-loss", "share/experts/importance")


def exclude_padding(mask: Tensor) -> AbstractContextManager[None]:
    """Exclude the tokens where the mask (b, t) is False from losses and statistics; experts still process them."""
    return _mask.bind(mask.bool())


def shuffled_routing(seed: int) -> AbstractContextManager[None]:
    """Exchange choices and gates among the tokens of a pass: a null of routing with the loads of the trained router.

    Padding keeps its own routing. The permutations of all layers and passes inside come from one generator.

    >>> layer = SparseMoE(16, 32, count=4, top=2).eval()
    >>> with shuffled_routing(0):
    ...     out = layer(torch.randn(2, 10, 16))
    """
    return _shuffle.bind(torch.Generator().manual_seed(seed))


@checked_settings
class ExpertSettings:
    """Settings of an expert layer; with the defaults, copied experts compute what the copied network did."""

    count: int = setting(6, least=1, search=choice(2, 4, 6, 8), help="number of experts")
    top: int = setting(2, least=1, help="experts per token")
    gate: str | None = setting(
        None,
        choices=GATES,
        help="preserving: probability over its constant sum; renormalised: over its sum; raw: probability; default: "
        "preserving with several experts per token, else raw",
    )
    router: str = setting(
        "cosine",
        choices=ROUTERS,
        help="cosine or linear; controls: random (fixed scores per position), random-matched (a cosine router that "
        "reads pseudo-random vectors) and hash (fixed scores per hash of the token)",
    )
    inner: int = setting(256, least=1, help="width in which the cosine router compares")
    temperature: float = setting(
        0.2, least=1 / MAX_SCALE, search=choice(0.05, 0.1, 0.2, 0.5),
        help="initial temperature of the cosine router; published: 0.5",
    )  # fmt: skip
    noise: float = setting(
        0.5, least=0, search=choice(0.0, 0.25, 0.5, 1.0),
        help="standard deviation of the noise on training scores, times 1 / count; published: 1",
    )  # fmt: skip
    balance: float = setting(
        0.01, least=0, search=choice(0.001, 0.01, 0.1), help="weight of the mean of importance and load loss"
    )
    form: str = setting(
        "logit", choices=("logit", "tutel"), help="load loss on logits, or as the library tutel computes it"
    )
    capacity: float = setting(
        0.0, least=0, help="pairs per expert in training, in units of an equal share; 0: no limit"
    )
    eval_capacity: float = setting(0.0, least=0, help="capacity in evaluation; predictions then depend on the batch")
    dropout: float = setting(0.0, least=0, below=1, help="dropout inside the experts")
    jitter: float = setting(
        0.0,
        least=0,
        search=choice(0.0, 0.03, 0.1),
        help="standard deviation of the random differences between copied experts, relative to that of a weight",
    )

    retired: ClassVar[Mapping[str, Any]] = retired_settings(
        renormalise=None, temperature_learned=True, threshold_learns=True
    )

    def __post_init__(self) -> None:
        if self.top > self.count:
            raise BadInput(f"experts: `top` must be between 1 and `count` = {self.count}; got {self.top}")

    @property
    def gates(self) -> str:
        """Name of the gate, with the default resolved."""
        return self.gate or ("preserving" if self.top > 1 else "raw")

    @property
    def sigma(self) -> float:
        """Width of the step in the load loss, which is smooth also without noise."""
        return (self.noise or 1.0) / self.count


class SparseMoE(nn.Module):
    """Sparse mixture of experts: sum over the top k experts i of g_i(u) W2_i act(W1_i u + b1_i) + b2_i.

    The input has any shape (..., width), the output the same shape. Further keywords are the fields of
    `ExpertSettings`. Weights are named and laid out as in `transformers`: `up_proj` (e, hidden, width) and `down_proj`
    (e, width, hidden). Inside `holdfast.core.tape.tape()` a training layer records its balance loss as `loss/experts`.

    >>> layer = SparseMoE(16, 32, count=4, top=2)
    >>> layer(torch.randn(2, 10, 16)).shape
    torch.Size([2, 10, 16])
    """

    Settings = ExpertSettings
    mechanism = "experts"
    null_name = "choices and gates shuffled among tokens"
    compares_examples = True  # by balance losses and capacity
    rate_part = must_learn = "experts"
    act_fn: nn.Module
    down_proj: nn.Parameter
    down_proj_bias: nn.Parameter | None
    router: nn.Module
    settings: ExpertSettings
    up_proj: nn.Parameter
    up_proj_bias: nn.Parameter | None

    def __init__(
        self, width: int, hidden: int, activation: nn.Module | None = None, *, bias: bool = True, **settings: Any
    ) -> None:
        super().__init__()
        self.settings = ExpertSettings(**settings)
        count = self.settings.count
        self.up_proj = nn.Parameter(torch.empty(count, hidden, width).normal_(std=0.02))
        self.up_proj_bias = nn.Parameter(torch.zeros(count, hidden)) if bias else None
        self.down_proj = nn.Parameter(torch.empty(count, width, hidden).normal_(std=0.02))
        self.down_proj_bias = nn.Parameter(torch.zeros(count, width)) if bias else None
        self.router = make_router(
            self.settings.router, width, count, inner=self.settings.inner, temperature=self.settings.temperature
        )
        self.act_fn = nn.GELU() if activation is None else activation

    @property
    def prediction_batch(self) -> tuple[int, int] | None:
        """Batch size and seed for predictions that depend on the batch, as with a capacity in evaluation."""
        return (64, 0) if self.settings.eval_capacity else None

    def null(self) -> AbstractContextManager[None]:
        """Context in which choices and gates of all expert layers are shuffled among tokens."""
        return shuffled_routing(0)

    @classmethod
    def from_feed_forward(cls, up: nn.Linear, down: nn.Linear, activation: nn.Module, settings: ExpertSettings) -> Self:
        """Copy one feed-forward network into all experts, with a random router; a single missing bias becomes zero.

        With `jitter` the weights of the copies differ, but their mean is the copied weight.
        """
        sources: tuple[Tensor | None, ...] = up.weight, up.bias, down.weight, down.bias
        bias = sources[1] is not None or sources[3] is not None
        layer = cls(up.in_features, up.out_features, activation, bias=bias, **asdict(settings))
        with torch.no_grad():
            for target, source in zip(layer._experts(), sources, strict=True):
                if target is not None and source is not None:
                    target.copy_(source.expand_as(target))
            for target in (layer.up_proj, layer.down_proj) if settings.jitter else ():
                draws = torch.randn(target.shape)
                target += settings.jitter * float(target.std()) * (draws - draws.mean(dim=0)).to(target)
        return layer.to(up.weight.device)

    def _experts(self) -> FeedForward:
        return self.up_proj, self.up_proj_bias, self.down_proj, self.down_proj_bias

    def forward(self, states: Tensor) -> Tensor:
        settings, bound = self.settings, _mask.value
        mask = bound.reshape(-1).contiguous() if bound is not None and bound.shape == states.shape[:-1] else None
        factor = settings.capacity if self.training else settings.eval_capacity
        u = states.reshape(-1, states.shape[-1])  # (t, d)
        capacity = expert_capacity(len(u), settings.count, top=settings.top, factor=factor) if factor else None
        dropout = settings.dropout if self.training else 0.0
        gelu = _is_exact_gelu(self.act_fn)
        if gelu and not (factor or dropout or exporting()) and _shuffle.value is None:
            out = self._fused(states, mask)
            if out is not None:
                return out
        dtype = _product_dtype(u, self.up_proj)
        x = u.to(dtype)
        weights = self.up_proj.to(dtype), self.up_proj_bias, self.down_proj.to(dtype), self.down_proj_bias
        # narrow products gain nothing on a CPU, so its scores are the same with and without autocast
        narrow = x.view_as(states) if x.is_cuda and x.dtype == torch.bfloat16 else None
        config = self._config()
        routing = route(self.router, states, top=config.top, gate=config.gate, noise=config.noise, narrow=narrow)
        if _shuffle.value is not None:
            routing = _permuted(routing, mask, _shuffle.value)
        if exporting() and not self.training and not factor:  # sizes of groups depend on the data
            return apply_all_experts(x, routing.gates, routing.chosen, weights, self._activation).view_as(states)
        first = by_confidence(routing.noisy, mask) if factor else None
        pairs = sort_pairs(routing.chosen, settings.count, first=first, capacity=capacity)
        out = apply_experts(x, routing.gates, pairs, weights, F.gelu if gelu and not dropout else self._activation)
        if is_recording():
            balance = weighted_balance(routing, config, mask) if config.weight else None
            if pairs.within is not None:
                _record_dropped(pairs.within, None if mask is None else mask[pairs.token])
            load = pairs.load() if self.training else None
            self._record(routing.clean.detach(), routing.chosen, load, balance, states.shape[:-1], mask)
        return out.view_as(states)

    def _fused(self, states: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the output by fused kernels, None where they do not apply."""
        router = self.router
        if not isinstance(router, CosineRouter):
            return None
        project, dtype = router.project, _product_dtype(states, self.up_proj)
        weights = Weights(*self._experts(), project.weight, project.bias, router.directions, router.log_scale)
        result = fused_experts(states.reshape(-1, states.shape[-1]), dtype, self._config(), weights, mask)
        if result is None:
            return None
        out, loss, stats = result
        if is_recording():
            balance = None if loss is None or stats.losses is None else (loss, *stats.losses)
            self._record(stats.scores, stats.chosen, stats.load, balance, states.shape[:-1], mask)
        return out.view_as(states)

    def _activation(self, hidden: Tensor) -> Tensor:
        return F.dropout(self.act_fn(hidden), self.settings.dropout, self.training)

    def _config(self) -> Config:
        options = self.settings
        noise = options.noise / options.count if self.training else 0.0
        weight = options.balance / 2 if self.training and is_recording() else 0.0
        return Config(options.top, options.gates, noise, weight, options.sigma, options.form)

    def _record(
        self, scores: Tensor, chosen: Tensor, load: Tensor | None, balance: tuple[Tensor, ...] | None,
        shape: torch.Size, mask: Tensor | None,
    ) -> None:  # fmt: skip
        """Record choices (t, k), the best first, and clean scores (t, e) for tokens of this shape.

        In training also the load (e,) and either the balance loss with its statistics or the importance.
        """
        if self.training:
            assert load is not None
            if mask is not None:  # shares of the tokens that count
                pairs = chosen[..., None] == torch.arange(len(load), device=chosen.device)
                load = (pairs & mask[:, None, None]).sum((0, 1)) / (chosen.shape[1] * mask.sum())
            record("share/experts/load", load)
            if balance is None:
                amounts = importance(scores, mask)
                record("share/experts/importance", amounts / amounts.sum())
            else:
                for name, value in zip(BALANCE_RECORDS, balance, strict=True):
                    record(name, value)
        else:
            self._record_statistics(scores, chosen, mask)
        record("experts/chosen", chosen.view(*shape, -1))
        record("experts/scores", scores.view(*shape, -1))
        if mask is not None:
            record("experts/real", mask.view(shape))

    def _record_statistics(self, scores: Tensor, chosen: Tensor, mask: Tensor | None) -> None:
        """Record the difference between experts, the effective number of experts, and the spread of scores.

        The difference is that of the weights, relative to their mean; the effective number is exp of the entropy of the
        loads; the spread is the standard deviation of an expert's score over tokens.
        """
        scores, e = scores.detach(), scores.shape[1]
        share = scores.new_ones(len(scores)) if mask is None else mask.to(scores.dtype)
        share = (share / share.sum().clamp_min(1))[:, None]  # (t, 1), sums to one over the tokens that count
        load = ((chosen[..., None] == torch.arange(e, device=chosen.device)).float().mean(dim=1) * share).sum(dim=0)
        deviation = ((scores - (scores * share).sum(dim=0)).square() * share).sum(dim=0).sqrt()
        difference = (_spread_of(self.up_proj.detach()) + _spread_of(self.down_proj.detach())) / 2
        record("stat/experts/difference", difference)
        record("stat/experts/effective", torch.special.entr(load).sum().exp())
        record("stat/experts/spread", deviation.mean())


def _record_dropped(within: Tensor, counted: Tensor | None) -> None:
    """Record the share of the pairs that count which exceed the capacity."""
    counted = torch.ones_like(within) if counted is None else counted
    record("share/experts/dropped", (~within & counted).sum() / counted.sum())


def _spread_of(weight: Tensor) -> Tensor:
    """Return the root mean square distance of matrices (e, ...) from their mean, relative to the norm of the mean."""
    mean = weight.mean(dim=0)
    return (weight - mean).square().sum().div(len(weight)).sqrt() / mean.norm().clamp_min(1e-12)


def _permuted(routing: Routing, mask: Tensor | None, generator: torch.Generator) -> Routing:
    """Assign the routing of every token to a random one; the mask (t,) selects the tokens that take part."""
    tokens = torch.arange(len(routing.chosen)) if mask is None else mask.nonzero().flatten().cpu()
    source = torch.arange(len(routing.chosen))
    source[tokens] = tokens[torch.randperm(len(tokens), generator=generator)]
    source = source.to(routing.chosen.device)
    return Routing(*(x[source] for x in (routing.clean, routing.noisy, routing.chosen, routing.gates)))


def _is_exact_gelu(activation: nn.Module) -> bool:
    """Whether the activation is GELU by the error function."""
    if isinstance(activation, nn.GELU):
        return activation.approximate == "none"
    # compared by name: importing the class from transformers takes seconds
    return type(activation).__name__ == "GELUActivation" and vars(activation).get("act") is F.gelu


def _product_dtype(u: Tensor, weight: Tensor) -> torch.dtype:
    """Return the dtype of products: that of autocast, which does not cover grouped products, else of the weights."""
    kind = u.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
