"""compare: methods x target domains x seeds on the user's data, to a table and a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast import catalog
from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder
from holdfast.data.dataset import Dataset
from holdfast.data.load import load_data
from holdfast.data.part_locations import unmatched_note
from holdfast.data.readers.memory import Source
from holdfast.record import RunRecord
from holdfast.report.decision import Decision, decide
from holdfast.report.page import write_report
from holdfast.report.sections import missing_analysis_notes
from holdfast.report.table import flat_table
from holdfast.run.assemble import Workspace
from holdfast.run.jobs import Engine
from holdfast.run.many import run_all
from holdfast.run.occupied import COMPARED, check_own_model
from holdfast.run.progress import ProgressListener
from holdfast.run.settings import choose_analyses, choose_device, choose_methods, make_spec, with_methods
from holdfast.run.train import scored_episodes, training_domains


@dataclass(frozen=True)
class Comparison:
    """What a comparison leaves: its records, the metric it is told in, the page, what it chose, and remarks."""

    records: list[RunRecord]
    metric: str
    report: Path
    dataset: Dataset
    decision: Decision | None  # None where no method has finished every target
    notes: tuple[str, ...] = ()

    def table(self) -> list[dict[str, Any]]:
        """One dict a cell: method, target, metric, mean, stderr, n."""
        return flat_table(self.records, self.metric)

    @property
    def why_no_model(self) -> str | None:
        """Why nothing can be trained on all domains at once after it; None where it can."""
        if self.decision is None:
            return "no model was saved: no method has finished every target domain"
        if self.decision.spec["plan"] == "stream":
            return (
                "no model was saved: the comparison was of streams; train a model with fit, and go on with adapt, "
                "domain after domain"
            )
        return None


def training_data(
    data: Source,
    *,
    task: str | None = None,
    columns: Mapping[str, str] | None = None,
    data_dir: Path | None = None,
) -> Dataset:
    """A data set that a task can be trained on, or one sentence that says what it lacks."""
    asked = catalog.build("tasks", task or "classify", options={})
    found = load_data(data, columns=columns, need=asked.needs, data_dir=data_dir, form=asked.data_form)
    return found.checked(labels="label" in asked.needs)


def as_names(names: str | Sequence[str | type]) -> list[str]:
    """Return a list of names; a string is split at commas, and method classes are registered in the catalog."""
    items = names.split(",") if isinstance(names, str) else names
    plain = [catalog.register_method(item) if isinstance(item, type) else item.strip() for item in items]
    return [name for name in plain if name]


def compare(
    data: Source,
    *,
    methods: str | Sequence[str | type] = ("all",),
    seeds: int | Sequence[int] = 3,
    out: str | Path = "runs/compare",
    encoder: str = "auto",
    tune: str = "auto",
    plan: str = "leave-one-out",
    select: str = "train-validation",
    metric: str | None = None,
    steps: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    device: str = "auto",
    cache: bool = True,
    columns: Mapping[str, str] | None = None,
    examples: int | None = None,
    data_dir: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    analyse: str | Sequence[str] = (),
    watch: ProgressListener | None = None,
    engine: Engine | None = None,
    model: str | Path | None = None,
) -> Comparison:
    """Train every method on every episode of the plan with every seed; what is done already is not done again.

    `model` is where the choice will be saved by `refit`: a folder that holds another experiment's is told now.
    """
    dataset = training_data(data, task=(settings or {}).get("task"), columns=columns, data_dir=data_dir)
    if examples is not None:
        dataset = dataset.limited(examples)
    where, methods = choose_device(device), as_names(methods)
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers or not methods:
        raise BadInput("nothing to run: give at least one seed and one method")
    shared = {key: value for key, value in (settings or {}).items() if key.startswith(("method.", "neck."))}
    others = {key: value for key, value in (settings or {}).items() if key not in shared}
    base = make_spec(
        dataset, encoder=encoder, tune=tune, settings=others, device=where, seed=numbers[0],
        method=None if methods[0] == "all" else methods[0], plan=plan, select=select,
        metric=metric, steps=steps, batch=batch, lr=lr, every=None if steps is None else max(1, min(25, steps // 4)),
    )  # fmt: skip
    wanted = choose_analyses(as_names(analyse), [base.task])
    base = replace(base, neck=others.get("neck", "none"))  # the neck of the first method is not that of the others
    workspace = Workspace(dataset, device=where, cache=cache_folder() if cache else None)
    chosen, left = choose_methods(methods, base, training_domains(scored_episodes(base, workspace), base.select))
    args = {
        f"{part}_args": {key.partition(".")[2]: value for key, value in shared.items() if key.startswith(f"{part}.")}
        for part in ("method", "neck")
    }
    each = with_methods(base, chosen, **args)
    specs = [replace(spec, seed=seed) for spec in each for seed in numbers]
    for spec in specs:
        catalog.check_settings("methods", spec.method, spec.method_args)
    if model is not None and base.plan != "stream":  # of streams none is saved
        check_own_model(Path(model), base, settings=COMPARED)
    out = Path(out)
    records = run_all(specs, workspace, out, watch=watch, analyse=wanted, engine=engine)
    parts = unmatched_note(dataset.raw, dataset.ids) if "expert-parts" in wanted else ""
    notes = (*dataset.notes, *left, *not_analysed(records, wanted), *([parts] if parts else []))
    told = specs[0].metric
    page = out / "report.html"
    if parallel.is_first():
        source = _source(data, columns=columns, examples=examples, data_dir=data_dir)
        write_report(records, page, title=f"Holdfast: {dataset.name}", metric=told, notes=notes, source=source)
    return Comparison(records, told, page, dataset, decide(records, told), notes)


def _source(
    data: Source, *, columns: Mapping[str, str] | None, examples: int | None, data_dir: Path | None
) -> list[str]:
    """How a command line names the data; empty where it never had a name there."""
    if not isinstance(data, str | Path):
        return []
    words = [str(data), *(word for pair in (columns or {}).items() for word in ("--column", "=".join(pair)))]
    words += [] if examples is None else ["--examples", str(examples)]
    return words + ([] if data_dir is None else ["--data-dir", str(data_dir)])


def not_analysed(records: Sequence[RunRecord], wanted: Sequence[str]) -> list[str]:
    """A sentence for what is not there: nothing to look at in any run, or runs of earlier whose networks are gone."""
    without = {name: sum(name not in record.analysis for record in records) for name in wanted}
    found = [
        f"{name}: {count} of {len(records)} runs were done before without it; delete their records, or name another "
        "folder with --out, to have them run again with it"
        for name, count in without.items()
        if count
    ]
    needs = {name: catalog.lookup("analyses", name).needs for name, count in without.items() if not count}
    return found + missing_analysis_notes(records, needs)
