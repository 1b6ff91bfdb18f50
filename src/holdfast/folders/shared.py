"""Encoders that members of an average share: each is stored once, loaded once and evaluated once per prediction.

Members with the same frozen encoder differ in neck and head only. The first of them stores the encoder; the others
name it in config.json. An encoder that concatenates others, such as `hybrid`, shares each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.core.checkpoint import load_tensors, state_digest
from holdfast.core.errors import BadInput
from holdfast.core.inputs import Inputs
from holdfast.folders.versions import current_folder
from holdfast.nn.backbones.base import Backbone
from holdfast.nn.engagement import mechanisms
from holdfast.nn.graft.insert import InsertingNeck
from holdfast.nn.model import Model, TiedHead

MEMBERS = "members"  # folder of the further members, named 1, 2, ...
WEIGHTS = "model.safetensors"
BACKBONE = "backbone"  # name of the complete encoder inside a network

Encode = Callable[[Inputs], Tensor]


def member_folder(folder: Path, number: int) -> Path:
    """Return the folder of a member; number 0 is the network in the model folder itself."""
    return folder / MEMBERS / str(number) if number else folder


@dataclass(frozen=True)
class Shared:
    """Encoders of a member that an earlier member of the average stores; 0 is the first one."""

    encoders: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # own name -> member and name there
    preparation: int | None = None  # member that stores the files of the preparation, if they are shared too

    def __bool__(self) -> bool:
        return bool(self.encoders)

    def json(self) -> dict[str, Any]:
        """Return the entry of config.json."""
        return {
            "encoders": {name: list(place) for name, place in self.encoders.items()},
            "preparation": self.preparation,
        }

    @staticmethod
    def read(config: Mapping[str, Any], folder: Path) -> Shared:
        """Return the entry of a configuration; raise TypeError if it is not valid."""
        if "shared" not in config["encoder"]:
            return Shared()
        entry = config["encoder"]["shared"]
        shared = Shared({name: (place[0], place[1]) for name, place in entry["encoders"].items()}, entry["preparation"])
        # a member without the folder of its average lacks the weights of its encoder
        if folder.parent.name != MEMBERS or not (folder.parents[1] / "config.json").is_file():
            fix = "copy the complete folder, or load the average"
            raise BadInput(f"{folder} is a member of an average and its encoder is stored in another folder: {fix}")
        numbers = [number for number, _ in shared.encoders.values()]
        numbers += [] if shared.preparation is None else [shared.preparation]
        # members are loaded in order, so each one may refer to earlier ones only
        earlier = range(int(folder.name))
        if not all(isinstance(n, int) and n in earlier for n in numbers):
            raise TypeError("config.json names a shared encoder that no earlier member stores")
        if not all(isinstance(name, str) for _, name in shared.encoders.values()):
            raise TypeError("config.json has an invalid list of shared encoders")
        return shared

    def folders(self, folder: Path) -> list[Path]:
        """Return the folder of the member and those of the members whose encoders it shares."""
        numbers = {number for number, _ in self.encoders.values()}
        return [folder, *(member_folder(folder.parents[1], number) for number in sorted(numbers))]

    def preparation_folder(self, folder: Path) -> Path:
        """Return the folder with the files of the preparation."""
        home = folder if self.preparation is None else member_folder(folder.parents[1], self.preparation)
        return home / "preparation"

    def own(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors that the member stores itself."""
        # with the dot, `backbone.1` is no prefix of `backbone.10`
        prefixes = tuple(f"{name}." for name in self.encoders)
        return {name: value for name, value in weights.items() if not name.startswith(prefixes)}

    def weights(self, folder: Path, earlier: Sequence[Model]) -> dict[str, Tensor]:
        """Return the tensors of the shared encoders, from the networks that are loaded already or from their files."""
        weights: dict[str, Tensor] = {}
        for part, (number, name) in self.encoders.items():
            if earlier:
                state = earlier[number].state_dict()
            else:
                state, _ = load_tensors(member_folder(folder.parents[1], number) / WEIGHTS)
            # the same encoder may have another name inside the other network, such as in a concatenation
            weights |= {part + key.removeprefix(name): t for key, t in state.items() if key.startswith(f"{name}.")}
        return weights

    def backbone(self, earlier: Sequence[Model]) -> Backbone | None:
        """Return the loaded backbone of an earlier network that has the same encoder; None if it must have its own.

        A backbone that its neck or head may change, or that records what it reads, is used by one network only.
        """
        if self.preparation is None or not earlier:
            return None
        # besides equal weights, nothing may change the backbone or record its reads: one object serves several networks
        other = earlier[self.preparation]
        if (
            not isinstance(other.backbone, Backbone)
            or mechanisms(other.backbone)
            or changes_backbone(other.neck, other.head)
        ):
            return None
        return other.backbone

    def tie(self, model: Model, earlier: Sequence[Model]) -> None:
        """Let the shared encoders of a network use the parameters of earlier networks, which are equal."""
        for part, (number, name) in self.encoders.items() if earlier else ():
            modules = dict(earlier[number].get_submodule(name).named_modules())
            for path, module in model.get_submodule(part).named_modules():
                # references instead of copies: equal parameters exist once in memory, also after a move to a GPU
                for key in module._parameters:
                    module._parameters[key] = modules[path]._parameters[key]


