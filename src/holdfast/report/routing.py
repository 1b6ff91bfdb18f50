"""Experts on the page: a line for each layer, bars of their load by domain, and maps of images coloured by expert."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from PIL import Image

from holdfast.report.labels import natural
from holdfast.report.plots import COLOURS, fragment, plain, style
from holdfast.report.sections import Groups, Shown, named
from holdfast.report.words import MISSING

MORE = ("#F0E442", "#999999", "#332288", "#882255", "#44AA99", "#DDCC77")  # after the palette of the page


def lines(groups: Groups) -> list[dict[str, Any]]:
    """One for each method, target and layer: effective experts, entropy of the router, information on the domain."""
    found = []
    for label, group in groups.items():
        by_target: dict[str, list[Mapping[str, Any]]] = {}
        for record in group:
            if (told := record.analysis.get("routing")) is not None:
                by_target.setdefault(", ".join(told["targets"]), []).append(told)
        for target in sorted(by_target, key=natural):
            runs = by_target[target]
            for i, block in enumerate(runs[0]["blocks"]):
                cells: list[tuple[str, float | None]] = [(str(runs[0]["experts"]), float(runs[0]["experts"]))]
                for side in ("sources", "targets"):
                    cells.append(_number([_effective(each["load"][i]) for r in runs for each in r[side].values()]))
                for side in ("sources", "targets"):
                    cells.append(_number([each["entropy"][i] for r in runs for each in r[side].values()]))
                for key in ("bits", "shuffled", "high"):
                    cells.append(_number([r["information"][i][key] for r in runs], 4))
                found.append({"label": f"{named(label, target)}, layer {block}", "cells": cells})
    return found


def panels(shown: Shown) -> list[tuple[str, str]]:
    """(title, picture): the load of each layer by domain, then images with the expert of each patch."""
    found = shown.found
    made = [(f"Layer {block}{_dropped(found, i)}", _bars(shown, i)) for i, block in enumerate(found["blocks"])]
    maps = [
        (str(each["domain"]), draw_map(each, found["experts"], f"expert-map-{shown.id}-{i}"))
        for i, each in enumerate(found["maps"])
    ]
    return made + maps


def _dropped(found: Mapping[str, Any], layer: int) -> str:
    """Where experts have a capacity in evaluation: what found no room, by domain from the least to the most."""
    domains = [*found["sources"].values(), *found["targets"].values()]
    shares = sorted(each["dropped"][layer] for each in domains if "dropped" in each)
    return f", without room {shares[0]:.1%} to {shares[-1]:.1%}" if shares else ""


def expert_keys(count: int) -> list[tuple[str, int]]:
    """The colour and the number of each expert, for a line beside pictures."""
    return [(colour(expert), expert) for expert in range(count)]


def colour(expert: int) -> str:
    """The colour of an expert, the same in all pictures; they repeat after twelve."""
    every = (*COLOURS, *MORE)
    return every[expert % len(every)]


def _bars(shown: Shown, layer: int) -> str:
    found, figure = shown.found, go.Figure()
    experts = [str(e) for e in range(found["experts"])]
    sides = [(side, domain, each) for side in ("sources", "targets") for domain, each in found[side].items()]
    for place, (side, domain, each) in enumerate(sides):
        figure.add_bar(
            name=plain(domain if side == "sources" else f"{domain}, target"),
            x=experts,
            y=each["load"][layer],
            customdata=each["importance"][layer],
            marker={"color": style(place)[0], "pattern": {"shape": "/" if side == "targets" else ""}},
            hovertemplate="%{fullData.name}, expert %{x}: %{y:.3f} of the tokens, importance %{customdata:.3f}"
            "<extra></extra>",
        )
    even = {"color": "rgba(128,128,128,0.9)", "width": 1, "dash": "dot"}
    figure.add_hline(y=1 / found["experts"], line=even)
    figure.update_layout(barmode="group", bargap=0.2)
    figure.update_xaxes(title="expert", type="category")
    figure.update_yaxes(title="share of tokens", rangemode="tozero")
    return fragment(figure, f"experts-{shown.id}-{layer}", height=320)


def draw_map(told: Mapping[str, Any], count: int, key: str) -> str:
    """The image in grey, and on every patch a square: of its expert's colour, or without experts as light as it is."""
    grid = told["experts"]
    side, figure = len(grid), go.Figure()
    box = {"x": 0, "y": 0, "sizex": side, "sizey": side, "xref": "x", "yref": "y", "sizing": "stretch"}
    figure.add_layout_image(source=grey(told["image"]), layer="below", yanchor="top", xanchor="left", **box)
    if count:
        steps = [(edge / count, colour(e)) for e in range(count) for edge in (e, e + 1)]
        look = {"zmin": -0.5, "zmax": count - 0.5, "colorscale": steps, "hovertemplate": "expert %{z}<extra></extra>"}
    else:
        look = {"zmin": 0, "colorscale": "Inferno", "hovertemplate": "%{z:.4f}<extra></extra>"}
    figure.add_heatmap(z=grid, x0=0.5, dx=1, y0=0.5, dy=1, opacity=0.55, showscale=False, **look)
    figure.update_xaxes(range=[0, side], visible=False, constrain="domain")
    figure.update_yaxes(range=[side, 0], visible=False, scaleanchor="x")
    return f'<div class="map">{fragment(figure, key, height=140, legend=False, bare=True)}</div>'


def grey(image: str) -> str:
    """The same PNG inside a text without its colours, which would mix with those laid over it."""
    start, comma, content = image.partition(",")
    file = io.BytesIO()
    try:
        with Image.open(io.BytesIO(base64.b64decode(content))) as picture:
            picture.convert("L").save(file, format="PNG")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return image  # a record from elsewhere may hold anything
    return f"{start}{comma}{base64.b64encode(file.getvalue()).decode()}"


def _effective(load: list[float]) -> float:
    """exp of the entropy of the load: all experts where they are used alike, 1 where one gets everything."""
    return math.exp(-math.fsum(p * math.log(p) for p in load if p > 0))


def _number(values: Sequence[float], digits: int = 2) -> tuple[str, float | None]:
    """The mean as text, and as what to sort by."""
    if not values:
        return MISSING, None
    mean = math.fsum(values) / len(values)
    return f"{mean:.{digits}f}", mean
