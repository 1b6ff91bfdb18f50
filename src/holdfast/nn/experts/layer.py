"""SparseMoE: a feed-forward layer of several experts, each token going to the few that a router chooses for it.

t tokens, k chosen, e experts, d width, h hidden width
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core.errors import BadInput, unknown
from holdfast.core.settings import choice, setting
from holdfast.core.tape import ScopedValue, exporting, is_recording, record
from holdfast.nn.experts.balance import FORMS, importance, weighed
from holdfast.nn.experts.dispatch import Places, place_pairs, room_for, through_all, through_experts
from holdfast.nn.experts.operator import in_a_graph
from holdfast.nn.experts.replayed import forget, replayed
from holdfast.nn.experts.router import CosineRouter, Routing, make_router, route
from holdfast.nn.experts.whole import How, Parts, able, in_one_piece

_real = ScopedValue[Tensor]()


@contextmanager
def exclude_padding(mask: Tensor) -> Iterator[None]:
    """Tokens that are padding (b, t) go through experts as others do, but no loss and no statistic sees them."""
    with _real.bind(mask.bool()):
        yield


@dataclass(frozen=True, kw_only=True)
class ExpertSettings:
    """How experts are chosen and kept in balance; the defaults make a copied layer what it was (Li et al., 2023)."""

    count: int = setting(6, search=choice(2, 4, 6, 8))
    top: int = 2  # experts a token goes to
    renormalise: bool | None = None  # gates of a token add up to one; None: where it goes to several
    router: str = "cosine"  # or linear; random never learns and looks at the place of a token alone
    inner: int = 256  # width in which the cosine is taken
    temperature: float = 0.5
    temperature_learned: bool = True
    noise: float = 1.0  # of the scores in training, in units of 1 / count
    balance: float = setting(0.01, search=choice(0.001, 0.01, 0.1))  # weight of the balance loss
    form: str = "logit"  # or tutel: the load loss as that library has it
    threshold_learns: bool = True  # whether the load loss moves the score that an expert has to reach
    capacity: float = 0.0  # in training an expert takes so many times its even share; 0: all that come
    eval_capacity: float = 0.0  # the same in evaluation, where it lets a batch change predictions
    dropout: float = 0.0  # inside the experts

    def __post_init__(self) -> None:
        if not 1 <= self.top <= self.count:
            raise BadInput(
                f"experts: a token goes to at least 1 and at most all experts, not {self.top} of {self.count}"
            )
        if min(self.noise, self.balance, self.capacity, self.eval_capacity) < 0 or not 0 <= self.dropout < 1:
            raise BadInput("experts: noise, balance, capacity and eval_capacity are not negative, dropout lies below 1")
        if self.form not in FORMS:
            raise unknown("form of the balance loss", self.form, FORMS)

    @property
    def sums_to_one(self) -> bool:
        return self.top > 1 if self.renormalise is None else self.renormalise


class SparseMoE(nn.Module):
    """sum over the k best of g_i(u) E_i(u), E_i(u) = W2_i act(W1_i u + b1_i) + b2_i, for states of any shape (..., d).

    The experts' weights are named and laid out as transformers does it, (e, out, in).
    """

    Settings: ClassVar[type] = ExpertSettings

    def __init__(self, width: int, hidden: int, activation: nn.Module, *, bias: bool = True, **settings: Any) -> None:
        super().__init__()
        self.settings = options = ExpertSettings(**settings)
        self.up_proj = nn.Parameter(torch.empty(options.count, hidden, width).normal_(std=0.02))
        self.up_proj_bias = nn.Parameter(torch.zeros(options.count, hidden)) if bias else None
        self.down_proj = nn.Parameter(torch.empty(options.count, width, hidden).normal_(std=0.02))
        self.down_proj_bias = nn.Parameter(torch.zeros(options.count, width)) if bias else None
        self.router = make_router(
            options.router, width, options.count,
            inner=options.inner, temperature=options.temperature, learned=options.temperature_learned,
        )  # fmt: skip
        self.act_fn = activation

    @property
    def prediction_batch(self) -> tuple[int, int] | None:
        """With a capacity in evaluation others change a prediction: 64 at once, as published, and a seed."""
        return (64, 0) if self.settings.eval_capacity else None

    @classmethod
    def from_feed_forward(cls, up: nn.Linear, down: nn.Linear, activation: nn.Module, options: ExpertSettings) -> Self:
        """All experts copies of one feed-forward network, and a random router; of two biases a missing one is zero."""
        given: tuple[Tensor | None, ...] = up.weight, up.bias, down.weight, down.bias
        bias = given[1] is not None or given[3] is not None
        made = cls(up.in_features, up.out_features, activation, bias=bias, **asdict(options))
        with torch.no_grad():
            for mine, theirs in zip(made._parts(), given, strict=True):
                if mine is not None and theirs is not None:
                    mine.copy_(theirs.expand_as(mine))
        return made.to(up.weight.device)

    @torch.no_grad()
    def to_feed_forward(self) -> tuple[nn.Linear, nn.Linear]:
        """The network that all experts are, while they are still alike."""
        parts = [p for p in self._parts() if p is not None]
        if not self.settings.sums_to_one or not all(torch.equal(p, p[:1].expand_as(p)) for p in parts):
            raise BadInput("these experts differ or their gates do not add up to one: no single network is all of them")
        _, hidden, width = self.up_proj.shape
        up = nn.Linear(width, hidden, bias=self.up_proj_bias is not None)
        down = nn.Linear(hidden, width, bias=self.up_proj_bias is not None)
        plain = [p for p in (up.weight, up.bias, down.weight, down.bias) if p is not None]
        for mine, part in zip(plain, parts, strict=True):
            mine.copy_(part[0])
        return up.to(parts[0].device), down.to(parts[0].device)

    def _parts(self) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
        return self.up_proj, self.up_proj_bias, self.down_proj, self.down_proj_bias

    def forward(self, states: Tensor) -> Tensor:
        options = self.settings
        mask = _real.value
        real = mask.reshape(-1).contiguous() if mask is not None and mask.shape == states.shape[:-1] else None
        factor = options.capacity if self.training else options.eval_capacity
        plain_gelu = _is_gelu(self.act_fn) and not (self.training and options.dropout)
        if plain_gelu and not factor and isinstance(self.router, CosineRouter) and not exporting():
            found = self._at_once(states, self.router, real)
            if found is not None:
                return found
        u = states.reshape(-1, states.shape[-1])  # (t, d)
        dtype = _dtype(u, self.up_proj)
        x, up, down = u.to(dtype), self.up_proj.to(dtype), self.down_proj.to(dtype)
        parts = up, self.up_proj_bias, down, self.down_proj_bias
        # a CPU gains nothing by narrow products, so its scores are the same with and without autocast
        narrow = x.view_as(states) if x.is_cuda and x.dtype == torch.bfloat16 else None
        routing = route(
            self.router,
            states,
            top=options.top,
            renormalise=options.sums_to_one,
            noise=_noise(options, self.training),
            narrow=narrow,
        )
        if exporting() and not self.training and not factor:  # which pairs there are is not known yet
            return through_all(x, routing.gates, routing.chosen, parts, self._between).view_as(states)
        first = room = None
        if factor:
            first = _by_score(routing, real)
            room = room_for(len(u), options.count, top=options.top, factor=factor)
        at = place_pairs(routing.chosen, options.count, first=first, room=room)
        out = through_experts(x, routing.gates, at, parts, F.gelu if plain_gelu else self._between)
        if is_recording():
            self._tell(routing, at, states.shape[:-1], real)
        return out.view_as(states)

    def _at_once(self, states: Tensor, router: CosineRouter, real: Tensor | None) -> Tensor | None:
        """All of it by kernels in one piece, where that can be."""
        u, dtype = states.reshape(-1, states.shape[-1]), _dtype(states, self.up_proj)
        how, project = _how(self.settings, self.training, is_recording()), router.project
        parts = Parts(*self._parts(), project.weight, project.bias, router.directions, router.log_scale)
        if not able(u, dtype, how, parts):
            return None
        again = real is None and self.training == torch.is_grad_enabled()
        if torch.compiler.is_compiling():
            found = in_a_graph(u, dtype, how, parts, real, again=again)
        else:
            found = replayed(u, dtype, how, parts) if again else None
            found = found or in_one_piece(u, dtype, how, parts, real)
        out, loss, said = found
        if is_recording() and self.training:
            tell_load(said.load, said.chosen, real)
            if loss is None or said.losses is None:
                tell_importance(said.scores, real)
            else:
                tell_balance(loss, *said.losses)
        if is_recording():
            tell_choices(said.chosen, said.scores, states.shape[:-1], real)
        return out.view_as(states)

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Weights that move or change their type leave their recording, which would hold a GPU's memory."""
        forget(self.up_proj)
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """Where torch puts other weights in the place of these, it does not while anyone looks at them."""
        if torch.__future__.get_swap_module_params_on_conversion():
            forget(self.up_proj)
        super()._load_from_state_dict(*args, **kwargs)

    def _between(self, hidden: Tensor) -> Tensor:
        return F.dropout(self.act_fn(hidden), self.settings.dropout, self.training)

    def _tell(self, routing: Routing, at: Places, shape: torch.Size, real: Tensor | None) -> None:
        options = self.settings
        if self.training:
            tell_load(at.load(), routing.chosen, real)
        if self.training and options.balance:
            losses = weighed(
                routing, weight=options.balance / 2, sigma=_sigma(options), form=options.form,
                detach=not options.threshold_learns, real=real,
            )  # fmt: skip
            tell_balance(*losses)
        elif self.training:
            tell_importance(routing.clean.detach(), real)
        if at.kept is not None:
            counted = torch.ones_like(at.kept) if real is None else real[at.token]
            tell_dropped((~at.kept & counted).sum() / counted.sum())
        tell_choices(routing.chosen, routing.clean.detach(), shape, real)


