"""Networks and tokenizers loaded by transformers: quietly, once per process, and without missing weights.

Functions import transformers, which takes seconds: settings of encoders are read without it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from holdfast.core.errors import BadInput
from holdfast.core.inputs import Tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Stamp = tuple[tuple[str, int, int], ...]  # name, size and modification time per file

# configuration fields for dropout of hidden states and attention; heads and complete layers have other fields
DROPOUTS = (
    "hidden_dropout_prob", "attention_probs_dropout_prob",  # BERT family
    "dropout", "attention_dropout",  # DistilBERT, XLNet
    "embd_pdrop", "resid_pdrop", "attn_pdrop",  # GPT-2
    "embedding_dropout", "mlp_dropout",  # ModernBERT
    "hidden_dropout", "dropout_rate",  # Funnel, T5
)  # fmt: skip


@contextmanager
def quiet() -> Iterator[None]:
    """Disable progress bars and reports of unused weights."""
    from transformers.utils import logging

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
    """Convert every error of these libraries to BadInput, without output and without changing the RNG state."""
    try:
        # a cached load must leave the RNG in the state in which a first one does
        with quiet(), torch.random.fork_rng(devices=[]):
            yield
    except BadInput:
        raise
    except Exception as error:  # these libraries raise almost anything for unexpected files
        cause = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".:")
        raise BadInput(
            f"cannot load the {what} '{name}' ({cause}): give a folder with config.json, "
            "model.safetensors and, for texts, tokenizer.json, or a name on the hub and a connection to it"
        ) from error


def locate(name: str) -> tuple[str, Stamp]:
    """Return the folder or hub name, and a stamp that changes with the files of the folder."""
    path = Path(name).expanduser()
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file())
        return str(path.resolve()), tuple((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in files)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or path.exists():
        raise BadInput(f"folder '{name}' does not exist: give a folder with config.json, or a name on the hub")
    return name, ()


def load_config(name: str, *, what: str) -> Any:
    """Load the configuration only."""
    from transformers import AutoConfig

    place, _ = locate(name)
    with loading(what, name):
        config = AutoConfig.from_pretrained(place, trust_remote_code=False)
    if "use_mask_token" in config.to_dict():
        config.use_mask_token = False  # an unused parameter, which would never be trained
    return config


def load_weights(auto: Any, place: str, config: Any, **options: Any) -> tuple[Any, list[str]]:
    """Load a network in float32 by a class of transformers, and the names of the weights that its files lack."""
    options |= {"trust_remote_code": False, "use_safetensors": True, "output_loading_info": True}
    module, info = auto.from_pretrained(place, config=config, **options)
    return module.float(), sorted(map(str, info["missing_keys"]))


def load_module(name: str, *, what: str) -> PreTrainedModel:
    """Load a new copy of a network with its pretrained weights, in float32."""
    return copy.deepcopy(_module(*locate(name), name, what))


@lru_cache(maxsize=2)
def _module(place: str, stamp: Stamp, name: str, what: str) -> PreTrainedModel:
    from transformers import AutoModel

    return load_network(AutoModel, place, load_config(name, what=what), name, what)


def load_network(auto: Any, place: str, config: Any, name: str, what: str) -> Any:
    """Load a network without a pooling layer by a class of transformers; raise if its files lack weights."""
    with loading(what, name):
        module, missing = load_weights(auto, place, config, **without_pooler(config))
    if missing:
        raise BadInput(f"the weights of '{name}' lack {len(missing)} tensors such as '{missing[0]}'")
    return module


def module_from_config(config: Any) -> PreTrainedModel:
    """Build a randomly initialised network."""
    from transformers import AutoModel

    with quiet():
        return AutoModel.from_config(config, trust_remote_code=False, **without_pooler(config)).float()


def without_pooler(config: Any) -> dict[str, bool]:
    """Keywords that leave out the pooling layer, which is unused and often has no trained weights."""
    from transformers import MODEL_MAPPING

    parameters = inspect.signature(MODEL_MAPPING[type(config)].__init__).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in parameters else {}


def with_dropout(module: PreTrainedModel, share: Any) -> PreTrainedModel:
    """Rebuild a network with another dropout rate for hidden states and attention, and the same weights.

    It is rebuilt because some architectures omit a layer if the rate is 0. The configuration stores the rate, so a
    saved folder builds the same network.
    """
    config: Any = module.config
    names = [name for name in DROPOUTS if isinstance(config.to_dict().get(name), int | float)]
    if not names:
        raise BadInput(f"{type(module).__name__} has no known dropout field: remove encoder.dropout")
    for name in names:
        setattr(config, name, float(share))
    with torch.random.fork_rng(devices=[]):  # the initial weights are discarded and must not advance the RNG
        rebuilt = module_from_config(config)
    rebuilt.load_state_dict(module.state_dict())
    return rebuilt


def load_tokenizer(name: str, *, what: str) -> Any:
    """Load a new copy of a fast tokenizer; without a padding token, as in GPT-2, it pads with its end of text."""
    return copy.deepcopy(_tokenizer(*locate(name), name, what))


@lru_cache(maxsize=4)
def _tokenizer(place: str, stamp: Stamp, name: str, what: str) -> Any:
    from transformers import AutoTokenizer

    with loading(what, name):
        tokenizer = AutoTokenizer.from_pretrained(place, trust_remote_code=False)
    if not tokenizer.is_fast:
        raise BadInput(f"'{name}' has no fast tokenizer: save it with a tokenizer.json")
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # a default for a folder without vocabulary
        raise BadInput(f"'{name}' has no vocabulary: put its tokenizer.json next to config.json")
    if tokenizer.pad_token is None and tokenizer.eos_token is not None:
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so any token works
    return tokenizer


def layer_stack(module: nn.Module) -> nn.ModuleList:
    """Return the transformer layers: the longest list of modules."""
    lists = [part for part in module.modules() if isinstance(part, nn.ModuleList)]
    if not lists:
        raise BadInput(f"{type(module).__name__} has no stack of layers: use tuning full or frozen")
    return max(lists, key=len)


def split_blocks(module: nn.Module) -> list[nn.Module]:
    """Split a transformer into what precedes the layers, each layer, and with the last one the final norm."""
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
    blocks = [before, *([layer] for layer in layers)]
    blocks[-1] = [*blocks[-1], *after]
    return [block[0] if len(block) == 1 else nn.ModuleList(block) for block in blocks]


def check_tokenizer(encoder: Any, longest: int) -> None:
    """Raise an error unless the network has a vector for every token and every position."""
    name, words = encoder.settings["name"], encoder.module.get_input_embeddings().num_embeddings
    if len(encoder.tokenizer) > words:
        counts = f"{len(encoder.tokenizer)} words, but the network only {words}"
        raise BadInput(f"the tokenizer of '{name}' has {counts}: they do not belong together")
    least = encoder.tokenizer.num_special_tokens_to_add(pair=True) + 2
    if encoder.template is not None:
        least = encoder.template.fixed + encoder.template.texts
    if not least <= encoder.length <= longest:
        raise BadInput(f"encoder.length {encoder.length} does not fit '{name}': choose {least} to {longest} tokens")


def check_text_encoder(encoder: Any, states: Callable[[Tokens], Tensor], longest: int) -> None:
    """Raise an error unless a text can be encoded to token states."""
    name, template = encoder.settings["name"], encoder.template
    check_tokenizer(encoder, longest)
    trial: Any = f"a {encoder.tokenizer.mask_token or 'b'}" if template is None else ("a", "b")[: template.texts]
    try:
        with torch.no_grad():
            output = states(encoder.eval().prepare([trial]).take(torch.tensor([0])))
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"'{name}' is not a text encoder: {type(encoder.module).__name__} fails") from error
    if output.dim() != 3 or output.shape[-1] != encoder.width:
        raise BadInput(f"'{name}' is not a text encoder: it returns no state per token")
    encoder.train()


def longest_input(name: str, *, what: str) -> int:
    """Return the maximum number of tokens of a pretrained text encoder."""
    return max_positions(_module(*locate(name), name, what), _tokenizer(*locate(name), name, what))


def max_positions(module: Any, tokenizer: Any) -> int:
    """Return the maximum number of tokens that the network has positions for."""
    longest = min(tokenizer.model_max_length, 1 << 20)
    limit = getattr(module.config, "max_position_embeddings", None)  # also an alias of GPT-2's n_positions
    if limit is not None and limit > 0:  # some networks have -1 for no limit
        longest = min(longest, int(limit))
    for name, part in module.named_modules():
        if name.endswith("position_embeddings") and isinstance(part, nn.Embedding):
            skipped = 0 if part.padding_idx is None else part.padding_idx + 1
            longest = min(longest, part.num_embeddings - skipped)
    return longest
