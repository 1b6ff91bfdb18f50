"""Pictures of analyses: bars of distances, features in the plane, slots and segments of a memory, as in plots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from holdfast.report.plots import COLOURS, fragment, plain, share_map, style
from holdfast.report.sections import Bar, Shown, slot_usage

SOURCES, TARGET = COLOURS[0], COLOURS[1]
MARKS = {"sources": (SOURCES, "circle-open", "solid"), "target": (TARGET, "x-thin-open", "dash")}

TITLES = {"backbone": "Backbone, z", "memory": "Memory, m(z)", "features": "Fused, g(z)"}  # in this order
PATTERNS = ("", "/", "x", ".")  # a round of colours has one pattern


def distance_bars(found: Mapping[str, Mapping[str, Bar]], places: Mapping[str, int]) -> str:
    """Bars with errors: targets along the axis, one colour a method, the one it has in every picture of the page."""
    targets = list(dict.fromkeys(target for bars in found.values() for target in bars))
    figure = go.Figure()
    for label, bars in found.items():
        pattern = PATTERNS[places[label] // len(COLOURS) % len(PATTERNS)]
        figure.add_bar(
            name=plain(label),
            meta=label,
            x=[plain(target) for target in bars],
            y=[bar.mean for bar in bars.values()],
            error_y={"type": "data", "array": [bar.error for bar in bars.values()], "thickness": 1.5, "width": 4},
            marker={"color": style(places[label])[0], "pattern": {"shape": pattern}},
            customdata=[[f"{bar.mean:.2f} ± {bar.error:.2f}", bar.seeds] for bar in bars.values()],
            hovertemplate="%{fullData.name}, %{x}: %{customdata[0]} (n=%{customdata[1]})<extra></extra>",
        )
    figure.update_layout(barmode="group", bargap=0.25)
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=[plain(t) for t in targets])
    figure.update_yaxes(title="A-distance", range=[0, 2.05], dtick=0.5)
    return fragment(figure, "a-distance", height=360, legend=False)


def feature_panels(shown: Shown) -> list[tuple[str, str]]:
    """(title, picture) for each feature of one run: contours of the density and some points, sources and target."""
    panels = shown.found["panels"]
    made = []
    for name in (name for name in TITLES if name in panels):
        panel, figure = panels[name], go.Figure()
        for side, (colour, symbol, dash) in MARKS.items():
            _draw(figure, panel[side], shown.found["cells"], colour, symbol, dash, side)
        for update, at in ((figure.update_xaxes, 0), (figure.update_yaxes, 1)):
            words = {"text": _axis(panel, at), "font": {"size": 12}}
            update(range=[-0.04, 1.04], dtick=0.5, tickfont={"size": 11}, title=words)
        place = f"{shown.found['how']}-{shown.id}-{name}"
        made.append((_title(name, panels), fragment(figure, place, height=330, legend=False)))
    return made


def slot_bars(shown: Shown) -> str:
    """The weight of the most used slots on the sources and on the target, beside what an even share would be."""
    found = shown.found
    ranks = list(range(1, len(found["shown"]) + 1))
    figure = go.Figure()
    for side, name, colour in (("sources", "sources", SOURCES), ("targets", "target", TARGET)):
        figure.add_bar(
            name=name,
            x=ranks,
            y=slot_usage(found, side),
            marker={"color": colour},
            customdata=found["shown"],
            hovertemplate="%{fullData.name}, slot %{customdata}: %{y:.4f}<extra></extra>",
        )
    even = 1 / found["slots"]
    figure.add_hline(y=even, line={"color": "rgba(128,128,128,0.9)", "width": 1, "dash": "dot"})
    figure.update_layout(barmode="group", bargap=0.1)
    figure.update_xaxes(title=f"slots by use, {len(ranks)} of {found['slots']}")
    figure.update_yaxes(title="mean weight", rangemode="tozero")
    return fragment(figure, f"slots-{shown.id}", height=300)


def segment_map(shown: Shown) -> str:
    """How much each domain reads of each segment; beside its name the slots that it uses, were they used alike."""
    found = shown.found
    domains = {**found["sources"], **found["targets"]}
    even = [size / sum(found["sizes"]) for size in found["sizes"]]
    named = [f"{i}: {size:,} slot{'s' if size > 1 else ''}" for i, size in enumerate(found["sizes"], start=1)]
    figure = share_map(
        [each["mass"] for each in domains.values()],
        named,
        [f"{plain(domain)} ({each['effective']:,.0f})" for domain, each in domains.items()],
        "%{y} reads segment %{x}: %{z:.4f}, an even share %{customdata[0]:.4f}<br>"
        "entropy of its slots %{customdata[1]:.3f}, evenness %{customdata[2]:.3f}",
        [[[share, each["entropy"], each["evenness"]] for share in even] for each in domains.values()],
    )
    figure.update_xaxes(title="segment")
    figure.update_yaxes(title="domain (effective slots)", autorange="reversed")
    return fragment(figure, f"segments-{shown.id}", height=160 + 44 * len(domains))


def _draw(
    figure: go.Figure, side: Mapping[str, Any], cells: int, colour: str, symbol: str, dash: str, name: str
) -> None:
    if side["density"] is not None:
        figure.add_contour(
            z=side["density"],
            x0=0, dx=1 / (cells - 1), y0=0, dy=1 / (cells - 1),
            contours={"coloring": "none", "start": 100, "end": 900, "size": 200},
            line={"color": colour, "width": 1.5, "dash": dash},
            showscale=False,
            hoverinfo="skip",
        )  # fmt: skip
    figure.add_scatter(
        x=side["x"],
        y=side["y"],
        mode="markers",
        marker={"size": 5, "color": colour, "symbol": symbol, "opacity": 0.55},
        hovertemplate=f"{name}<extra></extra>",
    )


def _axis(panel: Mapping[str, Any], at: int) -> str:
    shares = panel["variance"]
    return "" if shares is None else f"{('first', 'second')[at]} component, {100 * shares[at]:.0f} %"


def _title(name: str, there: Mapping[str, Any]) -> str:
    """What the panel shows; what the network has besides decides the words."""
    if name == "features" and "memory" not in there:
        return "After the neck"
    return TITLES[name] if len(there) > 1 else "Features"
