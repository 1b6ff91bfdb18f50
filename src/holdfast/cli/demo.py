"""holdfast demo: headroom, plain training, memories and the choice on real sentences of four domains."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import options
from holdfast.cli.compare import print_comparison, train_chosen
from holdfast.cli.console import progress, say

if TYPE_CHECKING:
    from holdfast.api import Comparison

METRIC = "macro_f1"
QUICK = "erm,coral"
SYSTEMS = "memory+erm,mil,hma"  # on frozen features, with one seed
TRAINED = "erm,moving-average(erm),experts+erm"  # with --full: the encoder learns, and may contain experts
BRIEF: dict[str, Any] = {"steps": 60, "batch": 8, "search_rate": False}  # of an encoder that learns, on two cores


def demo(
    out: options.Out = Path("runs/demo"),
    seeds: options.Seeds = "3",
    methods: Annotated[str | None, typer.Option(help="Methods on frozen features; default: a few, or all.")] = None,
    examples: Annotated[
        int | None, typer.Option(help="Sentences per domain; 0 uses all 23,000. Default: 300, or 600 with --full.")
    ] = None,
    encoder: options.Encoder = "minilm",
    full: Annotated[
        bool, typer.Option("--full", help="Compare all methods, and train the encoder with experts and general memory.")
    ] = False,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    json: options.Json = False,
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
    from holdfast.api import compare as run
    from holdfast.train.resolve import seed_list
    from holdfast.train.training_data import training_data

    count = (600 if full else 300) if examples is None else examples
    dataset = training_data("vader", data_dir=data_dir, examples=count or None)
    if not json:
        say("Four domains of rated sentences; each is held out once and never seen in training.")
        _say_headroom(dataset)
    shared: dict[str, Any] = {
        "out": out, "metric": METRIC, "device": device, "data_dir": data_dir, "examples": count or None,
        "steps": 200 if full else 60, "budget": "none",
    }  # fmt: skip
    numbers, plain = options.seed_numbers(seeds), {"baselines": False, "combinations": False}
    first = numbers if full else seed_list(numbers)[:1]
    with progress(json) as listener:
        shared["watch"] = listener
        part = partial(run, "vader", **plain, **shared)
        comparisons = [part(methods=["erm"], encoder=encoder, seeds=numbers, settings={"predict": "knn"})]
        comparisons.append(part(methods=options.words(SYSTEMS), encoder=encoder, seeds=first))
        if full:
            trained = partial(part, seeds=seed_list(numbers)[:1], **BRIEF)
            comparisons.append(trained(methods=options.words(TRAINED), encoder=encoder, tune="full"))
            comparisons.append(trained(methods=["erm"], encoder="gmap"))
        names = options.words(methods or ("all" if full else QUICK))
        neck = {"neck": "projection"} if full else {}  # gives methods that act on features parameters to train
        main = run("vader", methods=names, encoder=encoder, seeds=numbers, settings=neck, model=out / "model", **shared)
        result = _joined(main, comparisons)
        model = train_chosen(result, out / "model", device=device, cache=True, listener=listener)
    print_comparison(result, model, json=json)
    if not (json or full):
        say("experts and general memory train the complete encoder, which takes longer: holdfast demo --full")


def _say_headroom(dataset: Any) -> None:
    """Print the headroom and the effect of erasing domain information."""
    from holdfast.auditing.audit import audit

    say(audit(dataset, near=1.0).headline)


def _joined(main: Comparison, comparisons: list[Comparison]) -> Comparison:
    """Return one comparison with the records of all, and write its report."""
    from holdfast.report.page import write_report
    from holdfast.stats.summary import summarise

    summary = summarise((record for each in (main, *comparisons) for record in each.records), main.metric)
    title = f"Holdfast: {main.dataset.name}"
    write_report(summary, main.report, title=title, notes=main.notes, source=["vader"])
    return replace(main, summary=summary)
