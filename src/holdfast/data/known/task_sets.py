"""Texts to classify in four fields, the tasks of adaptive pretraining (Gururangan et al., 2020), brought as tables."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.data.known.published import Published, Spellings

_HOME = "https://github.com/allenai/dont-stop-pretraining"


def _names(*names: str) -> Spellings:
    """Labels that files write in one way alone, but for capitals."""
    return dict.fromkeys(names, ())


def _set(
    name: str,
    labels: Spellings,
    sizes: Mapping[str, int],
    *stems: str,
    home: str = _HOME,
    cut: bool = False,
    leaky: bool = False,
) -> Published:
    return Published(
        name=name, home=home, stems=stems, labels=labels, domains={name: ()}, sizes={name: sizes}, cut=cut, leaky=leaky
    )


CHEMPROT = _set(
    "chemprot",
    _names(
        "activator", "agonist", "agonist-activator", "agonist-inhibitor", "antagonist", "downregulator",
        "indirect-downregulator", "indirect-upregulator", "inhibitor", "product-of", "substrate",
        "substrate_product-of", "upregulator",
    ),
    {"train": 4169, "valid": 2427, "test": 3469},
)  # fmt: skip
RCT = _set(
    "rct",
    {
        "background": (), "objective": (), "methods": ("method",), "results": ("result",),
        "conclusions": ("conclusion",),
    },
    {"train": 180_040, "valid": 30_212, "test": 30_135},
    "rct-180k", "rct_180k", "rct-20k",
)  # fmt: skip
ACL_ARC = _set(
    "acl-arc",
    _names("background", "compareorcontrast", "extends", "future", "motivation", "uses"),
    {"train": 1688, "valid": 114, "test": 139},
    "acl_arc", "citation_intent",
    leaky=True,
)  # fmt: skip
SCIERC = _set(
    "scierc",
    _names("compare", "conjunction", "evaluate-for", "feature-of", "hyponym-of", "part-of", "used-for"),
    {"train": 3219, "valid": 455, "test": 974},
    "scierc_relation", "sciie",
)  # fmt: skip
CSABSTRUCT = _set(
    "csabstruct",
    _names("background", "method", "objective", "other", "result"),
    {"train": 11_333, "valid": 2026, "test": 1349},
    home="https://github.com/allenai/sequential_sentence_classification",
)
HYPERPARTISAN = _set(
    "hyperpartisan",
    {"false": ("0",), "true": ("1",)},
    {"train": 515, "valid": 65, "test": 65},
    "hyperpartisan_news",
    home="https://zenodo.org/record/1489920",
    cut=True,
)
AG_NEWS = _set(
    "ag-news",
    {"business": (), "sci/tech": ("sci_tech", "science"), "sports": (), "world": ()},
    {"train": 115_000, "valid": 5000, "test": 7600},
    "ag_news", "agnews", "ag",
)  # fmt: skip
HELPFULNESS = _set(
    "helpfulness",
    {"helpful": (), "unhelpful": ("not helpful",)},
    {"train": 115_251, "valid": 5000, "test": 25_000},
    "amazon_helpfulness",
)
