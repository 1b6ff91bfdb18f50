"""The model of a comparison or a training: trained on all domains in the time that is left, and saved.

A combination is trained as all of its members. Where the time does not suffice, the models of the finished runs are
saved as an ensemble at once.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.core import parallel
from holdfast.core.errors import BadInput
from holdfast.core.files import cache_folder
from holdfast.core.stopping import Deadline, TimeUp, format_seconds, parse_duration, until
from holdfast.data.dataset import Dataset
from holdfast.data.splits import drop_test_domains
from holdfast.defaults import LIMIT
from holdfast.record import LOWER_IS_BETTER, RunRecord, read
from holdfast.spec import Spec
from holdfast.stats.labels import BASELINE, COMBINED, SIMPLE, SOUP, grouped
from holdfast.train.board import ALL_DOMAINS, RateChoice, final_rates, is_searchable, score_of
from holdfast.train.comparison import MODEL_FACTOR, Comparison, model_seconds
from holdfast.train.progress import ProgressListener
from holdfast.train.queue import FACTORS
from holdfast.train.resolve import EXPERIMENT, Configuration
from holdfast.train.workspace import Workspace, choose_device

if TYPE_CHECKING:
    from holdfast.training import Trained
    from holdfast.uncertainty.left_out import CollectedRuns

SAVE_SECONDS = 1.0  # for writing a model folder
MEMBER_FACTOR = 3.0  # time for another member of an ensemble and for writing it, as a multiple of that
# settings in which a model of all domains may differ from the runs that were compared
MODEL_SETTINGS = ("searched", "rows", "plan", "plan_args", "select", "seed", "precision", "processes")


def refit(
    done: Comparison,
    folder: str | Path,
    *,
    device: str = "auto",
    cache: bool = True,
    watch: ProgressListener | None = None,
) -> Path:
    """Train the method that a comparison chose on all domains and save it; a folder with that model is kept.

    If the time that its own runs took is not left, or the training does not end in time, the models of its finished
    runs are saved as an ensemble instead.
    """
    from holdfast.folders.format import check_folder
    from holdfast.prediction.combine import final_members

    folder, reason = Path(folder), done.why_no_model
    if reason is not None or done.decision is None:
        raise BadInput(reason or "no method was chosen")
    spec, chosen = done.decision.spec, grouped(done.records)[done.decision.label]
    workspace = _workspace(done, spec, device=device, cache=cache)
    dataset = drop_test_domains(workspace.dataset)
    members = [(spec, 1.0)]
    if spec["method"] in COMBINED:
        members = final_members(done.records, chosen, rates=final_rates(done.rates))
    is_soup = spec["method"] == SOUP
    if parallel.from_first(partial(_is_model_of, folder, members, dataset.fingerprint, is_soup=is_soup)):
        return folder
    check_folder(folder)
    known = {record.id: record for record in done.records}
    runs = [known[member["id"]] for record in chosen for member in record.stages[-1].get("members", [])] or chosen
    needed = model_seconds(runs, members=len(members), workers=done.workers)
    own = workspace if dataset is workspace.dataset else None
    options = {"device": device, "cache": cache, "watch": watch, "workspace": own}
    deadline = done.deadline.earlier(SAVE_SECONDS)
    if parallel.world_size() > 1 or needed < deadline.left():
        if watch is not None:
            watch.note(f"training {done.decision.label} on all domains")
        try:
            with until(deadline):
                _train_members(members, dataset, folder, _left_out_runs(done, workspace), options, soup=is_soup)
            return folder
        except TimeUp:
            shutil.rmtree(_drafts(folder), ignore_errors=True)
    _save_finished(done, runs, folder, workspace, watch or ProgressListener())
    return folder


def _workspace(done: Comparison, spec: Mapping[str, Any], *, device: str, cache: bool) -> Workspace:
    """Return the workspace of the rows that a configuration was trained on, with the features of the comparison."""
    whole = Workspace(done.dataset, choose_device(device), cache_folder() if cache else None, out=done.report.parent)
    return whole.sampled(spec.get("rows") or 0)


def _drafts(folder: Path) -> Path:
    """Return the folder of the members of an ensemble in training."""
    return folder.with_name(f"{folder.name}-members")


def _train_members(
    members: Sequence[tuple[dict[str, Any], float]], dataset: Dataset, folder: Path, runs: CollectedRuns | None,
    options: Mapping[str, Any], *, soup: bool,
) -> None:  # fmt: skip
    """Train every member on all domains, and save the model, the soup or the ensemble of them."""
    from holdfast.folders.format import Member, load_model

    if len(members) == 1:
        _train_member(members[0][0], dataset, folder, runs=runs, **options)
        return
    drafts, models = _drafts(folder), []
    for number, (own, _) in enumerate(members):
        draft = drafts / str(number)
        if not parallel.from_first(partial(_is_model_of, draft, [(own, 1.0)], dataset.fingerprint)):
            _train_member(own, dataset, draft, runs=runs, **options)
        models.append(draft)
    if parallel.is_first():
        first, *others = (load_model(draft) for draft in models)
        if soup:
            from holdfast.prediction.soup import fit_soup

            cache_path = cache_folder() if options["cache"] else None
            model = fit_soup([first, *others], dataset, device=choose_device(options["device"]), cache=cache_path)
        else:
            weights = [weight for _, weight in members[1:]]
            others = [replace(other, left_out=None) for other in others]
            model = replace(first, members=tuple(map(Member, weights, others)))
        model.save(folder)
        shutil.rmtree(drafts)


def _save_finished(
    done: Comparison, runs: Sequence[RunRecord], folder: Path, workspace: Workspace, watch: ProgressListener
) -> None:
    """Save the models of finished runs as an ensemble; each of them has not seen some of the domains."""
    from holdfast.prediction.soup import ensemble_of_runs

    watch.note(
        "no time is left to train the model on all domains: the models of the finished runs, which left out one "
        "domain each, are saved as an ensemble; the same command with a larger --budget trains it"
    )
    others = [group for group in grouped(done.records).values() if group[0].spec["method"] in (BASELINE, *SIMPLE)]
    same_rows = [group for group in others if group[0].spec.get("rows") == runs[0].spec.get("rows")]
    for group in (runs, *reversed(same_rows)):  # networks that are too large are not stored
        model = ensemble_of_runs(group, workspace, done.deadline.earlier(MEMBER_FACTOR * SAVE_SECONDS))
        if model is not None:
            if group is not runs:
                watch.note(f"their networks are too large to be stored, so that those of {group[0].spec['method']} are")
            if parallel.is_first():
                model.save(folder)
            return
    watch.note("no model was saved, because the networks of the finished runs are too large to be stored")


def fit_with_rates(
    chosen: Configuration, dataset: Dataset, folder: Path, *, search: bool, budget: str | None = None,
    started: float | None = None, watch: ProgressListener | None = None,
) -> tuple[Trained, RateChoice | None]:  # fmt: skip
    """Train a model at the default rate and save it; while time remains, replace it by one at a better rate.

    Validation rows decide. Without a budget, the first training is not limited, and other rates are tried as long as
    they end within `defaults.LIMIT`.
    """
    from holdfast.training import train_model

    watch = watch or ProgressListener()
    limit = LIMIT if budget is None else parse_duration(budget)
    deadline, began = Deadline(limit, started=started), time.monotonic()
    with until(Deadline() if budget is None else deadline):
        try:
            first = train_model(chosen, dataset, folder=folder, watch=watch)
        except TimeUp:
            raise BadInput(
                f"the training did not end within {format_seconds(limit)}: the same command with a larger --budget "
                "continues, or use fewer --steps or --examples"
            ) from None
    took, spec = time.monotonic() - began, Spec(**first.record.spec)
    if not search or not is_searchable(spec) or parallel.world_size() > 1:
        return first, None
    best, scores = first, {spec.lr: score_of(first.record)}
    drafts = folder.with_name(f"{folder.name}-rates")
    settings = {key: value for key, value in (chosen.settings or {}).items() if key != "lr"}
    for factor in FACTORS:
        if MODEL_FACTOR * took > deadline.left():
            break
        rate = spec.lr * factor
        try:
            with until(deadline):
                own = replace(chosen, lr=rate, settings=settings)
                other = train_model(own, dataset, folder=drafts / f"{rate:g}", watch=watch)
        except TimeUp:
            break
        except BadInput as error:
            watch.note(f"learning rate {rate:g}: {error}")
            continue
        scores[rate] = score_of(other.record)
        best = other if scores[rate] > scores[float(best.record.spec["lr"])] else best
    if best is not first:
        best.model.save(folder)
    shutil.rmtree(drafts, ignore_errors=True)
    sign = -1 if spec.metric in LOWER_IS_BETTER else 1
    rate = float(best.record.spec["lr"])
    return best, RateChoice(spec.method, ALL_DOMAINS, rate, {lr: sign * score for lr, score in scores.items()})


def _left_out_runs(done: Comparison, workspace: Workspace) -> CollectedRuns | None:
    """Return the outputs of the chosen runs for the domains that they left out; None if they were not stored.

    `workspace` has the rows that the runs were trained on, whose features the model stores with these outputs.
    """
    from holdfast.uncertainty.left_out import collect

    assert done.decision is not None
    return collect(grouped(done.records)[done.decision.label], {each.id: each for each in done.records}, workspace)


def _train_member(
    spec: Mapping[str, Any], dataset: Dataset, folder: Path, *, device: str, cache: bool,
    watch: ProgressListener | None, runs: CollectedRuns | None, workspace: Workspace | None,
) -> None:  # fmt: skip
    """Train one configuration on all domains and save it with the outputs of the runs that left out a domain."""
    from holdfast.training import train_model

    chosen = Configuration.of_spec(spec, without=MODEL_SETTINGS, device=device, cache=cache)
    train_model(chosen, dataset, folder=folder, watch=watch, agrees=EXPERIMENT, runs=runs, workspace=workspace)


def _is_model_of(
    folder: Path, members: Sequence[tuple[Mapping[str, Any], float]], fingerprint: str, *, is_soup: bool = False
) -> bool:
    """Whether a folder contains a finished model with these members and settings, or the soup of the members."""
    if not (folder / "config.json").is_file():
        return False
    folders = [folder, *sorted((folder / "members").glob("*"), key=lambda path: int(path.name))]
    try:
        records = [read(each / "record.json") for each in folders]
    except BadInput:  # missing or damaged
        return False
    specs = [record.spec for record in records]
    wanted = [{**spec, "fingerprint": fingerprint} for spec, _ in members]
    averaged = records[0].analysis.get("soup", {}).get("seeds")
    if averaged != ([spec["seed"] for spec in wanted] if is_soup else None):
        return False
    wanted = wanted[:1] if is_soup else wanted
    return len(specs) == len(wanted) and all(
        spec.get(key) == value
        for spec, expected in zip(specs, wanted, strict=True)
        for key, value in expected.items()
        if key not in MODEL_SETTINGS
    )
