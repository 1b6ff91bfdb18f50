"""holdfast demo: headroom, plain training, memories and the choice on real sentences of four domains."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import options
from holdfast.cli.compare import print_comparison
from holdfast.cli.console import progress, say

if TYPE_CHECKING:
    from holdfast.api import Comparison

METRIC = "macro_f1"
QUICK = "erm,coral"
SYSTEMS = "memory+erm,mil,hma"  # on frozen features, with one seed
TRAINED = "erm,moving-average(erm),experts+erm"  # with --full: the encoder learns, and may contain experts
BRIEF: dict[str, Any] = {"steps": 60, "batch": 8, "search_rate": False}  # of an encoder that learns, on two cores


@options.takes(
    "out", "seeds", "methods", "examples", "encoder", "full", "device", "data_dir", "json",
    out=Path("runs/demo"), encoder="minilm",
)  # fmt: skip
def demo(
    run: options.Options,
    methods: Annotated[str | None, typer.Option(help="Methods on frozen features; default: a few, or all.")] = None,
    examples: Annotated[
        int | None, typer.Option(help="Sentences per domain; 0 uses all 23,000. Default: 300, or 600 with --full.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Compare all methods, and train the encoder with experts and general memory.")
    ] = False,
) -> None:
    """Classify the sentiment of tweets, films, products and news: train on three of them, test on the fourth.

    Prints the headroom of the data, then compares simple baselines, plain training, CORAL, the memory neck, MIL, HMA
    and a memory of examples at prediction time, within two minutes on two cores. `--full` adds all other methods on the
    frozen encoder, and trains it with experts and with general memory, in about half an hour. The sentences come from
    the source archive of the package vaderSentiment 3.3.2 (MIT), downloaded once and verified by its hash.

    Examples:

    - `holdfast demo`

    - `holdfast demo --full`

    - `holdfast demo --examples 0 --seeds 5`

    - `holdfast demo --data-dir folder/with/vaderSentiment-3.3.2.tar.gz`
    """
    from holdfast.api import compare
    from holdfast.auditing.audit import audit
    from holdfast.final_model import refit
    from holdfast.train.resolve import seed_list
    from holdfast.train.training_data import training_data

    count = ((600 if full else 300) if examples is None else examples) or None
    dataset = training_data("vader", data_dir=run.data_dir, examples=count)
    if not run.json:
        say("Four domains of rated sentences; each is held out once and never seen in training.")
        say(audit(dataset, near=1.0).headline)
    shared: dict[str, Any] = {
        "out": run.out, "metric": METRIC, "device": run.device, "data_dir": run.data_dir, "examples": count,
        "steps": 200 if full else 60, "budget": "none",
    }  # fmt: skip
    numbers, plain = options.seed_numbers(run.seeds), {"baselines": False, "combinations": False}
    first, model = seed_list(numbers)[:1], run.out / "model"
    with progress(run.json) as listener:
        shared["watch"] = listener
        part = partial(compare, "vader", **plain, **shared)
        comparisons = [part(methods=["erm"], encoder=run.encoder, seeds=numbers, settings={"predict": "knn"})]
        systems = options.words(SYSTEMS)
        comparisons.append(part(methods=systems, encoder=run.encoder, seeds=numbers if full else first))
        if full:
            trained = partial(part, seeds=first, **BRIEF)
            comparisons.append(trained(methods=options.words(TRAINED), encoder=run.encoder, tune="full"))
            comparisons.append(trained(methods=["erm"], encoder="gmap"))
        names = options.words(methods or ("all" if full else QUICK))
        neck = {"neck": "projection"} if full else {}  # gives methods that act on features parameters to train
        main = compare("vader", methods=names, encoder=run.encoder, seeds=numbers, settings=neck, model=model, **shared)
        result = _joined(main, comparisons)
        if not result.why_no_model:
            refit(result, model, device=run.device, watch=listener)
    print_comparison(result, model, json=run.json)
    if not (run.json or full):
        say("experts and general memory train the complete encoder, which takes longer: holdfast demo --full")


def _joined(main: Comparison, comparisons: list[Comparison]) -> Comparison:
    """Return one comparison with the records of all, and write its report."""
    from holdfast.report.page import write_report
    from holdfast.stats.summary import summarise

    summary = summarise((record for each in (main, *comparisons) for record in each.records), main.metric)
    title = f"Holdfast: {main.dataset.name}"
    write_report(summary, main.report, title=title, notes=main.notes, source=["vader"])
    return replace(main, summary=summary)
