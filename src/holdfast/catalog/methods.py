"""Training methods with their published defaults.

Steps of a schedule (500 or 1,500 of 5,000) are given as fractions, so that they scale with the length of a run.
"""

from __future__ import annotations

from holdfast.catalog.entry import ALL_TASKS, MethodEntry
from holdfast.core.settings import choice, even, log

_CIGA = "holdfast.methods.invariant_graph:CIGA"
_SUBGRAPH_ENCODERS = ("gin-subgraph", "gcn-subgraph")
_PENALIZED = "holdfast.methods.penalized:Penalized"
_RISK = "risk and data mixing"
_ALIGNMENT = "feature alignment"
_INVARIANCE = "invariant risk"
_GRADIENTS = "gradients and meta-learning"
_MEMORIES = "memories and pretrained features"
_SUBGRAPHS = "subgraphs"
_CONTINUAL = "continual learning"
_AVERAGING = "weight averaging"

METHODS: dict[str, MethodEntry] = {
    "erm": MethodEntry(
        "holdfast.methods.erm:ERM",
        "mean risk over all source domains, the baseline (Vapnik, 1998)",
        tasks=ALL_TASKS,
        family=_RISK,
    ),
    "group-dro": MethodEntry(
        "holdfast.methods.erm:GroupDRO",
        "domains weighted by their risk, for the worst domain (Sagawa et al., 2020)",
        tasks=ALL_TASKS,
        family=_RISK,
    ),
    "mixup": MethodEntry(
        "holdfast.methods.mixup:Mixup",
        "convex combinations of examples of two domains (Zhang et al., 2018; Yan et al., 2020)",
        family=_RISK,
    ),
    "manifold-mixup": MethodEntry(
        "holdfast.methods.mixup:ManifoldMixup",
        "convex combinations of the features of any two examples (Verma et al., 2019)",
        family=_RISK,
    ),
    "g-mixup": MethodEntry(
        "holdfast.methods.graph_mixup:GMixup",
        "graphs sampled between the graphons of two classes (Han et al., 2022)",
        takes="graph",
        family=_RISK,
    ),
    "coral": MethodEntry(
        _PENALIZED,
        "equal means and covariances of features in all domains (Sun & Saenko, 2016)",
        acts_on="features",
        fixed={"penalty": "coral"},
        space={"weight": log(0.1, 10)},
        family=_ALIGNMENT,
    ),
    "mmd": MethodEntry(
        _PENALIZED,
        "equal feature distributions, measured with Gaussian kernels (Li et al., 2018)",
        acts_on="features",
        fixed={"penalty": "mmd"},
        space={"weight": log(0.1, 10)},
        family=_ALIGNMENT,
    ),
    "irm": MethodEntry(
        _PENALIZED,
        "a head that is optimal in every domain simultaneously (Arjovsky et al., 2019)",
        fixed={"penalty": "irm"},
        preset={"weight": 100.0, "anneal": 0.1},
        space={"weight": log(0.1, 1e5), "anneal": even(0.0, 0.9)},
        family=_INVARIANCE,
    ),
    "vrex": MethodEntry(
        _PENALIZED,
        "equal risks in all domains (Krueger et al., 2020)",
        fixed={"penalty": "vrex"},
        preset={"weight": 10.0, "anneal": 0.1},
        space={"weight": log(0.1, 1e5), "anneal": even(0.0, 0.9)},
        tasks=ALL_TASKS,
        family=_INVARIANCE,
    ),
    "ib-erm": MethodEntry(
        _PENALIZED,
        "information bottleneck: low variance of the features (Ahuja et al., 2021)",
        acts_on="features",
        fixed={"penalty": "bottleneck", "before": 0.0},
        preset={"weight": 100.0, "anneal": 0.1},
        space={"weight": log(0.1, 1e5), "anneal": even(0.0, 0.9)},
        family=_INVARIANCE,
    ),
    "ib-irm": MethodEntry(
        _PENALIZED,
        "IRM with an information bottleneck (Ahuja et al., 2021)",
        fixed={"penalty": "irm"},
        preset={"weight": 100.0, "bottleneck": 100.0, "anneal": 0.1},
        space={"weight": log(0.1, 1e5), "bottleneck": log(0.1, 1e5), "anneal": even(0.0, 0.9)},
        family=_INVARIANCE,
    ),
    "dann": MethodEntry(
        "holdfast.methods.adversarial:DANN",
        "features from which a discriminator cannot predict the domain (Ganin et al., 2016)",
        acts_on="features",
        fixed={"conditional": False},
        family=_ALIGNMENT,
    ),
    "cdann": MethodEntry(
        "holdfast.methods.adversarial:DANN",
        "DANN with a discriminator conditioned on the class (Li et al., 2018)",
        acts_on="features",
        fixed={"conditional": True},
        family=_ALIGNMENT,
    ),
    "mldg": MethodEntry(
        "holdfast.methods.meta:MLDG",
        "meta-learning: steps that also reduce the risk of a held-out domain (Li et al., 2018)",
        tasks=ALL_TASKS,
        family=_GRADIENTS,
    ),
    "fish": MethodEntry(
        "holdfast.methods.meta:Fish",
        "gradient agreement through one inner step per domain (Shi et al., 2021)",
        tasks=ALL_TASKS,
        family=_GRADIENTS,
    ),
    "fishr": MethodEntry(
        "holdfast.methods.fishr:Fishr",
        "equal gradient variance in all domains (Rame et al., 2022)",
        family=_GRADIENTS,
    ),
    "miro": MethodEntry(
        "holdfast.methods.miro:MIRO",
        "features that remain informative about the pretrained ones (Cha et al., 2022)",
        acts_on="backbone",
        family=_MEMORIES,
    ),
    "pda": MethodEntry(
        "holdfast.methods.alignment:PDA",
        "features and predictions aligned per class (Jia & Zhang, 2022)",
        family=_ALIGNMENT,
    ),
    "m-scl": MethodEntry(
        "holdfast.methods.contrastive:MemoryContrastive",
        "supervised contrastive loss with a queue of source features (Tan et al., 2022)",
        acts_on="features",
        family=_ALIGNMENT,
    ),
    "mil": MethodEntry(
        "holdfast.methods.mil:MIL",
        "memory meta-learned to hide the domain, then frozen while the task is trained (Jia & Zhang, 2023)",
        necks=("memory", "memory-4.8m", "product-memory"),
        family=_MEMORIES,
    ),
    "hma": MethodEntry(
        "holdfast.methods.hma:HMA",
        "queue of examples written by a momentum encoder, read with slots per class (Qiu et al., 2023)",
        necks=("heterogeneous", "rma", "abd", "abd-rma", "abd-syn", "param"),
        family=_MEMORIES,
    ),
    "ciga-v1": MethodEntry(
        _CIGA,
        "predictive subgraph whose features agree within a class (Chen et al., 2022)",
        fixed={"hinge": 0.0},
        takes="graph",
        encoders=_SUBGRAPH_ENCODERS,
        family=_SUBGRAPHS,
    ),
    "ciga-v2": MethodEntry(
        _CIGA,
        "CIGA with a hinge loss on the rest of the graph (Chen et al., 2022)",
        takes="graph",
        encoders=_SUBGRAPH_ENCODERS,
        family=_SUBGRAPHS,
    ),
    "dir": MethodEntry(
        "holdfast.methods.invariant_graph:DIR",
        "predictive subgraph whose risk is stable for every other rest (Wu et al., 2022)",
        takes="graph",
        encoders=_SUBGRAPH_ENCODERS,
        family=_SUBGRAPHS,
    ),
    "ewc": MethodEntry(
        "holdfast.methods.ewc:EWC",
        "penalty on changes of parameters with high Fisher information (Kirkpatrick et al., 2017)",
        acts_on="stream",
        fixed={"online": False},
        tasks=ALL_TASKS,
        family=_CONTINUAL,
    ),
    "online-ewc": MethodEntry(
        "holdfast.methods.ewc:EWC",
        "EWC with one anchor and a running importance (Schwarz et al., 2018)",
        acts_on="stream",
        fixed={"online": True},
        space={"decay": choice(0.8, 0.9, 0.95, 1.0)},
        tasks=ALL_TASKS,
        family=_CONTINUAL,
    ),
    "si": MethodEntry(
        "holdfast.methods.si:SynapticIntelligence",
        "penalty on changes of parameters that reduced earlier losses (Zenke et al., 2017)",
        acts_on="stream",
        tasks=ALL_TASKS,
        family=_CONTINUAL,
    ),
    "lwf": MethodEntry(
        "holdfast.methods.distil:Distillation",
        "distillation from the model of earlier domains on new inputs (Li & Hoiem, 2016)",
        acts_on="stream",
        family=_CONTINUAL,
    ),
    "replay": MethodEntry(
        "holdfast.methods.replay:Replay",
        "training on stored examples of earlier domains (Rolnick et al., 2019)",
        acts_on="stream",
        tasks=ALL_TASKS,
        family=_CONTINUAL,
    ),
    "agem": MethodEntry(
        "holdfast.methods.replay:AGEM",
        "gradients projected to not increase the loss on stored examples (Chaudhry et al., 2019)",
        acts_on="stream",
        tasks=ALL_TASKS,
        family=_CONTINUAL,
    ),
    "progressive(METHOD)": MethodEntry(
        "holdfast.methods.progressive:Progressive",
        "any method, with new slots, words, hidden units or a column per domain (Asghar et al., 2020)",
        acts_on="stream",
        necks=("memory", "memory-4.8m"),
        tasks=ALL_TASKS,
        preset={"expand": "M"},
        family=_CONTINUAL,
    ),
    "moving-average(METHOD)": MethodEntry(
        "holdfast.methods.averaging:MovingAverage",
        "any method, with the average of the weights over training (Arpit et al., 2022)",
        tasks=ALL_TASKS,
        family=_AVERAGING,
    ),
    "swad(METHOD)": MethodEntry(
        "holdfast.methods.averaging:SWAD",
        "any method, with the average of the weights over a flat region of the loss (Cha et al., 2021)",
        tasks=ALL_TASKS,
        family=_AVERAGING,
    ),
}