def _noise(options: ExpertSettings, training: bool) -> float:
    return options.noise / options.count if training else 0.0


def _sigma(options: ExpertSettings) -> float:
    """Of the step in the load loss, which is smoothed without noise too."""
    return (options.noise or 1.0) / options.count


def _how(options: ExpertSettings, training: bool, told: bool) -> How:
    return How(
        options.top, options.sums_to_one, _noise(options, training), options.balance / 2 if training and told else 0.0,
        _sigma(options), options.form, not options.threshold_learns,
    )  # fmt: skip


def _by_score(routing: Routing, real: Tensor | None) -> Tensor:
    """(t,) tokens, those with the best first choice first, padding last: whoever comes late may find no room."""
    best = routing.noisy.detach().softmax(dim=-1).amax(dim=-1)
    if real is not None:
        best = best.masked_fill(~real, -1.0)
    return best.argsort(descending=True, stable=True)


def _is_gelu(activation: nn.Module) -> bool:
    """Whether it is GELU by the error function, as torch has it."""
    if isinstance(activation, nn.GELU):
        return activation.approximate == "none"
    # the class of transformers, which would take seconds to import
    return type(activation).__name__ == "GELUActivation" and vars(activation).get("act") is F.gelu


def _dtype(u: Tensor, weight: Tensor) -> torch.dtype:
    """As autocast would have it, which does not know grouped products; without it, the type of the weights."""
    kind = u.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def tell_load(shares: Tensor, chosen: Tensor, real: Tensor | None) -> None:
    """Shares (e,) of all pairs; where some tokens are padding, those of the others are counted anew from (t, k)."""
    if real is not None:
        pairs = chosen[..., None] == torch.arange(len(shares), device=chosen.device)
        shares = (pairs & real[:, None, None]).sum((0, 1)) / (chosen.shape[1] * real.sum())
    record("share/experts/load", shares)


def tell_dropped(share: Tensor) -> None:
    """Of the pairs of a token and an expert, those for which the expert had no room."""
    record("share/experts/dropped", share)


def tell_balance(loss: Tensor, first: Tensor, second: Tensor, shares: Tensor) -> None:
    """The weighted loss, then without a gradient the importance and the load loss and shares (e,) of the importance."""
    record("loss/experts", loss)
    record("experts/importance-loss", first)
    record("experts/load-loss", second)
    record("share/experts/importance", shares)


def tell_importance(scores: Tensor, real: Tensor | None) -> None:
    """Where nothing is balanced; scores are (t, e)."""
    amounts = importance(scores, real)
    record("share/experts/importance", amounts / amounts.sum())


def tell_choices(chosen: Tensor, scores: Tensor, shape: torch.Size, real: Tensor | None) -> None:
    """Of tokens in this shape: the experts (t, k), the best first, and scores without noise (t, e)."""
    record("experts/chosen", chosen.view(*shape, -1))
    record("experts/scores", scores.view(*shape, -1))
    if real is not None:
        record("experts/real", real.view(shape))
