"""Routing of expert layers: load by domain, entropy of the router, information on the domain, load over training.

Shapes: n rows, l layers with experts, e experts, c domains.
"""

from __future__ import annotations

import base64
import io
import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from holdfast.analysis import random_generator, rounded
from holdfast.record import RunRecord
from holdfast.report.axes import Axis
from holdfast.report.marks import Bars, Points, Rule, Stroke, raster, shades
from holdfast.report.marks import image as picture
from holdfast.report.plots import COLOURS, Chart, Plot, drawing_area, style
from holdfast.report.sections import (
    Cell,
    Figure,
    Result,
    RunFigures,
    RunResult,
    Section,
    figure_section,
    first_seeds,
    mean_cell,
)
from holdfast.stats.labels import Groups  # fmt: skip

if TYPE_CHECKING:
    from holdfast.analysis.views import Views
    from lab.analysis.expert_views import RoutingView

REPEATS = 50  # of the shuffled control
PIXELS = 112  # side of the images that are stored in a record
MAX_MAPS = 8  # stored images
MORE_COLOURS = ("#F0E442", "#999999", "#332288", "#882255", "#44AA99", "#DDCC77")  # after those of the report
SHARE = re.compile(r"experts/(load|importance|dropped)/(\d+)(?:/(\d+))?")  # quantity, layer with experts, expert

INFERNO = tuple(enumerate((
    "#000004", "#1b0c41", "#4a0c6b", "#781c6d", "#a52c60", "#cf4446", "#ed6925", "#fb9b06", "#f7d13d", "#fcffa4",
)))  # fmt: skip
Curve = list[tuple[int, float]]  # step, share
Shares = Mapping[tuple[str, int], Mapping[int, Curve]]


def routing(views: Views, *, seed: int) -> dict[str, Any] | None:
    """Summarise the routing per domain and layer; None without experts. Only the shuffled control is random."""
    from lab.analysis.expert_views import view_experts  # imports torch, which drawing does not need

    # a domain can be on both sides if none was held out
    sides = views.collect(view_experts) or {}
    routed = [each for by_domain in sides.values() for each in by_domain.items()]
    if not routed:
        return None
    blocks = routed[0][1].blocks
    return {
        "experts": routed[0][1].first.shape[2],
        "blocks": list(blocks),
        **{
            side: {domain: _domain_routing(view) for domain, view in by_domain.items()}
            for side, by_domain in sides.items()
        },
        "information": [_information([view.first[:, i] for _, view in routed], seed, i) for i in range(len(blocks))],
        "maps": [
            {"domain": domain, "image": encode_image(image), "experts": best.tolist()}
            for index in range(max(len(view.maps) for _, view in routed))
            for domain, view in routed
            for image, best in view.maps[index : index + 1]
        ][:MAX_MAPS],
    }


def information(counts: np.ndarray) -> float:
    """Mutual information in bits between domain and expert from counts (c, e), with equally likely domains."""
    joint = counts / counts.sum(axis=1, keepdims=True) / len(counts)
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0, keepdims=True)
    positive = joint > 0
    return float((joint[positive] * np.log2(joint[positive] / independent[positive])).sum())


def shuffled(rows: list[np.ndarray], rng: np.random.Generator) -> np.ndarray:
    """Information (repeats,) with complete rows (n, e) assigned to random domains: tokens of a row stay together."""
    pool, splits = np.concatenate(rows), np.cumsum([len(of_domain) for of_domain in rows])[:-1]
    values = []
    for _ in range(REPEATS):
        assigned = np.split(pool[rng.permutation(len(pool))], splits)
        values.append(information(np.stack([of_domain.sum(axis=0) for of_domain in assigned])))
    return np.asarray(values)


def _information(rows: list[np.ndarray], seed: int, layer: int) -> dict[str, float]:
    control = shuffled(rows, random_generator(seed, "routing", layer))
    return {
        "bits": round(information(np.stack([of_domain.sum(axis=0) for of_domain in rows])), 5),
        "shuffled": round(float(control.mean()), 5),
        "high": round(float(np.quantile(control, 0.95)), 5),
    }


def _domain_routing(view: RoutingView) -> dict[str, Any]:
    """Return the numbers of one domain; the shares of experts sum to one in every layer."""
    load, importance = (
        [rounded(line / line.sum(), 5) for line in amounts.sum(axis=0)] for amounts in (view.load, view.importance)
    )
    dropped = {} if view.dropped is None else {"dropped": rounded(view.dropped.mean(axis=0), 5)}
    return {"load": load, "importance": importance, "entropy": rounded(view.entropy.mean(axis=0)), **dropped}


