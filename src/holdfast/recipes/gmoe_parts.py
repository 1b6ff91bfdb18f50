"""GMoE (Li et al., ICLR 2023): data, columns and rows that its tables share, and the controls that they lack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.recipes.base import Budget, Cell, Column, Recipe, Row

DEIT_S, DEIT_B = "vit:facebook/deit-small-patch16-224", "vit:facebook/deit-base-patch16-224"
EACH = 32  # images of each training domain in a batch
STEPS, LONG = 5001, 15_001  # the second on DomainNet
SETTINGS = {
    "tune": "full", "optimizer": "adam", "clip": 0.0, "schedule": "constant", "precision": "fp32",
    "augment": "domainbed", "metric": "accuracy",
}  # fmt: skip

DOMAINS = {
    "pacs": ("art", "cartoon", "photo", "sketch"),
    "vlcs": ("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    "office-home": ("art", "clipart", "product", "real"),
    "terra-incognita": ("L100", "L38", "L43", "L46"),
    "domain-net": ("clipart", "infograph", "painting", "quickdraw", "real", "sketch"),
    "sviro": ("aclass", "escape", "hilux", "i3", "lexus", "tesla", "tiguan", "tucson", "x5", "zoe"),
    "camelyon": tuple(f"hospital_{i}" for i in range(5)),
    "fmow": ("Africa", "Americas", "Asia", "Europe", "Oceania", "Other"),
    "cub-dg": ("candy", "mosaic", "natural", "udnie"),
}
LABELS = {
    "pacs": "PACS", "vlcs": "VLCS", "office-home": "OfficeHome", "terra-incognita": "TerraInc",
    "domain-net": "DomainNet", "sviro": "SVIRO", "camelyon": "Camelyon", "fmow": "FMoW",
}  # fmt: skip
RATES = {  # learning rate and weight decay; those of the last four are the released code's
    "pacs": (3e-5, 0.0), "vlcs": (3e-5, 1e-6), "office-home": (1e-5, 1e-6), "terra-incognita": (5e-5, 1e-4),
    "domain-net": (5e-5, 0.0), "sviro": (3e-5, 0.0), "camelyon": (3e-5, 0.0), "fmow": (3e-5, 0.0),
    "cub-dg": (5e-5, 0.0),
}  # fmt: skip
OFTEN = {"domain-net": 500, "camelyon": 100, "fmow": 100}  # steps between validations; 300 elsewhere
NAMES = {"fish": "Fish", "fishr": "Fishr"}  # of rules in print; others are in capitals
METHODS = {"swad": "swad(erm)"}
SHORT = {"clipart": "Clip", "infograph": "Info", "painting": "Paint", "quickdraw": "Quick", "real": "Real",
         "sketch": "Sketch"}  # fmt: skip

TOP = (
    "published: the two best of six experts; the released code takes one, with a capacity of 1.5 in evaluation too, "
    "and the printed 4.8 G multiplications fit one expert a token better than two: gmoe-released is that code"
)
EXTRAS = "the paper tells of no dropout in experts and no stochastic depth; gmoe-released has both, as the code does"
INSIDE = "as in DomainBed, the target's larger share of 80 % is scored; validation rows are not augmented here"
CROPS = (
    "training crops are cut from images already resized to the square, where DomainBed cuts them from the original; "
    "a batch shares the order in which colours are jittered, where DomainBed draws one for each image"
)
BROUGHT = (
    "ImageNet weights of a ResNet are the user's to bring: safetensors with the names of torchvision, as timm's "
    "resnet50.tv_in1k, resnet101.tv_in1k and resnet50.tv2_in1k are; --set encoder.weights=FOLDER/{start}.safetensors "
    "names them all, where {start} is resnet50, resnet101 or resnet50-v2"
)
PLAIN_RATES = (
    "rows with a ResNet have DomainBed's default rate, 5e-5 without weight decay, and the defaults of their rules; "
    "the published ones were searched"
)
GUESSED = "rate and weight decay of SVIRO, Camelyon, FMoW and CUB-DG are not published; here the released code's"

HEAD = {"head.std": 0.02}
FISHR_ON = {"domain-net": {"method.anneal": 0.1}}  # 1,500 steps, which are 0.3 of them elsewhere
EXPERTS = {
    **HEAD, "neck": "experts", "neck.count": 6, "neck.top": 2, "neck.at": "last-two", "neck.router": "cosine",
    "neck.balance": 0.01,
}  # fmt: skip
RELEASED = {
    **EXPERTS, "neck.top": 1, "neck.capacity": 1.5, "neck.eval_capacity": 1.5, "neck.dropout": 0.1,
    "neck.form": "tutel", "encoder.drop_path": 0.1,
}  # fmt: skip
RELEASED_ON = {"pacs": {"weight_decay": 1e-6}}
CONTROLS = {
    "random-routing": (
        "experts by the place of a token, drawn once (control)",
        {**EXPERTS, "neck.router": "random", "neck.noise": 0.0, "neck.balance": 0.0},
    ),
    "same-work": ("one FFN, twice as wide: the active parameters (control)", {**HEAD, "neck": "wide", "neck.times": 2}),
    "same-size": ("one FFN, six times as wide: all parameters (control)", {**HEAD, "neck": "wide", "neck.times": 6}),
}


def means(names: Sequence[str], **other: Any) -> tuple[Column, ...]:
    """One column a data set: the mean over its domains, each left out once."""
    return tuple(
        Column(name=name, label=LABELS[name], data=name, targets=DOMAINS[name], metric="accuracy", **other)
        for name in names
    )


def resnet(
    name: str, label: str, *, method: str = "erm", start: str = "resnet50", over: Mapping[str, Any] | None = None,
    **other: Any,
) -> Row:  # fmt: skip
    """A ResNet with weights that the user brings, under a rule."""
    settings = {"encoder": start.removesuffix("-v2"), "method": method, "lr": 5e-5, "weight_decay": 0.0, **(over or {})}
    asks = {"encoder.weights": f"its weights, {start}, have to be named: --set encoder.weights=FILE.safetensors"}
    return Row(name=name, label=label, settings=settings, start=start, asks=asks, **other)


def resnets(names: Iterable[str], **other: Any) -> tuple[Row, ...]:
    """ResNet-50 under these rules, by their names in print."""
    return tuple(
        resnet(name, f"{NAMES.get(name, name.upper())} (ResNet-50)", method=METHODS.get(name, name), **other)
        for name in names
    )


def vit(
    name: str = "vit", label: str = "ViT-S/16", *, method: str = "erm", over: Mapping[str, Any] | None = None,
    **other: Any,
) -> Row:  # fmt: skip
    """The plain transformer under a rule."""
    return Row(name=name, label=label, settings={"method": method, **HEAD, **(over or {})}, **other)


def gmoe(
    name: str = "gmoe", label: str = "GMoE-S/16", *, method: str = "erm", over: Mapping[str, Any] | None = None,
    **other: Any,
) -> Row:  # fmt: skip
    """Experts in its late layers under a rule."""
    return Row(name=name, label=label, settings={"method": method, **EXPERTS, **(over or {})}, **other)


def controls(
    *, before: str = "", called: str = "", method: str = "erm", over: Mapping[str, Any] | None = None, **other: Any
) -> tuple[Row, ...]:
    """Not printed: routing that knows nothing, parameters without routing, and the released code's settings."""
    start = f"{called}, " if called else ""
    rows = [
        Row(name=f"{before}{name}", label=f"{start}{words}", settings={"method": method, **settings, **(over or {})},
            **other)
        for name, (words, settings) in CONTROLS.items()
    ]  # fmt: skip
    released = {"method": method, **RELEASED, **(over or {})}
    words, on = f"{start}GMoE-S/16 as its code has it", {**other.pop("on", {}), **RELEASED_ON}
    return (*rows, Row(name=f"{before}gmoe-released", label=words, settings=released, on=on, **other))


def recipe(
    name: str,
    cells: tuple[Cell, ...],
    *,
    select: str = "train-validation",
    single: bool = False,
    notes: tuple[str, ...] = (),
    claim: str = "",
    budget: Budget | None = None,
) -> Recipe:
    """With the published rates, steps and batches; `single` trains on one domain alone."""
    budgets = {}
    for data, domains in DOMAINS.items():
        steps, together = LONG if data == "domain-net" else STEPS, 1 if single else len(domains) - 1
        budgets[data] = Budget(steps=steps, batch=EACH * together, every=OFTEN.get(data, 300))
    brought = (BROUGHT, PLAIN_RATES) if any("encoder.weights" in cell.row.asks for cell in cells) else ()
    return Recipe(
        name=name,
        cells=cells,
        encoder=DEIT_S,
        encoder_settings={},
        settings={**SETTINGS, "select": select, **({} if single else {"plan.inside": True})},
        budget=budget or budgets["pacs"],
        budgets={} if budget else budgets,
        data_settings={data: {"lr": lr, "weight_decay": decay} for data, (lr, decay) in RATES.items()},
        claim=claim,
        notes=(*notes, *brought, TOP, EXTRAS, CROPS, *(() if single else (INSIDE,))),
    )
