"""A second network over the same tokens, whose states another one uses; frozen, it is in no state and shared by copies.

b batch, t tokens, l layers, d width
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens
from holdfast.nn.backbones.pretrained import (
    Stamp,
    layer_stack,
    load_config,
    load_module,
    locate,
    module_from_config,
    quiet,
)
from holdfast.nn.backbones.words import read_vectors

WHAT = "general model"
FOLDER = "general"  # where it lies in a model folder


@runtime_checkable
class Companion(Protocol):
    """What a text encoder may have beside its network: it calls `run` and says what the token states are."""

    width: int
    settings: dict[str, Any]

    def __call__(self, run: Callable[[], Tensor], x: Tokens) -> Tensor:
        """(b, t, width) states of the tokens; `run` gives those (b, t, d) of the encoder's own network."""
        ...

    def learned(self) -> nn.Module:
        """What of it always learns with the last layers."""
        ...

    def save(self, folder: Path) -> None: ...


class FrozenModule:
    """A frozen network, apart from all that learns, is averaged or is kept of a run; copies of a model share it."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module.requires_grad_(False).eval()
        self.digest = _digest(module)
        self.cached: dict[Any, Tensor] = {}  # (l, t, d) states by layers and tokens
        self.bytes = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class GeneralEncoder(nn.Module):
    """A network that gives the states of its layers, 1 to `depth`; frozen, or learning with the one that uses them.

    Layer 0 is what goes into the first.
    `cache` is how many MiB of a frozen network's states are kept in memory. With it every text is computed by itself,
    once while there is room, so that nothing depends on which batch came first.
    """

    def __init__(self, module: nn.Module | FrozenModule, *, cache: int = 0) -> None:
        super().__init__()
        self.frozen = module if isinstance(module, FrozenModule) else None
        self.own: Any = None if isinstance(module, FrozenModule) else module
        if cache < 0 or (cache and self.frozen is None):
            raise BadInput("encoder.cache is a number of MiB, 0 for none; only the states of a frozen network are kept")
        self.cache = cache * 2**20
        inner: Any = self.module
        self.width, self.depth = int(inner.config.hidden_size), len(layer_stack(inner))
        segments = int(inner.config.to_dict().get("type_vocab_size", 0))
        self._typed = segments > 1 and "token_type_ids" in inspect.signature(inner.forward).parameters

    @classmethod
    def build(cls, name: str, *, frozen: bool, cache: int = 0) -> Self:
        """From a folder or a hub name."""
        return cls(_held(*locate(name), name) if frozen else load_module(name, what=WHAT), cache=cache)

    @classmethod
    def untrained(cls, name: str, *, frozen: bool, cache: int = 0) -> Self:
        """The same shape with fresh weights, drawn now: what its states are good for when it knows nothing."""
        made = module_from_config(load_config(name, what=WHAT))
        return cls(FrozenModule(made) if frozen else made, cache=cache)

    @classmethod
    def load(cls, folder: Path, *, frozen: bool) -> Self:
        """From a model folder: with its weights where it is frozen, else bare, since the model file has them."""
        place = str(folder / FOLDER)
        return cls.build(place, frozen=True) if frozen else cls(module_from_config(load_config(place, what=WHAT)))

    def save(self, folder: Path) -> None:
        inner: Any = self.module
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        if self.frozen is None:
            inner.config.save_pretrained(folder / FOLDER)
            return
        with quiet():
            inner.save_pretrained(folder / FOLDER)

    @property
    def module(self) -> nn.Module:
        found = self.own if self.frozen is None else self.frozen.module
        assert found is not None
        return found

    @property
    def digest(self) -> str:
        """A hash of the weights of a frozen one; one that learns has its weights in the state of the model."""
        return "" if self.frozen is None else self.frozen.digest

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        if self.frozen is not None:
            self.frozen.module._apply(fn)
        return self

    def states(self, x: Tokens, layers: Sequence[int]) -> list[Tensor]:
        """(b, t, d) after each of these layers, in their order."""
        if self.frozen is None:
            return self._run(x, layers)
        self.frozen.module.to(x.ids.device)  # another model that shares it may have taken it elsewhere
        with torch.no_grad():  # not inference_mode: the domain's projections keep these states for their gradient
            return self._kept(self.frozen, x, tuple(layers)) if self.cache else self._run(x, layers)

    def _run(self, x: Tokens, layers: Sequence[int]) -> list[Tensor]:
        typed = {"token_type_ids": x.types} if x.types is not None and self._typed else {}
        last = set(layers) == {self.depth}
        found = self.module(input_ids=x.ids, attention_mask=x.mask.long(), output_hidden_states=not last, **typed)
        return [found.last_hidden_state if i == self.depth else found.hidden_states[i] for i in layers]

    def _kept(self, held: FrozenModule, x: Tokens, layers: tuple[int, ...]) -> list[Tensor]:
        (b, t), device = x.ids.shape, x.ids.device
        cast = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        ids, types, sizes = x.ids.cpu(), None if x.types is None else x.types.cpu(), x.mask.sum(1).tolist()
        texts: list[Tensor] = []
        for i, n in enumerate(sizes):
            words = ids[i, :n].numpy().tobytes(), b"" if types is None else types[i, :n].numpy().tobytes()
            key = (layers, str(device), cast, words)
            found = held.cached.get(key)
            if found is None:
                row = slice(i, i + 1), slice(n)
                alone = Tokens(x.ids[row], x.mask[row], None if x.types is None else x.types[row])
                found = torch.cat(self._run(alone, layers))  # (l, n, d)
                if cast is not None:
                    found = found.to(cast)
                if held.bytes + found.nbytes <= self.cache:
                    held.cached[key] = found
                    held.bytes += found.nbytes
            texts.append(found)
        whole = texts[0].new_zeros(len(layers), b, t, self.width)
        for i, found in enumerate(texts):
            whole[:, i, : found.shape[1]] = found
        return list(whole)


@lru_cache(maxsize=1)  # the runs of a comparison share it
def _held(place: str, stamp: Stamp, name: str) -> FrozenModule:
    return FrozenModule(load_module(name, what=WHAT))


def _digest(module: nn.Module) -> str:
    found = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        found.update(f"{name}{tuple(value.shape)}".encode())
        found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


class Likeness:
    """Fixed vectors of words; words that have none are left out, and a text without any is like nothing, 0."""

    def __init__(self, vectors: dict[str, np.ndarray], name: str) -> None:
        self.name = name  # tells one file from another
        self.index = {word: i for i, word in enumerate(vectors)}
        self.rows = np.stack(list(vectors.values())).astype(np.float32)  # (n, d)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # nothing changes it, so copies of a network share it

    def ids(self, words: Sequence[str]) -> list[int]:
        """The numbers of those words that have a vector."""
        return [self.index[word] for word in words if word in self.index]

    def cosines(self, first: Sequence[Sequence[int]], second: Sequence[Sequence[int]]) -> np.ndarray:
        """(b,) of texts given as the numbers of their words."""
        a, b = (np.stack([self._mean(text) for text in texts]) for texts in (first, second))
        sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        return np.where(sizes > 0, (a * b).sum(1) / np.where(sizes > 0, sizes, 1.0), 0.0)

    def _mean(self, text: Sequence[int]) -> np.ndarray:
        return self.rows[list(text)].mean(0) if len(text) else np.zeros(self.rows.shape[1], dtype=np.float32)


def load_likeness(path: str | Path) -> Likeness:
    """From a file of word vectors, as `word_vectors` reads them, of any width."""
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"there is no file of word vectors at {path}")
    stamp = path.stat()
    return _load(path, f"{path.name}/{stamp.st_size}/{stamp.st_mtime_ns}")


@lru_cache(maxsize=1)  # a run builds its encoder twice
def _load(path: Path, name: str) -> Likeness:
    found = read_vectors(path, None, None)
    if not found:
        raise BadInput(f"{path} holds no word vectors")
    return Likeness(found, name)
