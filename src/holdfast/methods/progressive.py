"""Progressive growth: for every new domain the network gets slots, words, hidden units or a column, then trains on.

F fine-tuning alone; M slots, V words, H hidden units, C a column (Asghar et al., 2020, Table 2)
"""

from __future__ import annotations

from typing import Any

from torch import nn

from holdfast.core.errors import BadInput
from holdfast.methods.averaging import Wrapper
from holdfast.methods.base import Method, StageInfo
from holdfast.methods.optim import Optimizer
from holdfast.nn.growth import add_slots, add_units, add_words, growable_memories
from holdfast.nn.model import Model

LETTERS = "HCMV"  # in the order in which they grow
FREEZE = ("none", "old", "new")


class Progressive(Wrapper):
    """Grow at the beginning of every stage but the first, then train by another rule on that stage's data alone.

    `expand` names what grows by its letters; "" or F nothing. H and C without `units` add as many hidden units as
    `slots` slots have parameters. With `freeze=old` only what was just added learns, with `new` all but that. The
    optimizer begins every stage without a past, or with `carry` keeps what it knows of the parameters of before.
    """

    saved_attributes = ()

    def __init__(
        self,
        method: Method,
        *,
        expand: str = "MV",
        slots: int = 500,
        units: int = 0,
        freeze: str = "none",
        vectors: str | None = None,  # a file of word vectors for new words; at random without
        carry: bool = False,
    ) -> None:
        super().__init__(method)
        self.expand = expand.upper().replace("F", "").replace("+", "")
        if not set(self.expand) <= set(LETTERS):
            raise BadInput(f"expand takes the letters F, M, V, H and C, such as MV, not '{expand}'")
        if freeze not in FREEZE:
            raise BadInput(f"freeze is one of {', '.join(FREEZE)}, not '{freeze}'")
        if slots < 1 or units < 0:
            raise BadInput(f"slots must be at least 1 and units not negative, not {slots} and {units}")
        if self.expand and not method.supports_growth:
            raise BadInput(
                f"progressive(...) cannot grow a network under {type(method).__name__}, whose state does not follow: "
                "use erm, ewc, replay or agem inside"
            )
        replacing = set("HC") & set(self.expand)
        if replacing and (freeze != "none" or carry):
            raise BadInput("hidden units and columns (H, C) replace parameters: they go without freeze and carry")
        if (replacing or freeze == "old") and method.supports_growth != "any":
            raise BadInput(
                f"{type(method).__name__} follows parameters that are added, not those that are replaced or frozen: "
                "leave out H, C and freeze=old, or use erm inside"
            )
        self.slots, self.units, self.freeze, self.vectors, self.carry = slots, units, freeze, vectors, carry

    @property
    def deployed(self) -> Model:
        return self.method.deployed

    def begin_stage(self, info: StageInfo) -> None:
        if info.index:
            self._train(self._grow(info))
        super().begin_stage(info)

    def _grow(self, info: StageInfo) -> list[nn.Parameter]:
        new: list[nn.Parameter] = []
        worth = self._worth()
        for letter in (each for each in LETTERS if each in self.expand):
            match letter:
                case "H" | "C":
                    new += add_units(self.model, self.units, worth=worth, column=letter == "C")
                case "M":
                    new += add_slots(self.model, self.slots, domain=info.index)
                case "V":
                    new += add_words(self.model, info.words(), vectors=self.vectors)
        return new

    def _worth(self) -> int:
        """The parameters of `slots` slots in all memories of the network."""
        found = 0
        for each in growable_memories(self.model):
            assert isinstance(each, nn.Module)
            own = [p for name, p in each.named_parameters() if {"keys", "values"} & set(name.split("."))]
            held = sum(parameter.numel() for parameter in own)
            found += round(held / each.slots * self.slots)
        return found

    @property
    def _optimizer(self) -> Optimizer:
        found: Any = self.method.optimizer
        assert isinstance(found, Optimizer)
        return found

    def _train(self, new: list[nn.Parameter]) -> None:
        """Give the rule an optimizer for what learns from now on, the parameters of before first."""
        if self.freeze == "old":
            self.model.requires_grad_(False)
        for parameter in new:
            parameter.requires_grad_(self.freeze != "new")
        optimizer = self._optimizer
        there = {id(p) for p in self.model.trainable_parameters()}
        added = {id(p) for p in new}
        old = [p for p in optimizer.parameters if id(p) in there and id(p) not in added]
        fresh = [p for p in new if p.requires_grad]
        if self.carry and self.freeze != "old":
            if fresh:
                optimizer.add_parameters(fresh)
        else:
            made: Any = Optimizer(optimizer.settings, [*old, *fresh])
            self.method.optimizer = made
