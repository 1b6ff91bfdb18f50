"""Analyses of trained runs: which to make, making them, and notes on those that are missing from records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast import catalog
from holdfast.catalog.entry import TOKEN_TASKS, Entry
from holdfast.core.errors import BadInput, laboratory_error
from holdfast.record import RunRecord
from holdfast.spec import Spec

if TYPE_CHECKING:  # reports are drawn without torch
    from holdfast.data.dataset import Dataset
    from holdfast.data.splits import Part
    from holdfast.nn.model import Model
    from holdfast.train.assemble import Assembly
    from holdfast.train.plan import Episode


def choose_analyses(names: Iterable[str], tasks: Iterable[str] = ()) -> list[str]:
    """Return the analyses for runs with these tasks; `all` is every analysis that supports them."""
    chosen, tasks = list(dict.fromkeys(names)), sorted(set(tasks) & set(TOKEN_TASKS))
    if "all" in chosen:
        known = catalog.buildable_names("analyses")
        return [name for name in known if set(tasks) <= set(catalog.lookup("analyses", name).tasks)]
    for name in chosen:
        entry = catalog.lookup("analyses", name)
        if unsupported := [task for task in tasks if task not in entry.tasks]:
            tasks_text = ", ".join(unsupported)
            raise BadInput(
                f"analysis '{name}' needs one feature per example, not a task such as {tasks_text}: leave it out"
            )
    return chosen


def data_notes(names: Iterable[str], dataset: Dataset) -> list[str]:
    """Return the notes of analyses on files that they read next to the data; raise if one of the files is invalid."""
    checks = dict.fromkeys(catalog.lookup("analyses", name).check for name in names)
    return [note for check in checks if check and (note := Entry(check, "").load()(dataset))]


def analysis_notes(records: Sequence[RunRecord], names: Sequence[str]) -> list[str]:
    """Return a note per analysis that older records lack or that no run could be analysed with."""
    missing = {name: sum(name not in record.analysis for record in records) for name in names}
    notes = [
        f"{name}: {count} of {len(records)} runs were finished earlier without it; delete their records, or choose "
        "another folder with --out, to run them again with it"
        for name, count in missing.items()
        if count
    ]
    needs = {name: catalog.lookup("analyses", name).needs for name, count in missing.items() if not count}
    return notes + missing_analysis_notes(records, needs)


def missing_analysis_notes(records: Iterable[RunRecord], needs: Mapping[str, str]) -> list[str]:
    """Return a sentence per requirement that no run meets, for the requested analyses and their `needs`."""
    results = [record.analysis for record in records]
    unmet: dict[str, list[str]] = {}
    for name, requirement in needs.items():
        if all(result.get(name) is None for result in results):
            unmet.setdefault(requirement, []).append(name)
    return [f"{', '.join(names)}: nothing to show, because no run has {need}" for need, names in unmet.items()]


def report_notes(records: Sequence[RunRecord]) -> list[str]:
    """Return notes on the analyses in these records: unmet requirements, and results that cannot be drawn."""
    names, known = {name for record in records for name in record.analysis}, catalog.buildable_names("analyses")
    needs = {name: catalog.lookup("analyses", name).needs for name in known if name in names}
    absent = (laboratory_error("analysis", name) for name in sorted(names.difference(known)))
    return missing_analysis_notes(records, needs) + [str(error) for error in absent if error]


def analyse_run(
    names: Sequence[str], assembly: Assembly, episode: Episode, spec: Spec, dataset: Dataset
) -> dict[str, Any]:
    """Analyse the last stage of a run: test rows of unseen domains, compared with training and validation rows."""
    if not names:
        return {}
    from holdfast.analysis.views import collect_views  # imports transformers, which takes seconds

    stage = episode.stages[-1]
    trained = {part.domain for part in stage.train}
    sources = [part for part in (*stage.train, *stage.valid) if part.domain in trained]
    unseen = [part for part in stage.test if part.domain not in trained]
    model, targets = assembly.deployed, unseen or stage.test
    views = collect_views(
        model, assembly.examples, sources, targets, seed=spec.seed, dataset=dataset,
        score=partial(_score, assembly, model, spec.metric),
    )  # fmt: skip
    return {name: catalog.lookup("analyses", name).build(views, seed=spec.seed) for name in names}


def _score(assembly: Assembly, model: Model, metric: str, part: Part) -> float | None:
    """Return one metric of a part, computed by this process only, because analyses run in the first process."""
    rows = assembly.examples.rows_of(part)
    evaluate = partial(assembly.task.evaluate, model)
    outputs = assembly.examples.map(evaluate, rows.numpy(), prediction_batch=model.prediction_batch, targets=True)
    return assembly.task.scores(outputs, assembly.examples.targets(rows).cpu(), [metric])[metric]
