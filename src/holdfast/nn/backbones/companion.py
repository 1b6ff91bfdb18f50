"""A second text encoder whose token states another encoder uses, as the general model of G-MAP.

A frozen one is not part of the state dict and is shared by all copies of a model.

Shapes: b batch, t tokens, l layers, d width.
"""

import hashlib
import inspect
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.core.tape import ScopedValue
from holdfast.nn.backbones import pretrained

WHAT = "general model"
FOLDER = "general"  # inside a model folder
_exchanged = ScopedValue[bool]()


@runtime_checkable
class Companion(Protocol):
    """A part next to a text encoder: it calls the encoder's network and decides the token states."""

    width: int
    settings: dict[str, Any]

    # (b, t, width) token states; `run` returns those (b, t, d) of the encoder's network
    def __call__(self, run: Callable[[], Tensor], x: Tokens) -> Tensor: ...

    # submodules that are always trained together with the last layers
    def learned(self) -> nn.Module: ...

    def save(self, folder: Path) -> None: ...


class FrozenModule:
    """A frozen network outside of the state dict, with a cache of its states; copies of a model share it."""

    digest: str
    module: nn.Module

    def __init__(self, module: nn.Module) -> None:
        self.module = module.requires_grad_(False).eval()
        self.digest = _digest(module)
        self.cached: dict[Any, Tensor] = {}  # (l, t, d) states by layers and tokens
        self.bytes = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class GeneralEncoder(nn.Module):
    """Hidden states of the layers 1 to `depth` of a transformer, frozen or trained; layer 0 is the embedding.

    `cache` is the memory in MiB for states of a frozen network. With a cache every text is encoded separately, and
    once while there is room, so that results do not depend on the order of batches.
    """

    mechanism = "general"
    null_name = "states of another text of the batch"
    cache: int
    depth: int
    frozen: FrozenModule | None
    width: int

    def __init__(self, module: nn.Module | FrozenModule, *, cache: int = 0) -> None:
        super().__init__()
        self.frozen = module if isinstance(module, FrozenModule) else None
        self.own: Any = None if isinstance(module, FrozenModule) else module
        if cache < 0 or (cache and self.frozen is None):
            raise BadInput(f"encoder.cache must be at least 0 MiB, and 0 unless encoder.frozen=true; got {cache}")
        self.cache = cache * 2**20
        inner: Any = self.module
        self.width, self.depth = int(inner.config.hidden_size), len(pretrained.layer_stack(inner))
        segments = int(inner.config.to_dict().get("type_vocab_size", 0))
        self._typed = segments > 1 and "token_type_ids" in inspect.signature(inner.forward).parameters

    @classmethod
    def build(cls, name: str, *, frozen: bool, cache: int = 0) -> Self:
        """Load a folder or a hub name."""
        module = _shared(*pretrained.locate(name), name) if frozen else pretrained.load_module(name, what=WHAT)
        return cls(module, cache=cache)

    @classmethod
    def untrained(cls, name: str, *, frozen: bool, cache: int = 0) -> Self:
        """Build the architecture with random weights, as a control."""
        module = pretrained.module_from_config(pretrained.load_config(name, what=WHAT))
        return cls(FrozenModule(module) if frozen else module, cache=cache)

    @classmethod
    def load(cls, folder: Path, *, frozen: bool) -> Self:
        """Load from a model folder; a trained network gets its weights later, from the model file."""
        return (cls.build if frozen else cls.untrained)(str(folder / FOLDER), frozen=frozen)

    def save(self, folder: Path) -> None:
        inner: Any = self.module
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        if self.frozen is None:
            inner.config.save_pretrained(folder / FOLDER)
            return
        with pretrained.quiet():
            inner.save_pretrained(folder / FOLDER)

    @property
    def module(self) -> nn.Module:
        return self.own if self.frozen is None else self.frozen.module

    @property
    def digest(self) -> str:
        """Hash of the weights of a frozen network, empty for a trained one."""
        return "" if self.frozen is None else self.frozen.digest

    def check_width(self, width: int) -> None:
        """Raise an error unless the network that reads the states has the same width."""
        if self.width != width:
            raise BadInput(f"the general model has width {self.width}, the domain model {width}: use equal widths")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if self.frozen is not None:
            self.frozen.module._apply(fn)
        return self

    def null(self) -> AbstractContextManager[None]:
        """Context in which every text is read as the previous text of the batch."""
        return _exchanged.bind(True)

    def text_read(self, x: Tokens) -> Tokens:
        """Return the texts whose states are read: these, or with the null each one's predecessor in the batch."""
        if not _exchanged.value:
            return x
        return Tokens(x.ids.roll(1, 0), x.mask.roll(1, 0), None if x.types is None else x.types.roll(1, 0))

    def states(self, x: Tokens, layers: Sequence[int]) -> list[Tensor]:
        """(b, t, d) states after each of these layers, in their order."""
        if self.frozen is None:
            return self._run(x, layers)
        if next(self.frozen.module.parameters()).device != x.ids.device:
            self.frozen.module.to(x.ids.device)  # another model that shares it may have moved it
        with torch.no_grad():  # not inference_mode: the reading layers save these states for their backward pass
            return self._cached_states(self.frozen, x, tuple(layers)) if self.cache else self._run(x, layers)

    def _run(self, x: Tokens, layers: Sequence[int]) -> list[Tensor]:
        typed = {"token_type_ids": x.types} if x.types is not None and self._typed else {}
        last = set(layers) == {self.depth}
        output = self.module(input_ids=x.ids, attention_mask=x.mask.long(), output_hidden_states=not last, **typed)
        return [output.last_hidden_state if i == self.depth else output.hidden_states[i] for i in layers]

    def _cached_states(self, frozen: FrozenModule, x: Tokens, layers: tuple[int, ...]) -> list[Tensor]:
        (b, t), device = x.ids.shape, x.ids.device
        dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        ids, types, sizes = x.ids.cpu(), None if x.types is None else x.types.cpu(), x.mask.cpu().sum(1).tolist()
        texts: list[Tensor] = []
        for i, n in enumerate(sizes):
            tokens = ids[i, :n].numpy().tobytes(), b"" if types is None else types[i, :n].numpy().tobytes()
            key = (layers, str(device), dtype, tokens)
            states = frozen.cached.get(key)
            if states is None:
                row = slice(i, i + 1), slice(n)
                text = Tokens(x.ids[row], x.mask[row], None if x.types is None else x.types[row])
                states = torch.cat(self._run(text, layers))  # (l, n, d)
                if dtype is not None:
                    states = states.to(dtype)
                if frozen.bytes + states.nbytes <= self.cache:
                    frozen.cached[key] = states
                    frozen.bytes += states.nbytes
            texts.append(states)
        padded = texts[0].new_zeros(len(layers), b, t, self.width)
        torch._foreach_copy_([padded[:, i, : states.shape[1]] for i, states in enumerate(texts)], texts)
        return list(padded)


@lru_cache(maxsize=1)  # shared by the runs of a comparison
def _shared(place: str, stamp: pretrained.Stamp, name: str) -> FrozenModule:
    return FrozenModule(pretrained.load_module(name, what=WHAT))


def _digest(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(f"{name}{tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
