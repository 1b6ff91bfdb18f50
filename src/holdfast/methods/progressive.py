"""Progressive memory banks: the network grows for every new domain of a stream.

F fine-tuning only; M memory slots, V words, H hidden units, C a column (Asghar et al., 2020, Table 2)
"""

from collections.abc import Sequence
from typing import Any

from torch import nn

from holdfast.core.errors import BadInput
from holdfast.core.settings import checked_settings, choice, retired_settings, setting
from holdfast.methods.averaging import Wrapper
from holdfast.methods.base import Method, StageInfo
from holdfast.nn.growth import GrowsUnits, GrowsWords, WidenableHead, growable_memories
from holdfast.nn.model import Model
from holdfast.nn.necks import NoNeck

LETTERS = "HCMV"  # in the order of growth


class Progressive(Wrapper):
    """Grow the network at the start of every stage except the first, then train it on that stage's data.

    The optimizer starts every stage without state.
    """

    @checked_settings
    class Settings:
        expand: str = setting("MV", help="letters of what grows: M slots, V words, H hidden units, C column, F nothing")
        slots: int = setting(500, least=1, search=choice(50, 100, 200, 500, 1000), help="memory slots per domain")
        units: int = setting(0, least=0, help="hidden units per domain; 0 for the number of parameters of the slots")
        freeze: str = setting(
            "none", choices=("none", "old", "new"), help="parameters that are frozen in later stages: none, old or new"
        )
        vectors: str | None = setting(None, help="file of word vectors for new words; random without")

        retired = retired_settings(carry=False)

        def __post_init__(self) -> None:
            if not set(self.letters) <= set(LETTERS):
                raise BadInput(f"expand must consist of the letters F, M, V, H and C, such as MV; got '{self.expand}'")
            if self.replaces and self.freeze != "none":
                raise BadInput("expand=H and expand=C replace parameters: do not use them with freeze")

        @property
        def letters(self) -> str:
            return self.expand.upper().replace("F", "").replace("+", "")

        @property
        def replaces(self) -> bool:
            """Whether growth replaces parameters, not only adds some."""
            return bool(set("HC") & set(self.letters))

    saved_attributes = ()
    changes_weights = True

    def __init__(self, method: Method, **settings: Any) -> None:
        super().__init__(method, **settings)
        name, options = type(method).__name__, self.settings
        if options.letters and not method.supports_growth:
            raise BadInput(f"the state of {name} cannot grow with the network: use erm, ewc, replay or agem inside")
        if (options.replaces or options.freeze == "old") and method.supports_growth != "any":
            fix = "leave out H, C and freeze=old, or use erm inside"
            raise BadInput(f"{name} supports added parameters, but not replaced or frozen ones: {fix}")

    @property
    def deployed(self) -> Model:
        return self.method.deployed

    def begin_stage(self, info: StageInfo) -> None:
        if info.index:
            self._update_optimizer(self._grow(info))
        super().begin_stage(info)

    def _grow(self, info: StageInfo) -> list[nn.Parameter]:
        """Grow the network and return the new parameters."""
        new: list[nn.Parameter] = []
        options, budget = self.settings, self._slot_parameters()
        for letter in (letter for letter in LETTERS if letter in options.letters):
            match letter:
                case "H" | "C":
                    new += add_units(self.model, options.units, worth=budget, column=letter == "C")
                case "M":
                    new += add_slots(self.model, options.slots, domain=info.index)
                case "V":
                    new += add_words(self.model, info.words(), vectors=options.vectors)
        return new

    def _slot_parameters(self) -> int:
        """Return the number of parameters of `slots` slots in all memories of the network."""
        total = 0
        for memory in growable_memories(self.model):
            assert isinstance(memory, nn.Module)
            named = memory.named_parameters()
            count = sum(p.numel() for name, p in named if {"keys", "values"} & set(name.split(".")))
            total += round(count / memory.slots * self.settings.slots)
        return total

    def _update_optimizer(self, new: list[nn.Parameter]) -> None:
        """Let the wrapped method train the parameters of this stage, earlier ones first."""
        freeze = self.settings.freeze
        if freeze == "old":
            self.model.requires_grad_(False)
        for parameter in new:
            parameter.requires_grad_(freeze != "new")
        trainable, added = {id(p) for p in self.model.trainable_parameters()}, {id(p) for p in new}
        old = [p for p in self.method.optimizer.parameters if id(p) in trainable and id(p) not in added]
        fresh = [p for p in new if p.requires_grad]
        self.method.optimizer = self.method.make_optimizer([*old, *fresh])


def add_slots(model: Model, slots: int, *, domain: int) -> list[nn.Parameter]:
    """Add `slots` slots to each memory of the network and return the new parameters."""
    memories = list(growable_memories(model))
    if not memories:
        raise BadInput("expand=M needs a memory with slots: use encoder memory-lstm or neck memory, or remove M")
    return [parameter for memory in memories for parameter in memory.grow(slots, domain=domain)]


def add_words(model: Model, words: Sequence[str], *, vectors: str | None) -> list[nn.Parameter]:
    """Add the unknown words to the vocabulary and return the new parameters."""
    if not isinstance(model.backbone, GrowsWords):
        raise BadInput("expand=V needs a growable vocabulary: use encoder memory-lstm or memory-gru, or remove V")
    return model.backbone.grow_words(words, vectors=vectors)


def add_units(model: Model, units: int, *, worth: int, column: bool) -> list[nn.Parameter]:
    """Add hidden units (or, with `units=0`, the number nearest to `worth` parameters); return all new parameters.

    The head adapts: old features keep their weights. With `column` the head is reinitialised.
    """
    backbone = model.backbone
    if not isinstance(model.neck, NoNeck):
        raise BadInput("expand=H and expand=C need a network without a neck: remove H and C, or use neck=none")
    if not isinstance(backbone, GrowsUnits):
        raise BadInput("expand=H and expand=C need the encoder memory-lstm or memory-gru: use one, or remove H and C")
    before = set(model.parameters())
    units = units or backbone.units_for(worth, column=column)
    at = backbone.add_column(units) if column else backbone.widen(units)
    width = model.neck.width = int(backbone.width)  # pyright: ignore[reportArgumentType]
    has_parameters = any(True for _ in model.head.parameters())
    if width != len(at) or (column and has_parameters):
        if not isinstance(model.head, WidenableHead):
            raise BadInput("this head cannot adapt to wider features: use head=linear")
        model.head = model.head.widened(at, width, fresh=column)
    return [parameter for parameter in model.parameters() if parameter not in before]
