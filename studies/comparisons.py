"""Comparisons of the analysis plan (docs/studies/plan.md): data, rows, settings and learning-rate grids.

A comparison is one entry of `COMPARISONS`. Its data sets are files in one folder, found by their published names (see
`holdfast list datasets`); encoders in the layout of transformers are in the folder `models` next to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.data.dataset import Dataset

Settings = Mapping[str, Any]
Loader = Callable[[Path], "Dataset"]
VALID_ROWS = 500  # validation rows per source domain, where a data set has more
TEST_ROWS = 2000  # scored rows per target, where a data set has more
RATED_ROWS = 2000  # rated sentences per domain
GROUPS = ("method", "encoder", "neck", "head", "plan", "task", "lr")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A system, its null control and its baseline on the same data, with everything that is fixed before the runs.

    `rows` maps names to the settings that differ between rows, with their method; rows that are neither the system nor
    a control are searched only. `datasets` maps names to data sets
    that are trained on separately and averaged, such as folds. `episodes` names the episodes of the plan to run; the
    empty name is the only one.
    """

    system: str  # of the five: MIL, PMB, HMA, G-MAP, GMoE
    title: str
    datasets: Mapping[str, Loader]
    settings: Settings
    rows: Mapping[str, Settings]
    treated: str  # row of the system
    null: str  # row of its null control
    baseline: str = "erm"
    control: str = ""  # row of a further control
    mechanism: str  # key of `RunRecord.engagement`
    rates: tuple[float, ...]
    seeds: int = 8
    search_seeds: int = 1
    unseen: bool = True  # targets are unseen domains, so that the comparison needs headroom
    episodes: tuple[str, ...] = ("",)
    search_episodes: tuple[str, ...] = ()  # default: all episodes
    device: str = "auto"
    seconds: Mapping[str, float] = field(default_factory=dict)  # of a run per row, 15 at once on an H200

    @property
    def metric(self) -> str:
        return str(self.settings["metric"])

    @property
    def final_rows(self) -> tuple[str, ...]:
        """Names of the rows that are compared."""
        return tuple(row for row in self.rows if row in (self.treated, self.null, self.baseline, self.control))

    def row_of(self, spec: Mapping[str, Any]) -> str:
        """Return the only row whose settings a spec has."""
        keys = {key for settings in self.rows.values() for key in settings}
        values = {key: spec_value(spec, key) for key in keys}
        rows = [
            name
            for name, settings in self.rows.items()
            if all(values[key] == settings.get(key, default_of(key)) for key in keys)
        ]
        if len(rows) != 1:
            raise ValueError(f"a record of '{self.title}' belongs to {len(rows)} rows: {values}")
        return rows[0]

    def tiny(self) -> Comparison:
        """Return the comparison with few steps, examples and seeds, as a test of the complete pipeline."""
        datasets = {name: partial(_limited, load) for name, load in self.datasets.items()}
        settings = {**self.settings, "steps": 2, "every": 1, "batch": 2}
        if "encoder.length" in settings:
            settings["encoder.length"] = 24
        few = {"datasets": datasets, "settings": settings, "rates": self.rates[:2], "seeds": 2, "seconds": {}}
        few |= {"search_seeds": 1}
        return replace(self, **few, episodes=self.episodes[:2], search_episodes=self.search_episodes[:1])


def spec_value(spec: Mapping[str, Any], key: str) -> Any:
    """Return a setting of a spec by its dotted name; if it has the default: 1 for a rate, else None."""
    group, dot, name = key.partition(".")
    return spec.get(f"{group}_args", {}).get(name, default_of(key)) if dot and group in GROUPS else spec.get(key)


def default_of(key: str) -> Any:
    """Return the value of a setting that a row does not have."""
    return "none" if key == "neck" else 1.0 if key.startswith("lr.") else None


