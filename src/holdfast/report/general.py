"""A general memory on the page: a line for each layer that reads, attention by head, gates over depth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from holdfast.report.labels import natural
from holdfast.report.plots import fragment, plain, share_map, style
from holdfast.report.sections import Groups, Shown, named
from holdfast.report.words import MISSING

SIDES = ("sources", "targets")
SCORES = ("read", "hidden")
HALF = 0.5  # what an indifferent token gives: the memory has as many tokens as the text


def lines(groups: Groups) -> list[dict[str, Any]]:
    """One for each method, target and layer: attention to the memory, its heads, the depth of the gate, its effects."""
    found = []
    for label, group in groups.items():
        by_target: dict[str, list[Mapping[str, Any]]] = {}
        for record in group:
            if (told := record.analysis.get("general-memory")) is not None:
                by_target.setdefault(", ".join(told["targets"]), []).append(told)
        for target in sorted(by_target, key=natural):
            runs = by_target[target]
            for i, layer in enumerate(runs[0]["layers"]):
                cells = [_cell(_each(runs, side, lambda d, i=i: _mean(d["mass"][i]))) for side in SIDES]
                heads = _each(runs, "targets", lambda d, i=i: min(d["mass"][i]))
                cells += [_cell(heads), _cell(_each(runs, "targets", lambda d, i=i: max(d["mass"][i])))]
                cells += [_cell(_each(runs, side, lambda d, i=i: d["depths"][i]), 1) for side in SIDES]
                cells.append(_cell(_each(runs, "targets", lambda d: d["moved"])))
                cells += [_cell(_each(runs, "targets", lambda d, kind=kind: _score(d, kind)), 3) for kind in SCORES]
                found.append({"label": f"{named(label, target)}, layer {layer}", "cells": cells})
    return found


def panels(shown: Shown) -> list[tuple[str, str]]:
    """(title, picture): attention of every head by layer on the target, the same by domain, then each gate."""
    found = shown.found
    made = [("Attention by head, on the target", _heads(shown)), ("Attention by domain", _domains(shown))]
    gated = [i for i, read in enumerate(found["read"]) if len(read) > 1]
    return made + [(f"Gate of layer {found['layers'][i]}", _gate(shown, i)) for i in gated]


def _heads(shown: Shown) -> str:
    found = shown.found
    told = [each["mass"] for each in found["targets"].values()]
    values = [[_mean(head) for head in zip(*layer, strict=True)] for layer in zip(*told, strict=True)]
    heads, layers = [str(head + 1) for head in range(len(values[0]))], [str(layer) for layer in found["layers"]]
    figure = share_map(values, heads, layers, "layer %{y}, head %{x}: %{z:.4f} of its attention")
    figure.update_xaxes(title="head")
    figure.update_yaxes(title="layer")
    return fragment(figure, f"general-heads-{shown.id}", height=170 + 34 * len(values))


def _domains(shown: Shown) -> str:
    found, figure = shown.found, go.Figure()
    layers = [str(layer) for layer in found["layers"]]
    for place, (name, each) in enumerate(_sided(found)):
        figure.add_bar(
            name=name,
            x=layers,
            y=[_mean(heads) for heads in each["mass"]],
            marker=_marker(place, name),
            hovertemplate="%{fullData.name}, layer %{x}: %{y:.4f} of the attention<extra></extra>",
        )
    figure.add_hline(y=HALF, line={"color": "rgba(128,128,128,0.9)", "width": 1, "dash": "dot"})
    figure.update_layout(barmode="group", bargap=0.2)
    figure.update_xaxes(title="layer", type="category")
    figure.update_yaxes(title="attention to the memory", range=[0, 1])
    return fragment(figure, f"general-mass-{shown.id}", height=320)


def _gate(shown: Shown, at: int) -> str:
    found, figure = shown.found, go.Figure()
    read = [str(layer) for layer in found["read"][at]]
    for place, (name, each) in enumerate(_sided(found)):
        figure.add_bar(
            name=name,
            x=read,
            y=each["gates"][at],
            marker=_marker(place, name),
            hovertemplate="%{fullData.name}, layer %{x}: %{y:.4f} of the memory<extra></extra>",
        )
    figure.add_hline(y=1 / len(read), line={"color": "rgba(128,128,128,0.9)", "width": 1, "dash": "dot"})
    figure.update_layout(barmode="group", bargap=0.2)
    figure.update_xaxes(title="layer of the general model", type="category")
    figure.update_yaxes(title="share in the memory", rangemode="tozero")
    return fragment(figure, f"general-gate-{shown.id}-{at}", height=300)


def _sided(found: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Every domain by the name it has in a legend."""
    return [
        (plain(domain if side == "sources" else f"{domain}, target"), each)
        for side in SIDES
        for domain, each in found[side].items()
    ]


def _marker(place: int, name: str) -> dict[str, Any]:
    return {"color": style(place)[0], "pattern": {"shape": "/" if name.endswith(", target") else ""}}


def _each(runs: Sequence[Mapping[str, Any]], side: str, of: Any) -> list[float | None]:
    return [of(each) for run in runs for each in run[side].values()]


def _score(domain: Mapping[str, Any], kind: str) -> float | None:
    return (domain.get("scores") or {}).get(kind)  # records of earlier versions have none


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _cell(values: Sequence[float | None], digits: int = 2) -> tuple[str, float | None]:
    """The mean as text, and as what to sort by."""
    there = [value for value in values if value is not None]
    return (f"{_mean(there):.{digits}f}", _mean(there)) if there else (MISSING, None)