def encode_image(image: np.ndarray) -> str:
    """Encode a small copy of an image as a PNG data URL."""
    file = io.BytesIO()
    side = min(PIXELS, image.shape[0])
    Image.fromarray(image).resize((side, side), Image.Resampling.BILINEAR).save(file, format="PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def sections(groups: Groups, metric: str) -> list[Section]:
    """Draw the routing after training, with a table per layer, and the load over training."""
    after_training = figure_section(
        groups,
        "routing",
        "Expert routing",
        "Effective experts: exp of the entropy of their load. Entropy: mean entropy of the router's probabilities per "
        "token, in nats. Information: mutual information between the best expert of a token and its domain, in bits, "
        "with the mean and the 95 % quantile of a control that assigns complete rows to random domains.",
        draw_panels,
        colours=lambda run: expert_colours(run.result["experts"]) if run.result["maps"] else (),
        columns=(
            "method, target and layer", "experts", "effective, sources", "effective, target", "entropy, sources",
            "entropy, target", "information", "random", "random, 95 %",
        ),
        rows=lambda runs: [(f", layer {n}", layer_cells(runs, i)) for i, n in enumerate(runs[0]["blocks"])],
        figure_text="Bars: share of tokens per expert, hatched for targets; the dotted line is a uniform share. "
        "Images: best expert per patch in the last layer with experts.",
    )  # fmt: skip
    return after_training + _training_section(groups)


def layer_cells(runs: Sequence[Result], i: int) -> list[Cell]:
    """Return the means over runs and domains of one layer."""
    cells: list[Cell] = [(str(runs[0]["experts"]), float(runs[0]["experts"]))]
    for get in (lambda domain: _effective(domain["load"][i]), lambda domain: domain["entropy"][i]):
        for side in ("sources", "targets"):
            cells.append(mean_cell([get(domain) for run in runs for domain in run[side].values()]))
    return cells + [mean_cell([r["information"][i][key] for r in runs], 4) for key in ("bits", "shuffled", "high")]


def _effective(load: Sequence[float]) -> float:
    """Effective number of experts, exp of the entropy of their load."""
    return math.exp(-math.fsum(p * math.log(p) for p in load if p > 0))


def draw_panels(run: RunResult) -> list[Figure]:
    """Draw the load of each layer by domain, then images with the expert of each patch."""
    result = run.result
    bars = [(f"Layer {block}{_dropped(result, i)}", _draw_load(run, i)) for i, block in enumerate(result["blocks"])]
    maps = [
        (str(image["domain"]), draw_map(image, result["experts"], f"expert-map-{run.id}-{i}"))
        for i, image in enumerate(result["maps"])
    ]
    return bars + maps


def _dropped(result: Result, layer: int) -> str:
    """Return the range over domains of the share beyond the capacity; empty without a capacity."""
    domains = [*result["sources"].values(), *result["targets"].values()]
    shares = sorted(domain["dropped"][layer] for domain in domains if "dropped" in domain)
    return f", dropped {shares[0]:.1%} to {shares[-1]:.1%}" if shares else ""


def _draw_load(run: RunResult, layer: int) -> str:
    result, bars, experts = run.result, [], [str(e) for e in range(run.result["experts"])]
    domains = [(side, name, domain) for side in ("sources", "targets") for name, domain in result[side].items()]
    for index, (side, name, domain) in enumerate(domains):
        is_target = side == "targets"
        label, load = f"{name}, target" if is_target else name, domain["load"][layer]
        tips = [
            f"{label}, expert {e}: {share:.3f} of the tokens, importance {importance:.3f}"
            for e, share, importance in zip(experts, load, domain["importance"][layer], strict=True)
        ]
        pattern = "/" if is_target else ""
        bars.append(Bars(experts, load, tips, name=label, colour=style(index)[0], pattern=pattern))
    x, y = Axis("expert", names=()), Axis("share of tokens", zero=True)
    figure = Plot(*bars, x=x, y=y, rules=[Rule(y=1 / result["experts"])])
    return figure.html(f"experts-{run.id}-{layer}", height=320)


def expert_colours(count: int) -> list[tuple[str, int]]:
    """Return colour and number per expert."""
    return [(expert_colour(expert), expert) for expert in range(count)]


def expert_colour(expert: int) -> str:
    """Return the colour of an expert, equal in all figures; colours repeat after twelve."""
    colours = (*COLOURS, *MORE_COLOURS)
    return colours[expert % len(colours)]


def draw_map(image: Mapping[str, Any], count: int, name: str) -> Chart:
    """Draw a grey image with one square per patch, in the colour of its expert or, with count 0, by its value."""
    grid, background = image["experts"], to_grey(image["image"])
    scale, low, high = [(i / 9, colour) for i, colour in INFERNO], 0.0, max(map(max, grid))
    if count:
        scale = [(edge / count, expert_colour(e)) for e in range(count) for edge in (e, e + 1)]
        low, high = -0.5, count - 0.5
    layers = [picture(raster(grid, shades(scale, low, high)), 0.55)]
    if re.fullmatch(r"data:image/png;base64,[A-Za-z0-9+/=]*", background):  # records from elsewhere can hold anything
        layers.insert(0, picture(background))
    chart = Chart(f'<div class="chart map" id="{escape(name)}">{drawing_area("aspect-ratio:1", layers)}</div>')
    chart.description = f"{len(grid)} by {len(grid[0])} cells"
    return chart


def to_grey(image: str) -> str:
    """Convert a PNG data URL to grey, so that its colours do not mix with those drawn over it."""
    start, comma, content = image.partition(",")
    file = io.BytesIO()
    try:
        with Image.open(io.BytesIO(base64.b64decode(content)), formats=("PNG",)) as opened:
            opened.convert("L").save(file, format="PNG")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return image  # records from elsewhere can hold anything
    return f"{start}{comma}{base64.b64encode(file.getvalue()).decode()}"


def training_shares(record: RunRecord) -> Shares:
    """Map (load, importance or dropped; layer) to expert to (step, share) at every validation of all stages.

    The dropped share of a layer is stored under its first expert.
    """
    shares: dict[tuple[str, int], dict[int, Curve]] = {}
    before = 0
    for stage in record.stages:
        last = 0
        for entry in stage.get("history", []):
            before += last if entry["step"] < last else 0  # steps restart with every phase
            last = entry["step"]
            for name, value in entry.items():
                if match := SHARE.fullmatch(name):
                    quantity, layer, expert = match[1], int(match[2]), int(match[3] or 0)
                    shares.setdefault((quantity, layer), {}).setdefault(expert, []).append((before + last, value))
        before += last
    return shares


def _training_section(groups: Groups) -> list[Section]:
    selected, left_out = first_seeds(groups, lambda record: training_shares(record) or None)
    runs = []
    for label, record, shares in selected:
        figures, text, experts = _draw_training(record.id, shares)
        title = f"{label}, {record.episode}, seed {record.spec.get('seed')}"
        runs.append(RunFigures(title, figures, text, expert_colours(experts)))
    text = (
        "Share of tokens per expert and share of the routing probabilities at each validation; with a capacity, also "
        "the share of token-expert pairs that were dropped."
    )
    return [Section("Experts over training", text, runs=runs, left_out=left_out)] if runs else []


def _draw_training(key: str, shares: Shares) -> tuple[list[Figure], str, int]:
    """Return figures, a sentence on dropped pairs, and the number of experts."""
    figures, dropped, experts = [], {}, 0
    for (quantity, layer), by_expert in sorted(shares.items(), key=lambda item: (item[0][1], item[0][0] != "load")):
        name = f"layer {layer + 1} with experts"
        if quantity == "dropped":
            dropped[name] = (expert_colour(layer), by_expert[0])
            continue
        experts = len(by_expert)
        lines = {f"expert {expert}": (expert_colour(expert), by_expert[expert]) for expert in sorted(by_expert)}
        html = _draw_lines(f"{key}-{quantity}-{layer}", lines, even=1 / experts)
        figures.append((f"{quantity.capitalize()}, {name}", html))
    if not dropped:
        return figures, "", experts
    figures.append(("Dropped, by layer", _draw_lines(f"{key}-dropped", dropped)))
    last = ", ".join(f"{points[-1][1]:.1%} in {name}" for name, (_, points) in dropped.items())
    return figures, f"Dropped pairs at the last validation: {last}.", experts


def _draw_lines(key: str, lines: Mapping[str, tuple[str, Curve]], *, even: float | None = None) -> str:
    """Draw one line per name in its colour; the dotted line is a uniform share."""
    marks = []
    for name, (colour, points) in lines.items():
        steps, values = zip(*points, strict=True)
        tips = [f"{name}, step {step}: {value:.3f}" for step, value in points]
        marks.append(Points(steps, values, tips, name=name, colour=colour, size=4, line=Stroke(colour)))
    rules = [] if even is None else [Rule(y=even)]
    figure = Plot(*marks, x=Axis("step"), y=Axis("share", zero=True), rules=rules)
    return figure.html(f"experts-over-{key}", height=320, legend=even is None)