def _limited(load: Loader, data: Path) -> Dataset:
    """Return at most 12 rows per domain and split."""
    import numpy as np

    dataset = load(data)
    split = np.full(len(dataset), -1) if dataset.split is None else dataset.split
    groups = [
        np.flatnonzero((dataset.domain == d) & (split == s))
        for d in np.unique(dataset.domain)
        for s in np.unique(split)
    ]
    size = 240 if len(groups) == 1 else 12  # folds need training examples of all classes
    chosen = [rows[:: max(1, len(rows) // size)][:size] for rows in groups]
    return dataset.subset(np.sort(np.concatenate(chosen)))


def known(name: str, data: Path) -> Dataset:
    """Load a published data set."""
    from holdfast.data.load import load_data

    return load_data(name, data_dir=data)


def sample(dataset: Dataset, **limits: int) -> Dataset:
    """Keep at most this number of rows per domain and split, drawn with a fixed seed; 0 drops a split."""
    import numpy as np
    import torch

    from holdfast.core.seeds import generator
    from holdfast.data.dataset import SPLITS

    assert dataset.split is not None
    keep = np.ones(len(dataset), dtype=bool)
    for name, limit in limits.items():
        for domain in dataset.domains:
            rows = dataset.rows_of(domain)
            rows = rows[dataset.split[rows] == SPLITS.index(name)]
            order = torch.randperm(len(rows), generator=generator(0, "sample", name, domain)).numpy()
            keep[rows[order[limit:]]] = False
    return dataset.subset(np.flatnonzero(keep))


def sources_and_targets(source: str, targets: Sequence[str], data: Path) -> Dataset:
    """Join the domains of a source set and the test rows of other data sets."""
    from holdfast.data.dataset import join

    scored = [sample(known(name, data), train=0, valid=0, test=TEST_ROWS) for name in targets]
    return join([sample(known(source, data), valid=VALID_ROWS), *scored])


def _pooled(name: str, data: Path) -> Dataset:
    from studies.gmap_data import pooled

    return pooled(name, data)


def rated(data: Path) -> Dataset:
    return known("vader", data).limited(RATED_ROWS)


def _inference_stream(data: Path) -> Dataset:
    """Return SNLI, MNLI and SICK as three domains with splits; MNLI's test rows are development rows.

    SNLI is trained on its development rows, because its training rows are not needed at this scale.
    """
    from holdfast.data.dataset import join

    snli, mnli, sick = (known(name, data).as_one_domain(name) for name in ("snli", "mnli", "sick"))
    return join([
        sample(_divided(snli, "train", "valid", share=0.9), valid=1000, test=TEST_ROWS),
        sample(_divided(mnli, "valid", "test", share=0.5), valid=1000, test=TEST_ROWS),
        sample(sick, test=TEST_ROWS),
    ])  # fmt: skip


def _divided(dataset: Dataset, first: str, second: str, *, share: float) -> Dataset:
    """Turn a share of the validation rows, drawn with a fixed seed, into the split `first`, the rest into `second`."""
    import numpy as np
    import torch

    from holdfast.core.seeds import generator
    from holdfast.data.dataset import SPLITS

    assert dataset.split is not None
    rows, split = np.flatnonzero(dataset.split == SPLITS.index("valid")), dataset.split.copy()
    order = torch.randperm(len(rows), generator=generator(0, "divide", dataset.name)).numpy()
    cut = int(len(rows) * share)
    split[rows[order[:cut]]], split[rows[order[cut:]]] = SPLITS.index(first), SPLITS.index(second)
    return replace(dataset, split=split)


TUNED: Settings = {"tune": "full", "schedule": "linear", "warmup": 0.1, "average": "none"}
ERM: Settings = {"method": "erm", "neck": "none"}
_MIL_ROWS: Mapping[str, Settings] = {
    "erm": ERM,
    "mil": {"method": "mil", "neck": "memory"},
    "untrained": {"method": "mil", "neck": "memory", "method.memory_lr": 0.0},
}
_HMA_ROWS: Mapping[str, Settings] = {
    "erm": ERM,
    "hma": {"method": "hma", "neck": "heterogeneous"},
    "noise-queue": {"method": "hma", "neck": "heterogeneous", "neck.written": False},
    "param-matched": {"method": "erm", "neck": "param-matched"},
}
_INFERENCE = {"": partial(sources_and_targets, "mnli", ("snli", "sick"))}
_SENTIMENT = {"": partial(sources_and_targets, "amazon", ("sst2", "imdb"))}
_CROSS: Settings = {
    **TUNED,
    "plan": "cross-dataset",
    "metric": "macro_f1",
    "batch": 16,
    "every": 100,
    "encoder": "minilm",
}
_FROZEN_SENTIMENT: Settings = {
    **_CROSS, "tune": "frozen", "plan.targets": ["sst2", "imdb"], "encoder.length": 160, "batch": 32, "steps": 300,
}  # fmt: skip
_MEMORY: dict[str, Any] = {
    "system": "MIL", "rows": _MIL_ROWS, "treated": "mil", "null": "untrained", "mechanism": "memory",
}  # fmt: skip
_FROZEN_RATES = (3e-3, 1e-2, 3e-2, 1e-1)
_SMALL, _BASE = (3e-5, 1e-4, 3e-4), (1e-5, 3e-5, 1e-4)  # rates for MiniLM and for an encoder of base size
_QUEUE: dict[str, Any] = {
    "system": "HMA", "rows": _HMA_ROWS, "treated": "hma", "null": "noise-queue", "control": "param-matched",
    "mechanism": "queue",
}  # fmt: skip
_EXPERTS = {"method": "erm", "neck": "experts"}
_STREAM = {"method": "progressive(erm)", "method.expand": "M", "encoder.slots": 500}
_GENERAL: dict[str, Any] = {
    "system": "G-MAP", "treated": "gmap", "null": "own-copy", "baseline": "dapt", "mechanism": "general",
    "unseen": False,
    "rows": {"dapt": {"encoder.strategy": "none"}, "gmap": {}, "own-copy": {"encoder.memory": "own"}},
    "seeds": 15, "search_seeds": 2,
}  # fmt: skip
_FOLDS: Settings = {
    "tune": "full", "plan": "k-fold", "plan.folds": 5, "plan.rotate": True, "plan.valid": 0.15,
    "method": "erm", "encoder": "gmap", "encoder.pooling": "cls", "encoder.length": 256, "batch": 32,
    "head": "dense", "head.dropout": 0.5, "head.layers": 1,
    "optimizer": "adam", "weight_decay": 0.0, "schedule": "linear", "warmup": 0.0, "average": "none", "clip": 1.0,
    "metric": "macro_f1",
}  # fmt: skip


def _folds(encoder: str, general: str, rates: tuple[float, ...], factor: float) -> dict[str, Comparison]:
    """Return the comparisons of G-MAP with the domain models that `studies.gmap_folds pretrain` writes."""
    comparisons = {}
    for task, corpus, steps in (("acl-arc", "cs", 300), ("hyperpartisan", "news", 150)):
        models = {"encoder.general": general, "encoder.domain": f"models/{encoder}-{corpus}-1500"}
        plain, memory = (16, 25) if task == "acl-arc" else (11, 17)
        comparisons[f"gmap-{task}" + ("" if encoder == "minilm" else f"-{encoder}")] = Comparison(
            **_GENERAL, title=f"{task}, five folds, {encoder} after domain pretraining", rates=rates,
            datasets={"": partial(_pooled, task)}, settings={**_FOLDS, **models, "steps": steps, "every": steps // 5},
            seconds={"dapt": factor * plain, "gmap": factor * memory, "own-copy": factor * memory},
        )  # fmt: skip
    return comparisons


COMPARISONS: dict[str, Comparison] = {
    "mil-nli": Comparison(
        **_MEMORY, title="MNLI to SNLI and SICK, MiniLM", datasets=_INFERENCE, rates=_SMALL,
        settings={**_CROSS, "plan.targets": ["snli", "sick"], "encoder.length": 96, "steps": 400},
        seconds={"erm": 30, "untrained": 35, "mil": 75},
    ),
    "mil-sentiment": Comparison(
        **_MEMORY, title="Amazon to SST-2 and IMDB, MiniLM", datasets=_SENTIMENT, rates=_SMALL,
        settings={**_CROSS, "plan.targets": ["sst2", "imdb"], "encoder.length": 160, "steps": 300},
        seconds={"erm": 25, "untrained": 30, "mil": 60},
    ),
    "mil-nli-mpnet": Comparison(
        **_MEMORY, title="MNLI to SNLI and SICK, all-mpnet-base-v2", datasets=_INFERENCE, rates=_BASE, seeds=4,
        settings={
            **_CROSS, "encoder": "hf:models/mpnet", "plan.targets": ["snli", "sick"], "encoder.length": 96,
            "steps": 300,
        },
        seconds={"erm": 75, "untrained": 85, "mil": 190},
    ),
    "mil-sentiment-mpnet": Comparison(
        **_MEMORY, title="Amazon to SST-2 and IMDB, all-mpnet-base-v2", datasets=_SENTIMENT, rates=_BASE,
        settings={
            **_CROSS, "encoder": "hf:models/mpnet", "plan.targets": ["sst2", "imdb"], "encoder.length": 160,
            "steps": 300,
        },
        seconds={"erm": 90, "untrained": 100, "mil": 220},
    ),
    "mil-nli-frozen": Comparison(
        **_MEMORY, title="MNLI to SNLI and SICK, frozen MiniLM", datasets=_INFERENCE, rates=_FROZEN_RATES, device="cpu",
        settings={
            **_CROSS, "tune": "frozen", "plan.targets": ["snli", "sick"], "encoder.length": 96, "batch": 32,
            "steps": 300,
        },
        seconds={"erm": 5, "untrained": 20, "mil": 40},
    ),
    "mil-sentiment-frozen": Comparison(
        **_MEMORY, title="Amazon to SST-2 and IMDB, frozen MiniLM", datasets=_SENTIMENT, rates=_FROZEN_RATES,
        device="cpu", settings=_FROZEN_SENTIMENT,
        seconds={"erm": 5, "untrained": 20, "mil": 40},
    ),
    "hma-rated": Comparison(
        **_QUEUE, title="rated sentences, one domain left out, MiniLM", datasets={"": rated}, rates=_SMALL,
        settings={
            **TUNED, "plan": "leave-one-out", "encoder": "minilm", "encoder.length": 64, "metric": "macro_f1",
            "batch": 16, "steps": 300, "every": 100,
        },
        episodes=("to-tweets", "to-films", "to-products", "to-news"), search_episodes=("to-tweets", "to-news"),
        seconds={"erm": 16, "hma": 28, "noise-queue": 24, "param-matched": 20},
    ),
    "hma-rated-frozen": Comparison(
        **_QUEUE, title="rated sentences, one domain left out, frozen MiniLM", datasets={"": rated},
        rates=_FROZEN_RATES, device="cpu",
        settings={
            **TUNED, "tune": "frozen", "plan": "leave-one-out", "encoder": "minilm", "encoder.length": 64,
            "metric": "macro_f1", "batch": 32, "steps": 300, "every": 100,
        },
        episodes=("to-tweets", "to-films", "to-products", "to-news"), search_episodes=("to-tweets", "to-news"),
        seconds={"erm": 5, "hma": 20, "noise-queue": 15, "param-matched": 8},
    ),
    "hma-sentiment-frozen": Comparison(
        **_QUEUE, title="Amazon to SST-2 and IMDB, frozen MiniLM", datasets=_SENTIMENT, rates=_FROZEN_RATES,
        device="cpu", settings=_FROZEN_SENTIMENT,
        seconds={"erm": 5, "hma": 20, "noise-queue": 15, "param-matched": 8},
    ),
    "hma-size": Comparison(
        **_QUEUE, title="small to large graphs, GIN", rates=(3e-4, 1e-3, 3e-3, 1e-2), seeds=16, device="cpu",
        datasets={name: partial(known, f"{name}@shift=size") for name in ("nci1", "nci109", "proteins", "dd")},
        settings={
            **TUNED, "plan": "given", "encoder": "gin", "encoder.layers": 3, "encoder.hidden": 32,
            "encoder.pooling": "max", "encoder.dropout": 0.3, "metric": "mcc", "optimizer": "adam", "weight_decay": 0.0,
            "clip": 1.0, "batch": 16, "steps": 600, "every": 150,
        },
        seconds={"erm": 15, "hma": 35, "noise-queue": 30, "param-matched": 18},
    ),
    "gmoe-pacs": Comparison(
        system="GMoE", title="PACS, one style left out, ViT-S/14", datasets={"": partial(known, "pacs")},
        rates=(3e-6, 1e-5, 3e-5, 1e-4),
        rows={
            "erm": ERM, "gmoe": {**_EXPERTS, "lr.experts": 10.0},
            "random-matched": {**_EXPERTS, "neck.router": "random-matched", "lr.experts": 10.0},
            "gmoe-x1": {**_EXPERTS, "lr.experts": 1.0},
            "random-matched-x1": {**_EXPERTS, "neck.router": "random-matched", "lr.experts": 1.0},
        },
        treated="gmoe", null="random-matched", mechanism="experts",
        settings={
            **TUNED, "plan": "leave-one-out", "plan.inside": True, "encoder": "vit:models/dino", "encoder.size": 112,
            "metric": "accuracy", "batch": 32, "augment": "domainbed", "steps": 300, "every": 100,
        },
        episodes=("to-art", "to-cartoon", "to-photo", "to-sketch"), search_episodes=("to-art", "to-sketch"),
        seconds={"erm": 50, "gmoe": 60, "random-matched": 60, "gmoe-x1": 60, "random-matched-x1": 60},
    ),
    "pmb-stream": Comparison(
        system="PMB", title="stream SNLI, MNLI, SICK, memory LSTM with GloVe", datasets={"": _inference_stream},
        rows={
            "erm": {"method": "progressive(erm)", "method.expand": "F", "encoder.slots": 0},
            "grown": _STREAM,
            "frozen-slots": {**_STREAM, "method.freeze": "new"},
        },
        treated="grown", null="frozen-slots", mechanism="memory", rates=(1e-4, 3e-4, 1e-3, 3e-3, 1e-2),
        settings={
            **TUNED, "plan": "stream", "plan.order": ["snli", "mnli", "sick"], "select": "current-domain",
            "encoder": "memory-lstm", "encoder.embedding": 100, "encoder.vectors": "glove-100d-20k.npz",
            "optimizer": "adam", "weight_decay": 0.0, "clip": 5.0, "metric": "accuracy", "batch": 32, "steps": 400,
            "every": 100,
        },
        seconds={"erm": 50, "grown": 100, "frozen-slots": 100},
    ),
    **_folds("minilm", "minilm", (5e-5, 1e-4, 2e-4, 4e-4), 1.0),
    **_folds("mpnet", "models/mpnet", (1e-5, 3e-5, 1e-4), 4.0),
}  # fmt: skip
