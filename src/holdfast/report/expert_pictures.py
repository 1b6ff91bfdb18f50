"""Patches on the page: experts over training, one image in several domains, parts of things, where a class token looks.

Every section is a title, some words and runs with their pictures, drawn as in `routing`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import plotly.graph_objects as go
from markupsafe import Markup

from holdfast.record import RunRecord
from holdfast.report.plots import SHADES, fragment, plain
from holdfast.report.routing import colour, draw_map, expert_keys
from holdfast.report.sections import Groups, Shown, first_seeds, pictured

SHARE = re.compile(r"experts/(load|importance|dropped)/(\d+)(?:/(\d+))?")  # what, layer with experts, expert

Points = list[tuple[int, float]]  # step, share
Shares = Mapping[tuple[str, int], Mapping[int, Points]]

Drawn = tuple[
    str, list[tuple[str, str]], int
]  # a sentence, pictures with their titles, experts whose colours they have


def sections(groups: Groups) -> list[dict[str, Any]]:
    """What the page shows, without what no record tells."""
    made = [_training(groups)]
    for name, title, words, draw in ANALYSES:
        shown, left = pictured(groups, name)
        runs = [_run(each.name, each.seed, draw(each)) for each in shown]
        made.append({"title": title, "words": words, "runs": runs, "left": left})
    return [section for section in made if section["runs"]]


def shares(record: RunRecord) -> Shares:
    """(load, importance or dropped, layer) -> expert -> (step, share) at every validation, stages and phases in a row.

    What was dropped is the share of a layer, told as that of its first expert.
    """
    found: dict[tuple[str, int], dict[int, Points]] = {}
    before = 0
    for stage in record.stages:
        last = 0
        for entry in stage.get("history", []):
            before += last if entry["step"] < last else 0  # a phase counts its steps anew
            last = entry["step"]
            for name, value in entry.items():
                if match := SHARE.fullmatch(name):
                    what, layer, expert = match[1], int(match[2]), int(match[3] or 0)
                    found.setdefault((what, layer), {}).setdefault(expert, []).append((before + last, value))
        before += last
    return found


def _training(groups: Groups) -> dict[str, Any]:
    shown, left = first_seeds(groups, lambda record: shares(record) or None)
    runs = [
        _run(f"{label}, {record.episode}", record.spec.get("seed"), _over(record.id, found))
        for label, record, found in shown
    ]
    words = (
        "The share of tokens that go to each expert, and its share of the probabilities, at each validated step; with "
        "a capacity, also the share of the pairs of a token and an expert for which there was no room."
    )
    return {"title": "Experts over training", "words": words, "runs": runs, "left": left}


def _over(key: str, found: Shares) -> Drawn:
    by_layer = sorted(found.items(), key=lambda item: (item[0][1], item[0][0] != "load"))
    panels, dropped, experts = [], {}, 0
    for (what, layer), each in by_layer:
        if what == "dropped":
            dropped[f"{_nth(layer)} layer with experts"] = (colour(layer), each[0])
            continue
        experts = len(each)
        named = {f"expert {expert}": (colour(expert), each[expert]) for expert in sorted(each)}
        picture = _lines(f"{key}-{what}-{layer}", named, even=1 / experts)
        panels.append((f"{what.capitalize()}, {_nth(layer)} layer with experts", picture))
    if not dropped:
        return "", panels, experts
    panels.append(("Dropped, by layer", _lines(f"{key}-dropped", dropped)))
    last = ", ".join(f"{points[-1][1]:.1%} in the {name}" for name, (_, points) in dropped.items())
    return f"Of the pairs there was no room, at the last validated step, for {last}.", panels, experts


def _lines(key: str, named: Mapping[str, tuple[str, Points]], *, even: float | None = None) -> str:
    """A line in its colour for each name; dotted, what each would have were all alike."""
    figure = go.Figure()
    for name, (shade, points) in named.items():
        steps, values = zip(*points, strict=True)
        figure.add_scatter(
            x=steps, y=values, mode="lines+markers", name=name, line={"color": shade}, marker={"size": 4},
            hovertemplate=f"{name}, step %{{x}}: %{{y:.3f}}<extra></extra>",
        )  # fmt: skip
    if even is not None:
        figure.add_hline(y=even, line={"color": "rgba(128,128,128,0.9)", "width": 1, "dash": "dot"})
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="share", rangemode="tozero")
    return fragment(figure, f"experts-over-{key}", height=320, legend=even is None)


def _across(shown: Shown) -> Drawn:
    found = shown.found
    told = (
        f"Of {found['images']} images in {len(found['domains'])} domains, {found['rate']:.0%} of the patches have the "
        f"same expert in two domains; with other images at the same places {found['shuffled']:.0%}, at most "
        f"{found['high']:.0%} in 19 of 20 draws. Files of one name, CLASS/NAME, in all domains are taken for one image."
    )
    return (
        told,
        [
            (f"{each['name']}, {each['domain']}", draw_map(each, found["experts"], f"expert-same-{shown.id}-{i}"))
            for i, each in enumerate(found["maps"])
        ],
        found["experts"],
    )


def _parts(shown: Shown) -> Drawn:
    found = shown.found
    figure = go.Figure(
        go.Heatmap(
            z=found["share"], x=[str(e) for e in range(found["experts"])], y=[plain(part) for part in found["parts"]],
            text=[[f"{v:.2f}" for v in line] for line in found["share"]], texttemplate="%{text}",
            textfont={"color": "#14181d"}, colorscale=SHADES, zmin=0, zmax=1, xgap=2, ygap=2, showscale=False,
            hovertemplate="%{y}, expert %{x}: %{z:.3f}<extra></extra>",
        )
    )  # fmt: skip
    figure.update_xaxes(title="expert", type="category", showgrid=False)
    figure.update_yaxes(type="category", autorange="reversed", showgrid=False)
    told = (
        f"The part tells {found['bits']:.4f} bits of the expert, on {found['images']} images of the training domains; "
        f"with those of another image at the same places {found['shuffled']:.4f}, at most {found['high']:.4f} in 19 of "
        "20 draws."
    )
    height = 120 + 28 * len(found["parts"])
    return told, [("Patches of each part by their expert", fragment(figure, f"parts-{shown.id}", height=height))], 0


def _looks(shown: Shown) -> Drawn:
    panels, seen = [], Counter[str]()
    for i, each in enumerate(shown.found["maps"]):
        seen[each["domain"]] += 1
        name = each["name"] or f"image {seen[each['domain']]}"
        for head, grid in enumerate(each["heads"]):
            picture = draw_map({**each, "experts": grid}, 0, f"look-{shown.id}-{i}-{head}")
            panels.append((f"{name}, {each['domain']}, head {head + 1}", picture))
    return "", panels, 0


ANALYSES: tuple[tuple[str, str, str, Callable[[Shown], Drawn]], ...] = (
    (
        "expert-agreement", "One image in several domains",
        "The best expert of each patch in the last layer with experts, a colour an expert.", _across,
    ),
    (
        "expert-parts", "Experts of the parts",
        "Of the nine patches nearest to a part, the share that goes to each expert in the last layer with experts.",
        _parts,
    ),
    (
        "attention-map", "Where the class token looks",
        "Its attention to each patch in the last layer, head by head: light is much, black is none, each map up to its "
        "own largest. Methods of one seed show the same images.",
        _looks,
    ),
)  # fmt: skip


def _run(name: str, seed: Any, drawn: Drawn) -> dict[str, Any]:
    told, panels, experts = drawn
    pictures = [(title, Markup(each)) for title, each in panels]
    return {"name": name, "seed": seed, "told": told, "panels": pictures, "keys": expert_keys(experts)}


def _nth(place: int) -> str:
    return ("first", "second", "third", "fourth", "fifth", "sixth")[place] if place < 6 else f"{place + 1}th"
