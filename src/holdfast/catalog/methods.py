"""Training rules, with their published defaults and the spaces to search.

Published numbers of steps (500 or 1,500 of 5,000) are given as shares, so that short runs anneal too.
"""

from __future__ import annotations

from holdfast.catalog.entry import ALL_TASKS, MethodEntry
from holdfast.core.settings import choice, even, log, whole

_CIGA = "holdfast.methods.invariant_graph:CIGA"
_SUBGRAPHS = ("gin-subgraph", "gcn-subgraph")
_PENALIZED = "holdfast.methods.penalized:Penalized"
METHODS = {
    "erm": MethodEntry(
        "holdfast.methods.erm:ERM", "the mean risk over all source domains (Vapnik, 1998)", tasks=ALL_TASKS
    ),
    "group-dro": MethodEntry(
        "holdfast.methods.erm:GroupDRO",
        "more weight to the domain with the higher risk (Sagawa et al., 2020)",
        space={"eta": log(1e-3, 1e-1)},
        tasks=ALL_TASKS,
    ),
    "mixup": MethodEntry(
        "holdfast.methods.mixup:Mixup",
        "examples of two domains blended (Zhang et al., 2018; Yan et al., 2020)",
        space={"alpha": log(0.1, 10)},
    ),
    "manifold-mixup": MethodEntry(
        "holdfast.methods.mixup:ManifoldMixup",
        "features of any two examples blended (Verma et al., 2019)",
        space={"alpha": log(0.1, 10)},
    ),
    "g-mixup": MethodEntry(
        "holdfast.methods.graph_mixup:GMixup",
        "graphs drawn between the graphons of two classes (Han et al., 2022)",
        takes="graph",
        space={"share": choice(0.1, 0.15, 0.2, 0.25)},
    ),
    "coral": MethodEntry(
        _PENALIZED,
        "equal means and covariances of features (Sun & Saenko, 2016)",
        acts_on="features",
        fixed={"penalty": "coral"},
        space={"weight": log(0.1, 10)},
    ),
    "mmd": MethodEntry(
        _PENALIZED,
        "equal feature distributions by Gaussian kernels (Li et al., 2018)",
        acts_on="features",
        fixed={"penalty": "mmd"},
        space={"weight": log(0.1, 10)},
    ),
    "irm": MethodEntry(
        _PENALIZED,
        "a head that is optimal in every domain at once (Arjovsky et al., 2019)",
        fixed={"penalty": "irm"},
        preset={"weight": 100.0, "anneal": 0.1},
        space={"weight": log(0.1, 1e5), "anneal": even(0.0, 0.9)},
    ),
    "vrex": MethodEntry(
        _PENALIZED,
        "equal risks in every domain (Krueger et al., 2020)",
        fixed={"penalty": "vrex"},
        preset={"weight": 10.0, "anneal": 0.1},
        space={"weight": log(0.1, 1e5), "anneal": even(0.0, 0.9)},
        tasks=ALL_TASKS,
    ),
    "ib-erm": MethodEntry(
        _PENALIZED,
        "features of small variance, an information bottleneck (Ahuja et al., 2021)",
        acts_on="features",
        fixed={"penalty": "bottleneck", "before": 0.0},
        preset={"weight": 100.0, "anneal": 0.1},
        space={"weight": log(0.1, 1e5), "anneal": even(0.0, 0.9)},
    ),
    "ib-irm": MethodEntry(
        _PENALIZED,
        "IRM with an information bottleneck (Ahuja et al., 2021)",
        fixed={"penalty": "irm"},
        preset={"weight": 100.0, "bottleneck": 100.0, "anneal": 0.1},
        space={"weight": log(0.1, 1e5), "bottleneck": log(0.1, 1e5), "anneal": even(0.0, 0.9)},
    ),
    "dann": MethodEntry(
        "holdfast.methods.adversarial:DANN",
        "features from which a critic cannot tell the domain (Ganin et al., 2016)",
        acts_on="features",
        fixed={"conditional": False},
        space={"weight": log(1e-2, 1e2), "hidden": whole(64, 1024), "critic_steps": whole(1, 8)},
    ),
    "cdann": MethodEntry(
        "holdfast.methods.adversarial:DANN",
        "DANN with a critic that sees the class (Li et al., 2018)",
        acts_on="features",
        fixed={"conditional": True},
        space={"weight": log(1e-2, 1e2), "hidden": whole(64, 1024), "critic_steps": whole(1, 8)},
    ),
    "mldg": MethodEntry(
        "holdfast.methods.meta:MLDG",
        "steps that also help on a domain left out, first or second order (Li et al., 2018)",
        space={"beta": log(0.1, 10), "inner_lr": log(1e-3, 1e-1)},
        tasks=ALL_TASKS,
    ),
    "fish": MethodEntry(
        "holdfast.methods.meta:Fish",
        "gradients of the domains that agree, by walking through them (Shi et al., 2021)",
        space={"meta_lr": choice(0.05, 0.1, 0.5)},
        tasks=ALL_TASKS,
    ),
    "fishr": MethodEntry(
        "holdfast.methods.fishr:Fishr",
        "equal variance of gradients in every domain (Rame et al., 2022)",
        space={"weight": log(10, 1e4), "anneal": even(0.0, 0.9), "ema": even(0.9, 0.99)},
    ),
    "miro": MethodEntry(
        "holdfast.methods.miro:MIRO",
        "features that stay informative about the pretrained ones (Cha et al., 2022)",
        acts_on="backbone",
        space={"weight": choice(0.001, 0.01, 0.1, 1.0)},
    ),
    "pda": MethodEntry(
        "holdfast.methods.alignment:PDA",
        "features and predictions aligned class by class (Jia & Zhang, 2022)",
        space={"feature_weight": log(1e-2, 1), "prediction_weight": log(1e-2, 1)},
    ),
    "m-scl": MethodEntry(
        "holdfast.methods.contrastive:MemoryContrastive",
        "classes contrasted against a memory of source features (Tan et al., 2022)",
        acts_on="features",
        space={"weight": log(1e-2, 1), "temperature": log(0.03, 0.3)},
    ),
    "mil": MethodEntry(
        "holdfast.methods.mil:MIL",
        "a memory learned to hide the domain, then frozen while the task is learned (Jia & Zhang, 2023)",
        necks=("memory", "memory-4.8m", "product-memory"),
        space={"memory_lr": log(1e-5, 1e-2), "iterations": whole(1, 64), "critic_steps": whole(1, 4)},
    ),
    "hma": MethodEntry(
        "holdfast.methods.hma:HMA",
        "a queue of real examples that a momentum encoder writes, read with slots of the classes (Qiu et al., 2023)",
        necks=("heterogeneous", "rma", "abd", "abd-rma", "abd-syn", "param"),
        space={"momentum": choice(0.9, 0.99, 0.999)},
    ),
    "ciga-v1": MethodEntry(
        _CIGA,
        "a part of each graph that decides, alike within a class (Chen et al., 2022)",
        fixed={"hinge": 0.0},
        takes="graph",
        encoders=_SUBGRAPHS,
        space={"contrast": choice(0.5, 1.0, 2.0, 4.0, 8.0)},
    ),
    "ciga-v2": MethodEntry(
        _CIGA,
        "CIGA that also lets the rest of a graph tell what it can (Chen et al., 2022)",
        takes="graph",
        encoders=_SUBGRAPHS,
        space={"contrast": choice(0.5, 1.0, 2.0, 4.0, 8.0), "hinge": choice(0.5, 1.0, 2.0, 4.0)},
    ),
    "dir": MethodEntry(
        "holdfast.methods.invariant_graph:DIR",
        "a part of each graph whose risk stays the same beside any other rest (Wu et al., 2022)",
        takes="graph",
        encoders=_SUBGRAPHS,
        space={"weight": log(1e-2, 10.0)},
    ),
    "ewc": MethodEntry(
        "holdfast.methods.ewc:EWC",
        "holds the parameters that mattered in earlier domains (Kirkpatrick et al., 2017)",
        acts_on="stream",
        fixed={"online": False},
        space={"weight": log(1.0, 1e5)},
        tasks=ALL_TASKS,
    ),
    "online-ewc": MethodEntry(
        "holdfast.methods.ewc:EWC",
        "EWC with one anchor and one running importance (Schwarz et al., 2018)",
        acts_on="stream",
        fixed={"online": True},
        space={"weight": log(1.0, 1e5), "decay": choice(0.8, 0.9, 0.95, 1.0)},
        tasks=ALL_TASKS,
    ),
    "si": MethodEntry(
        "holdfast.methods.si:SynapticIntelligence",
        "holds the parameters that brought earlier risks down (Zenke et al., 2017)",
        acts_on="stream",
        space={"strength": log(0.01, 100.0), "xi": log(1e-3, 1.0)},
        tasks=ALL_TASKS,
    ),
    "lwf": MethodEntry(
        "holdfast.methods.distil:Distillation",
        "the model of the earlier domains teaches on the new inputs (Li & Hoiem, 2016)",
        acts_on="stream",
        space={"weight": log(0.1, 10.0), "temperature": choice(1.0, 2.0, 4.0)},
    ),
    "replay": MethodEntry(
        "holdfast.methods.replay:Replay",
        "trains again on a sample kept of the earlier domains (Rolnick et al., 2019)",
        acts_on="stream",
        space={"capacity": whole(50, 2000)},
        tasks=ALL_TASKS,
    ),
    "agem": MethodEntry(
        "holdfast.methods.replay:AGEM",
        "no step against the gradient on kept examples (Chaudhry et al., 2019)",
        acts_on="stream",
        space={"capacity": whole(50, 2000)},
        tasks=ALL_TASKS,
    ),
    "progressive(METHOD)": MethodEntry(
        "holdfast.methods.progressive:Progressive",
        "more slots, words, hidden units or a column for every domain, around any method (Asghar et al., 2020)",
        acts_on="stream",
        necks=("memory", "memory-4.8m"),
        tasks=ALL_TASKS,
        preset={"expand": "M"},
        space={"slots": choice(50, 100, 200, 500, 1000)},
    ),
    "moving-average(METHOD)": MethodEntry(
        "holdfast.methods.averaging:MovingAverage",
        "the mean of the weights over training, around any method (Arpit et al., 2022)",
        space={"start": whole(1, 1000)},
        tasks=ALL_TASKS,
    ),
    "swad(METHOD)": MethodEntry(
        "holdfast.methods.averaging:SWAD",
        "the mean of the weights over the flat valley, around any method (Cha et al., 2021)",
        space={"ratio": choice(1.2, 1.3)},
        tasks=ALL_TASKS,
    ),
}
