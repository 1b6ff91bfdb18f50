"""Networks that transformers loads: quietly, once per process, no weight left to chance, cut into blocks."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils import logging

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens

Stamp = tuple[tuple[str, int, int], ...]


@contextmanager
def quiet() -> Iterator[None]:
    """No loading bars and no reports of weights that are left out on purpose."""
    bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def loading(what: str, name: str) -> Iterator[None]:
    """Whatever these libraries raise becomes one sentence; nothing is said and no chance is drawn."""
    try:
        # a memoised load must not leave the generators elsewhere than a first one does
        with quiet(), torch.random.fork_rng(devices=[]):
            yield
    except BadInput:
        raise
    except Exception as error:  # these libraries raise almost anything for a file that is not what they expect
        said = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
        raise BadInput(
            f"cannot load the {what} '{name}' ({said}): give a folder with config.json, "
            "model.safetensors and, for texts, tokenizer.json, or a name on the hub and a connection to it"
        ) from error


def locate(name: str) -> tuple[str, Stamp]:
    """The folder or the hub name, and what tells one state of the folder from the next."""
    path = Path(name).expanduser()
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file())
        return str(path.resolve()), tuple((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or path.exists():
        raise BadInput(f"there is no folder '{name}': give a folder with config.json, or a name on the hub")
    return name, ()


def load_config(name: str, *, what: str) -> Any:
    """The configuration alone."""
    place, _ = locate(name)
    with loading(what, name):
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
    if "use_mask_token" in config.to_dict():
        config.use_mask_token = False  # a parameter that nothing here would ever train
    return config


def load_module(name: str, *, what: str) -> PreTrainedModel:
    """A network of one's own with the pretrained weights, in float32."""
    return copy.deepcopy(_module(*locate(name), name, what))


@lru_cache(maxsize=2)
def _module(place: str, stamp: Stamp, name: str, what: str) -> PreTrainedModel:
    config = load_config(name, what=what)
    with loading(what, name):
        module, told = AutoModel.from_pretrained(
            place,
            config=config,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            **_without_pooler(config),
        )
    lacking = sorted(map(str, told["missing_keys"]))
    if lacking:
        raise BadInput(f"the weights of '{name}' lack {len(lacking)} tensors such as '{lacking[0]}'")
    return module.float()


def module_from_config(config: Any) -> PreTrainedModel:
    """The same shape with fresh weights."""
    with quiet():
        return AutoModel.from_config(config, trust_remote_code=False, **_without_pooler(config)).float()


def _without_pooler(config: Any) -> dict[str, bool]:
    """Where the class has it, leave out the pooling layer: it is unused and often has no trained weights."""
    cls = MODEL_MAPPING[type(config)]
    takes = inspect.signature(cls.__init__).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in takes else {}


def load_tokenizer(name: str, *, what: str) -> Any:
    """A fast tokenizer of one's own; one without padding, as GPT-2's, pads with its end of text."""
    return copy.deepcopy(_tokenizer(*locate(name), name, what))


@lru_cache(maxsize=4)
def _tokenizer(place: str, stamp: Stamp, name: str, what: str) -> Any:
    with loading(what, name):
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise BadInput(f"'{name}' has no fast tokenizer: save it with a tokenizer.json")
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # made up for a folder without vocabulary
        raise BadInput(f"'{name}' has no vocabulary: put its tokenizer.json beside config.json")
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so what it says is never seen
    return tokenizer


def layer_stack(module: nn.Module) -> nn.ModuleList:
    """The stack of transformer layers: the longest list of modules."""
    found = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    if not found:
        raise BadInput(f"{type(module).__name__} has no stack of layers: use tuning full or frozen")
    return max(found, key=len)


def split_blocks(module: nn.Module) -> list[nn.Module]:
    """What comes before the layers, each layer, and with the last one the norm after them."""
    layers = layer_stack(module)
    inside = {id(part) for part in layers.modules()}
    around = {id(part) for part in module.modules() if layers in part.modules()}
    before, after, passed = [], [], False
    for part in module.modules():
        passed = passed or part is layers
        if id(part) in inside | around or any(part in other.modules() for other in before + after):
            continue
        late = passed and "norm" in type(part).__name__.lower()
        (after if late else before).append(part)
    parts = [before, *([layer] for layer in layers)]
    parts[-1] = [*parts[-1], *after]
    return [part[0] if len(part) == 1 else nn.ModuleList(part) for part in parts]


def check_text_encoder(encoder: Any, states: Callable[[Tokens], Tensor], most: int) -> None:
    """A text goes in and features come out; else one sentence that says why not."""
    name, words = encoder.settings["name"], encoder.module.get_input_embeddings().num_embeddings
    if len(encoder.tokenizer) > words:
        counts = f"{len(encoder.tokenizer)} words, but the network only {words}"
        raise BadInput(f"the tokenizer of '{name}' knows {counts}: they do not belong together")
    least = encoder.tokenizer.num_special_tokens_to_add(pair=True) + 2
    trial: Any = f"a {encoder.tokenizer.mask_token or 'b'}"
    if encoder.template is not None:
        least, trial = encoder.template.fixed + encoder.template.texts, ("a", "b")[: encoder.template.texts]
    if not least <= encoder.length <= most:
        raise BadInput(f"length {encoder.length} does not suit '{name}': choose from {least} to {most} tokens")
    try:
        with torch.no_grad():
            found = states(encoder.eval().prepare([trial]).take(torch.tensor([0])))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"'{name}' is not a text encoder: {type(encoder.module).__name__} fails") from error
    if found.dim() != 3 or found.shape[-1] != encoder.width:
        raise BadInput(f"'{name}' is not a text encoder: it gives no state per token")
    encoder.train()


def max_positions(module: Any, tokenizer: Any) -> int:
    """The most tokens the network has positions for."""
    most = min(tokenizer.model_max_length, 1 << 20)
    told = getattr(module.config, "max_position_embeddings", None)  # GPT-2's n_positions goes by this name too
    if told is not None and told > 0:  # some say -1 where there is no limit
        most = min(most, int(told))
    for name, part in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            skipped = 0 if part.padding_idx is None else part.padding_idx + 1
            most = min(most, part.num_embeddings - skipped)
    return most
