"""G-MAP (Wan et al., EMNLP 2022): checkpoints, columns and rows that its tables share, and the controls they lack."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.recipes.base import Budget, Column, Row

GENERAL = "roberta-base"
FIELDS = {field: f"allenai/{field}_roberta_base" for field in ("biomed", "cs", "news", "reviews")}
CLEAN = "acl-arc@leaks=drop"  # the same without what is scored and trained on too

# by data set: the field of its checkpoint, what the checkpoints of its own texts are called, label, metric
SETS = {
    "chemprot": ("biomed", "chemprot_4169", "CP", "micro_f1"),
    "rct": ("biomed", "rct_180K", "RCT", "micro_f1"),
    "acl-arc": ("cs", "citation_intent_1688", "CI", "macro_f1"),
    CLEAN: ("cs", "citation_intent_1688", "CI, without leaks", "macro_f1"),
    "scierc": ("cs", "sciie_3219", "SE", "macro_f1"),
    "hyperpartisan": ("news", "hyperpartisan_news_515", "HP", "macro_f1"),
    "ag-news": ("news", "ag_115K", "AG", "macro_f1"),
    "helpfulness": ("reviews", "amazon_helpfulness_115K", "AM", "macro_f1"),
    "imdb": ("reviews", "imdb_20000", "IMDB", "macro_f1"),
}
LENGTH = {"ag-news": 384, "helpfulness": 512, "imdb": 512}  # tokens; of the others 256
BUDGETS = {
    "chemprot": Budget(epochs=14, batch=72),
    "rct": Budget(epochs=4, batch=64),
    "acl-arc": Budget(epochs=15, batch=32),
    CLEAN: Budget(epochs=15, batch=32),
    "scierc": Budget(epochs=15, batch=32),
    "hyperpartisan": Budget(epochs=12, batch=32),
    "ag-news": Budget(epochs=5, batch=64),
    "helpfulness": Budget(epochs=6, batch=64),
    "imdb": Budget(epochs=15, batch=64),
}
SETTINGS = {
    "tune": "full", "head": "dense", "head.dropout": 0.5, "optimizer": "adam", "lr": 4e-5, "weight_decay": 0.0,
    "schedule": "linear", "clip": 1.0, "metric": "macro_f1",
}  # fmt: skip
EIGHT = tuple(
    Column(
        name="acl-arc-clean" if data == CLEAN else data, label=label, data=data, targets=(data.partition("@")[0],),
        plan="given", metric=metric,
    )
    for data, (_, _, label, metric) in SETS.items()
)  # fmt: skip
FIVE = EIGHT[:5]  # of biology and computer science, the leaks apart
DATA_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    data: {
        "metric": metric,
        "head.layers": 2 if data in ("ag-news", "imdb") else 1,
        **({"plan.valid": 5000 / 120_000} if data == "ag-news" else {}),
    }
    for data, (_, _, _, metric) in SETS.items()
}
STARTS = {
    "dapt": {data: {"encoder.domain": FIELDS[field]} for data, (field, *_) in SETS.items()},
    "tapt": {data: {"encoder.domain": f"allenai/dsp_roberta_base_tapt_{own}"} for data, (_, own, *_) in SETS.items()},
    "dapt+tapt": {
        data: {"encoder.domain": f"allenai/dsp_roberta_base_dapt_{field}_tapt_{own}"}
        for data, (field, own, *_) in SETS.items()
    },
}
ENCODER = {
    data: {"encoder.general": GENERAL, "encoder.pooling": "cls", "encoder.length": LENGTH.get(data, 256)}
    for data in SETS
}

OWN_MODELS = (
    "with other models: --set encoder.general=... --set encoder.domain=FOLDER/{start}-{data}, where {start} is dapt, "
    "tapt or dapt+tapt and {data} the data set; holdfast pretrain makes such folders"
)
LEAKS = (
    "52 of the 139 test texts of ACL-ARC are in its training rows too, and 43 of the 114 that validate; the column "
    "without leaks leaves them out and was not published"
)
SMALL = "Hyperpartisan has 65 test texts and ACL-ARC 139, so their differences are of one to three texts"
DRAWN = "the split of Hyperpartisan is drawn by a seed of its own, hyperpartisan@seed=0: it is not the published one"
DROPOUT = "where the dropout of 0.5 stood is not told; here it is that of the head, and the encoder has its own, 0.1"
TWO_LAYERS = "two layers in the head for AGNews and IMDB as in the table of settings; the text has IMDB alone"
CLASSIFYING = (OWN_MODELS, LEAKS, SMALL, DRAWN, DROPOUT, TWO_LAYERS)


NONE = {"encoder.strategy": "none"}  # nothing is read
BESIDE = {"encoder.strategy": "beside", "head": "fusion"}  # both networks to their end


def row(name: str, label: str, given: Mapping[str, Any] | None = None, *, start: str = "dapt") -> Row:
    """A row of the encoder gmap, with its defaults the published network."""
    return Row(name=name, label=label, settings={"encoder": "gmap", "method": "erm", **(given or {})}, start=start)


FINE_TUNING = row("fine-tuning", "Fine-Tuning", {**NONE, "encoder.mix": 1.0})  # all weights are the general model's
DAPT = row("dapt", "DAPT", NONE)
LOGITS = row("logits-fusion", "Logits Fusion", BESIDE)
ENSEMBLE = row(
    "ensemble",
    "Ensemble LMs",
    {**BESIDE, "encoder.frozen": False, "head.shared": False, "head.add": "probabilities"},
)
GMAP = row("gmap", "G-MAP")


def controls(called: str = "G-MAP", *, before: str = "", start: str = "dapt") -> tuple[Row, ...]:
    """Not printed: the same layers read a copy of themselves, another text, or a network that knows nothing."""
    kinds = {
        "own-copy": ("memory of the domain's own frozen copy", "own"),
        "other-text": ("memory of another text", "other"),
        "random-general": ("memory of a random network", "random"),
    }
    return tuple(
        row(f"{before}{name}", f"{called}, {words} (control)", {"encoder.memory": memory}, start=start)
        for name, (words, memory) in kinds.items()
    )


def interpolated() -> tuple[Row, ...]:
    """Not printed, though released: the network begins between the two models and reads nothing."""
    return tuple(
        row(
            f"mix-{share}",
            f"{share} of the general weights, {1 - share:.1f} of DAPT's (control)",
            {**NONE, "encoder.mix": share},
        )
        for share in (0.1, 0.3, 0.7, 0.9)
    )
