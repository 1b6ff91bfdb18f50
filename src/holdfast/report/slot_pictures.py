"""Pictures of HMA's memories: slots in the plane, attention by class, likeness of slots, scores by their sizes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go

from holdfast.record import RunRecord
from holdfast.report.plots import SHADES, SYMBOLS, fragment, plain, share_map, style
from holdfast.report.sections import Shown
from holdfast.report.words import number, scaled

PANELS = {"alone": "Slots alone", "beside": "Slots and training rows"}
SHARES = ("itself", "own class", "other classes", "own slots", "other slots")
FRAME = {"color": "rgba(128,128,128,0.9)", "width": 1}


def slot_panels(shown: Shown) -> list[tuple[str, str]]:
    """(title, picture): the slots in the plane, then with rows of some classes; a colour a class."""
    made = []
    names = list(dict.fromkeys(group["class"] for group in shown.found["alone"]["groups"]))
    for panel, title in PANELS.items():
        figure, told = go.Figure(), shown.found[panel]
        for group in told["groups"]:
            place, real = names.index(group["class"]), group["kind"] == "rows"
            colour, _, _ = style(place)
            symbol = SYMBOLS[place // 6 % len(SYMBOLS)]
            figure.add_scatter(
                name=plain(f"{group['class']}, {'rows' if real else 'slots'}"),
                x=group["x"],
                y=group["y"],
                mode="markers",
                marker={"size": 5 if real else 10, "color": colour, "symbol": f"{symbol}-open" if real else symbol},
                opacity=0.6 if real else 1.0,
                hovertemplate="%{fullData.name}<extra></extra>",
            )
        for update, at in ((figure.update_xaxes, 0), (figure.update_yaxes, 1)):
            shares = told["variance"]
            words = "" if shares is None else f"{('first', 'second')[at]} component, {100 * shares[at]:.0f} %"
            update(range=[-0.04, 1.04], dtick=0.5, tickfont={"size": 11}, title={"text": words, "font": {"size": 12}})
        place = f"slot-map-{shown.found['how']}-{shown.id}-{panel}"
        made.append((title, fragment(figure, place, height=360, legend=False)))
    return made


def attention_map(shown: Shown) -> list[tuple[str, str]]:
    """(title, picture): who looks at whom, the batch on the left and the slots on the right, and shares by class."""
    found = shown.found
    rows, slots, names = found["rows"], found["slots"], [plain(name) for name in found["classes"]]
    b, every = sum(rows), [value for line in found["map"] for value in line]
    top = sorted(every)[math.ceil(0.995 * len(every)) - 1]  # a few large ones would leave the rest without shades
    ends = list(accumulate(rows))
    of_row = [name for name, count in zip(names, rows, strict=True) for _ in range(count)]
    of_column = [f"row of {name}" for name in of_row]
    of_column += [f"slot of {name}" for name, count in zip(names, slots, strict=True) for _ in range(count)]
    figure = go.Figure(
        go.Heatmap(
            z=[[value / 1e4 for value in line] for line in found["map"]],
            customdata=[[f"{mine}: {other}" for other in of_column] for mine in of_row],
            colorscale=SHADES,
            zmin=0,
            zmax=max(top, 1) / 1e4,
            colorbar={"title": {"text": "attention", "side": "right"}, "thickness": 12},
            hovertemplate="%{customdata}: %{z:.4f}<extra></extra>",
        )
    )
    figure.add_vline(x=b - 0.5, line={**FRAME, "width": 2})
    for end in ends[:-1]:
        figure.add_hline(y=end - 0.5, line={**FRAME, "dash": "dot"})
    middles = [end - count / 2 - 0.5 for end, count in zip(ends, rows, strict=True)]
    figure.update_xaxes(title="batch, then slots, by class", showgrid=False)
    figure.update_yaxes(tickvals=middles, ticktext=names, autorange="reversed", showgrid=False)
    heat = fragment(figure, f"slot-attention-{shown.id}", height=420, legend=False)
    return [("Attention, rows by class", heat), ("Where it goes, by class", _share_map(shown))]


def _share_map(shown: Shown) -> str:
    found = shown.found
    lines = {**found["shares"], "all": found["mean"], "if even": found["even"]}
    names = [plain(name) for name in lines]
    figure = share_map(list(lines.values()), list(SHARES), names, "%{y}, %{x}: %{z:.4f}")
    figure.update_yaxes(autorange="reversed")
    return fragment(figure, f"slot-shares-{shown.id}", height=130 + 26 * len(lines), legend=False)


def likeness_bars(shown: Shown) -> str:
    """The mean cosine between two slots of each class; 1 means that they are one slot."""
    found = shown.found
    figure = go.Figure(
        go.Bar(
            x=[plain(name) for name in found["classes"]],
            y=list(found["classes"].values()),
            marker={"color": style(0)[0]},
            hovertemplate="%{x}: %{y:.4f}<extra></extra>",
        )
    )
    figure.add_hline(y=1, line={**FRAME, "dash": "dot"})
    figure.update_xaxes(type="category")
    figure.update_yaxes(title="cosine", range=[min(-0.1, *found["classes"].values()), 1.05])
    return fragment(figure, f"slot-diversity-{shown.id}", height=280, legend=False)


def size_maps(records: Iterable[RunRecord], metric: str) -> list[tuple[str, str]]:
    """(data, heat map) where runs differ in the rows of a queue and in the slots of a class: the mean score of each.

    Runs belong to one map if all else in their settings is the same; it needs two sizes of each kind.
    """
    groups: dict[str, dict[tuple[int, int], list[float]]] = {}
    named: dict[str, str] = {}
    for record in records:
        args = record.spec.get("neck_args") or {}
        if "real" not in args or "slots" not in args:
            continue
        others = {key: value for key, value in args.items() if key not in ("real", "slots")}
        key = json.dumps({**record.spec, "seed": None, "neck_args": others}, sort_keys=True)
        scores = [each.get(metric) for each in record.stages[-1]["test"].values()]
        known = [score for score in scores if score is not None]
        if known:
            named[key] = str(record.spec["data"])
            cell = (int(args["real"]), int(args["slots"]))
            groups.setdefault(key, {}).setdefault(cell, []).append(math.fsum(known) / len(known))
    made = []
    for place, (key, cells) in enumerate(groups.items()):
        rows, slots = sorted({real for real, _ in cells}), sorted({each for _, each in cells})
        if len(rows) > 1 and len(slots) > 1:
            made.append((named[key], _size_map(cells, rows, slots, metric, f"memory-sizes-{place}")))
    return made


def _size_map(
    cells: Mapping[tuple[int, int], list[float]], rows: list[int], slots: list[int], metric: str, name: str
) -> str:
    means: list[list[Any]] = [
        [math.fsum(got) / len(got) if (got := cells.get((real, each))) else None for each in slots] for real in rows
    ]
    figure = go.Figure(
        go.Heatmap(
            z=[[None if value is None else scaled(value, metric) for value in line] for line in means],
            x=[str(each) for each in slots],
            y=[str(real) for real in rows],
            text=[["" if value is None else number(value, metric) for value in line] for line in means],
            texttemplate="%{text}",
            textfont={"color": "#14181d"},
            colorscale=SHADES,
            xgap=2,
            ygap=2,
            showscale=False,
            hovertemplate="%{y} rows, %{x} slots: %{z:.2f}<extra></extra>",
        )
    )
    figure.update_xaxes(title="slots of a class", type="category", showgrid=False)
    figure.update_yaxes(title="rows of the queue", type="category", showgrid=False)
    return fragment(figure, name, height=150 + 40 * len(rows), legend=False)