def changes_backbone(neck: nn.Module, head: nn.Module) -> bool:
    """Whether neck or head insert parts into the backbone, or share parameters with it."""
    return isinstance(neck, InsertingNeck) or isinstance(head, TiedHead)


def shared_encoders(models: Sequence[Model]) -> list[Shared]:
    """Return per network the encoders that are equal to one of an earlier network."""
    stored: dict[str, tuple[int, str]] = {}
    shared = []
    for number, model in enumerate(models):
        sources: dict[str, tuple[int, str]] = {}
        for name, part in _encoders(model).items():
            if not (state := part.state_dict()):
                continue
            # the first network with these values stores them; equal encoders of one network do not refer to each other
            first = stored.setdefault(state_digest(state), (number, name))
            if first[0] < number:
                sources[name] = first
        shared.append(Shared(sources, _same_preparation(model, sources, models)))
    return shared


def _encoders(model: Model) -> dict[str, nn.Module]:
    """Map names inside the network to its encoders: the backbone, or those that it concatenates."""
    backbone = model.backbone
    # parts of a concatenation are shared one by one: another member may have only one of them
    if not isinstance(backbone, Backbone) or not (forms := backbone.concatenated()):
        return {BACKBONE: backbone}
    names = {module: name for name, module in backbone.named_modules()}
    return {f"{BACKBONE}.{names[form]}": form for form in forms}


def _same_preparation(model: Model, sources: Mapping[str, tuple[int, str]], models: Sequence[Model]) -> int | None:
    """Return the member with the same encoder, settings and preparation included, or None."""
    number, name = sources.get(BACKBONE, (0, ""))
    own, other = model.backbone, models[number].backbone
    if name != BACKBONE or not isinstance(own, Backbone) or not isinstance(other, Backbone):
        return None
    # equal weights do not imply equal inputs: tokenizer, image size and statistics of columns are compared too
    equal = own.settings == other.settings and own.preparation_key() == other.preparation_key()
    return number if equal and type(own) is type(other) else None


def together(functions: Sequence[Callable[[Encode], Encode]], model: Model) -> Encode:
    """Return a function that encodes a batch once and concatenates what every network computes from the features.

    Each of `functions` returns the function of one network for a given encoder.
    """

    def compute(x: Inputs) -> Tensor:
        # every function receives z in place of an encoder of its own, so that a batch is encoded once
        z = model.encode(x)
        return torch.cat([function(lambda _: z)(x) for function in functions], dim=1)

    return compute


def member_folders(folder: Path, count: int) -> list[Path]:
    """Return the folders of a network and of its `count` further members, in the current version."""
    folder = current_folder(folder)
    return [member_folder(folder, number) for number in range(count + 1)]
