"""The context that all runs on one data set share: examples, features, encoders and episodes, each computed once.

n rows, d width
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast import catalog
from holdfast.core import parallel
from holdfast.core.checkpoint import state_digest
from holdfast.core.errors import BadInput, check_known
from holdfast.core.files import cache_folder
from holdfast.core.inputs import spans
from holdfast.core.stopping import Deadline, stop_if_requested
from holdfast.core.store import StateStore, Store, TokenStore
from holdfast.data.batches import Examples, prepare
from holdfast.data.cache import cached_features, uncached_rows
from holdfast.data.dataset import Dataset
from holdfast.data.raw import Subset
from holdfast.data.readers.columns import listed
from holdfast.data.sampling import nested_order, sample_sizes
from holdfast.data.splits import rows_by_domain
from holdfast.data.unlabelled import unlabelled_parts
from holdfast.defaults import FEW_DOMAINS, FEWEST_ENCODED
from holdfast.nn.backbones.base import Backbone, LearnedPreparation
from holdfast.spec import Spec
from holdfast.tasks.base import Augmenting, Prepared, Structured, Task
from holdfast.train.plan import Episode, NoKnownClass, pool_tests, score_known_classes

STATE_BYTES = 6 << 30  # of states of tokens in memory; above, they are computed in every step

OnEncoding = Callable[[int, int], None]  # (encoded examples, all examples)


@dataclass
class Workspace:
    """One data set on one device, with the folder of its runs and everything that these runs share."""

    dataset: Dataset
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    cache: Path | None = field(default_factory=cache_folder)  # None: compute frozen features in every step
    out: Path | None = None  # folder of records and checkpoints
    analyse: tuple[str, ...] = ()  # analyses of every run
    keep_outputs: bool = False  # store the outputs of every run, from which combinations are computed
    keep_states: bool = False  # store the trained state of every run, for a model without another training
    weight_limits: dict[str, int] = field(default_factory=dict)  # method -> bytes of the weights that a run may store
    on_encoding: OnEncoding | None = None
    notes: list[str] = field(default_factory=list)  # remarks of `resolve`, for the report
    identical: dict[str, str] = field(default_factory=dict)  # method that is not run -> the one it is identical to
    worker: WorkerState | None = None  # set in the copy that a worker process receives
    stores: dict[str, Store] = field(default_factory=dict)
    newest: str = ""  # key of the store whose preparation was learned last
    features: dict[Backbone, Tensor] = field(default_factory=dict)
    states: dict[str, Tensor] = field(default_factory=dict)  # of tokens, end to end
    encoding_seconds: dict[int, float] = field(default_factory=dict)  # by number of rows, of those not in the cache
    encoders: dict[str, Backbone] = field(default_factory=dict)
    structured: dict[tuple[str, str], Prepared] = field(default_factory=dict)
    macs: dict[str, int | None] = field(default_factory=dict)
    plans: dict[str, list[Episode]] = field(default_factory=dict)
    complete: Workspace | None = None  # of a sample: all examples, whose cached features the sample reads
    deadline: Deadline = field(default_factory=Deadline)  # at which the runs stop
    sizes: tuple[int, ...] = ()  # numbers of rows of nested samples, in ascending order; features are cached in parts
    order: np.ndarray | None = None  # (n,) all rows, of which the first ones are a sample
    samples: dict[int, Workspace] = field(default_factory=dict)  # by number of rows

    def sampled(self, rows: int) -> Workspace:
        """Return the workspace of a stratified sample of the rows; `self` for 0, or for all rows."""
        if not rows or rows >= len(self.dataset):
            return self
        if rows not in self.samples:
            chosen = np.sort(self._nested_order()[:rows])
            shared = {"encoders": self.encoders, "macs": self.macs, "weight_limits": self.weight_limits}
            self.samples[rows] = replace(
                self, dataset=self.dataset.subset(chosen), complete=self, samples={}, order=None, stores={}, newest="",
                features={}, states={}, structured={}, plans={}, **shared,
            )  # fmt: skip
        return self.samples[rows]

    def _nested_order(self) -> np.ndarray:
        if self.order is None:
            self.order = nested_order(self.dataset)
        return self.order

    def _feature_groups(self) -> list[np.ndarray]:
        """Return groups of rows whose features share a file: domains, each in parts that samples have in common."""
        groups = [self.dataset.rows_of(name) for name in self.dataset.domains]
        whole = self.complete or self
        sizes = sample_sizes(len(whole.dataset), FEWEST_ENCODED)  # among them are those of larger first samples
        if len(sizes) < 2:
            return groups
        place = np.empty(len(whole.dataset), dtype=np.int64)
        place[whole._nested_order()] = np.arange(len(place))
        own = np.arange(len(place)) if whole is self else np.sort(whole._nested_order()[: len(self.dataset)])
        part = np.searchsorted(sizes, place[own], side="right")  # (n,) the smallest sample with the row
        pieces = [rows[part[rows] == i] for i in range(len(sizes) + 1) for rows in groups]
        return [rows for rows in pieces if len(rows)]

    def episodes(self, spec: Spec) -> list[Episode]:
        """Return the episodes of the spec's plan on its rows; equal plans and seeds are generated once."""
        if (own := self.sampled(spec.rows)) is not self:
            return own.episodes(replace(spec, rows=0))
        key = _plan_key(spec)
        if key not in self.plans:
            options = {name: tuple(v) if isinstance(v, list) else v for name, v in spec.plan_args.items()}
            plan = catalog.build("protocols", spec.plan, options=options)
            rows, oracle = rows_by_domain(self.dataset), spec.select == "oracle"
            episodes = [self._with_unlabelled(each) for each in plan.episodes(rows, spec.seed, oracle=oracle)]
            episodes = self._with_known_classes(episodes) if spec.task == "classify" else episodes
            self.plans[key] = [pool_tests(episode) for episode in episodes]
        return self.plans[key]

    def _with_known_classes(self, episodes: list[Episode]) -> list[Episode]:
        """Leave test rows of unknown classes out, and episodes that then have none, unless no episode is left."""
        scored, errors = [], []
        for episode in episodes:
            try:
                scored.append(self._with_known_rows(episode))
            except NoKnownClass as error:
                errors.append(error)
        if not scored and errors:
            raise errors[0]
        self.notes += [note for error in errors if (note := f"not scored: {error}") not in self.notes]
        return scored

    def _with_known_rows(self, episode: Episode) -> Episode:
        """Leave test rows of classes out that an episode does not train on, with a note per target."""
        scored, omitted = score_known_classes(self.dataset.y, self.dataset.classes, episode)
        if omitted and len(self.dataset.domains) > FEW_DOMAINS:
            rows = sum(sum(counts.values()) for counts in omitted.values())
            start, cause = f"not scored in {episode.title}: ", "because no training domain has their class"
            if not any(note.startswith(start) for note in self.notes):
                names = sorted({name for counts in omitted.values() for name in counts})
                self.notes.append(f"{start}{rows:,} rows of {listed(names, limit=5)}, {cause}")
            return scored
        for domain, counts in omitted.items():
            start = f"not scored in '{domain}': "
            if not any(note.startswith(start) for note in self.notes):  # rare classes may differ between seeds
                rows = f"{sum(counts.values()):,} rows of {listed(list(counts), limit=5)}"
                self.notes.append(f"{start}{rows}, because no training domain has this class")
        return scored

    def _with_unlabelled(self, episode: Episode) -> Episode:
        """Add the unlabelled rows to every stage of an episode."""
        if not self.dataset.unlabelled:
            return episode
        names = [{part.domain for part in stage.train} for stage in episode.stages]
        stages = zip(episode.stages, names, strict=True)
        added = (replace(stage, unlabelled=unlabelled_parts(self.dataset, train)) for stage, train in stages)
        return replace(episode, stages=tuple(added))

    def set_episode(self, spec: Spec, episode: Episode) -> None:
        """Use this episode for the spec, in place of those of its plan."""
        self.plans[_plan_key(spec)] = [episode]

    def store(self, encoder: Backbone) -> Store:
        """Return all examples as the encoder takes them; only the newest vocabulary of n-grams or labels is kept."""
        key = encoder.preparation_key()
        if key not in self.stores:
            if isinstance(encoder, LearnedPreparation):
                self.stores = {other: store for other, store in self.stores.items() if other != self.newest}
                self.newest = key
            self.stores[key] = prepare(
                self.dataset.raw,
                encoder.prepare,
                size=encoder.size,
                tick=lambda _: stop_if_requested(),
                cache=self.cache,
            )
        return self.stores[key]

    def examples(self, store: Store, task: Task | None = None) -> Examples:
        """Return the examples of a store with their domains and the targets of the task; by default class indices."""
        y = torch.from_numpy(self.dataset.y) if task is None else task.encode(self.dataset.y, self.dataset.targets)
        return Examples(store, y, self.dataset.domains, device=self.device)

    def structured_examples(self, spec: Spec, task: Structured, encoder: Backbone) -> tuple[Examples, Task]:
        """Return the examples with the positions that the task predicts, and the task prepared for them."""
        key = (_task_key(spec), encoder.preparation_key())
        if key not in self.structured:
            self.structured[key] = task.prepare(encoder, self.dataset.raw, self.dataset.classes)
        prepared = self.structured[key]
        store, y, starts = prepared.store, prepared.y, prepared.starts
        return Examples(store, y, self.dataset.domains, device=self.device, starts=starts), prepared.task

    def shared_encoder(self, spec: Spec, build: Callable[[], Backbone]) -> Backbone:
        """Return the spec's encoder; a frozen pretrained one is built once for all runs."""
        if spec.tune != "frozen" or not catalog.lookup("encoders", spec.encoder).pretrained:
            return build()
        key = f"{spec.encoder}/{sorted(spec.encoder_args.items())}"
        if key not in self.encoders:
            self.encoders[key] = build()
        return self.encoders[key]

    def frozen_features(self, encoder: Backbone) -> Tensor:
        """Return the encoder's features of all examples, read from the cache if possible.  # (n, d)"""
        assert self.cache is not None
        if encoder in self.features:
            return self.features[encoder]
        features = None
        if forms := encoder.concatenated():
            features = torch.cat([self.frozen_features(form) for form in forms], dim=1)
        elif isinstance(encoder, LearnedPreparation):  # another one per run, and cheap
            encoder.to(self.device).eval()
            features = self.examples(self.store(encoder)).map(encoder, np.arange(len(self.dataset)), shared=True)
        elif self.complete is not None and encoder in self.complete.features:
            assert isinstance(self.dataset.raw, Subset)
            features = self.complete.frozen_features(encoder)[torch.from_numpy(self.dataset.raw.rows)]
        if features is not None:
            self.features = {encoder: features}
            return features

        def compute(rows: np.ndarray, tick: Callable[[int], None]) -> Tensor:
            encoder.to(self.device).eval()
            if encoder.takes == "image" and platform.machine() == "x86_64":  # on which these convolutions are faster
                encoder.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
            return self.examples(self.store(encoder)).map(encoder, rows, tick=tick, shared=True)

        features = self._cached(compute, key=_feature_key(encoder))
        self.features = {encoder: features}  # only the newest: a comparison has one encoder
        return features

    def frozen_states(self, spec: Spec, task: Structured, encoder: Backbone) -> tuple[Examples, Task] | None:
        """Return the examples as states of the frozen encoder at the positions that the task predicts, and the task.

        None if the states would need too much memory, or are not at positions that stay the same.
        """
        examples, prepared = self.structured_examples(spec, task, encoder)
        if not isinstance(examples.store, TokenStore) or (at := examples.store.at) is None:
            return None
        if isinstance(prepared, Augmenting) or len(at.values) * encoder.width * 2 > STATE_BYTES:
            return None
        positions = at.starts.diff()  # per input
        firsts = torch.arange(len(self.dataset) + 1) if examples.starts is None else examples.starts

        def compute(rows: np.ndarray, tick: Callable[[int], None]) -> Tensor:
            encoder.to(self.device).eval()
            own = torch.from_numpy(rows)
            of_rows = spans(firsts[own], firsts[own + 1] - firsts[own])  # the inputs of these rows
            starts = positions[of_rows].cumsum(0) - positions[of_rows]
            states = torch.empty(int(positions[of_rows].sum()), encoder.width, dtype=torch.float16)
            with torch.no_grad():
                for some, x, _ in examples.iter_batches(of_rows.numpy()):
                    sizes = positions[of_rows[some]]
                    values = encoder(x).half().cpu()[at.mask(of_rows[some])]
                    states[spans(starts[some], sizes)] = values
                    tick(len(some) * len(rows) // len(of_rows))
            return states

        key = hashlib.sha256(f"{_feature_key(encoder)}/{_task_key(spec)}".encode()).hexdigest()
        if key not in self.states:
            bounds = torch.cat([torch.zeros(1, dtype=torch.long), positions.cumsum(0)])[firsts]
            self.states = {key: self._cached(compute, key=key, sizes=bounds.diff())}
        store = StateStore(self.states[key], positions)
        return Examples(store, examples.y, self.dataset.domains, device=self.device, starts=examples.starts), prepared

    def _cached(
        self, compute: Callable[[np.ndarray, Callable[[int], None]], Tensor], *, key: str, sizes: Tensor | None = None
    ) -> Tensor:
        """Return features of all rows from the cache, or compute them and report how many rows are encoded."""
        assert self.cache is not None
        groups = self._feature_groups()
        encoded = len(self.dataset) - uncached_rows(self.dataset.raw, groups, key=key, folder=self.cache)

        def count(rows: int) -> None:
            nonlocal encoded
            encoded = min(len(self.dataset), encoded + rows * parallel.world_size())  # an estimate for all processes
            stop_if_requested()
            if (shown := (self.complete or self).on_encoding) is not None:
                shown(encoded, len(self.dataset))

        began, missing = time.monotonic(), encoded < len(self.dataset)
        raw, folder = self.dataset.raw, self.cache
        features = cached_features(raw, groups, lambda rows: compute(rows, count), key=key, folder=folder, sizes=sizes)
        if missing:
            self.encoding_seconds[len(self.dataset)] = time.monotonic() - began
        return features

    def for_worker(self, *, threads: int, device: str = "") -> Workspace:
        """Return a copy for another process: absolute paths and the state of this process, nothing prepared."""
        assert self.out is not None
        variables = {name: value for name, value in os.environ.items() if name.startswith("HOLDFAST")}
        return Workspace(
            self.dataset,
            device=torch.device(device or self.device.type),
            cache=None if self.cache is None else self.cache.resolve(),
            out=self.out.resolve(),
            analyse=self.analyse,
            keep_outputs=self.keep_outputs,
            weight_limits=self.weight_limits,
            keep_states=self.keep_states,
            deadline=self.deadline,
            sizes=self.sizes,
            order=self.order,
            worker=WorkerState(threads, variables, catalog.user_parts()),
        )


@dataclass(frozen=True)
class WorkerState:
    """Process-wide state of the driver that its worker processes take over."""

    threads: int
    environment: Mapping[str, str]  # HOLDFAST_* variables
    user_parts: Any  # methods, encoders and data sets that the driver registered

    def install(self) -> None:
        """Apply it to this process."""
        os.environ.update(self.environment)
        torch.set_num_threads(self.threads)
        self.user_parts.install()


def _feature_key(encoder: Backbone) -> str:
    text = f"{state_digest(encoder.state_dict())}/{encoder.preparation_key()}/{sorted(encoder.settings.items())}"
    return hashlib.sha256(text.encode()).hexdigest()


def _task_key(spec: Spec) -> str:
    return f"{spec.task}/{sorted(spec.task_args.items())}"


def _plan_key(spec: Spec) -> str:
    return repr((spec.plan, sorted(spec.plan_args.items()), spec.seed, spec.select == "oracle"))


def choose_device(name: str) -> torch.device:
    """Return the torch device; `auto` is the GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check_known("device", name, ("auto", "cpu", "cuda"))
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda needs a GPU that torch can use: use --device cpu")
    return torch.device(name)
