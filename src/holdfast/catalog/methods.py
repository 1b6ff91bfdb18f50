"""Training methods with their published defaults.

Steps of a schedule (500 or 1,500 of 5,000) are given as fractions, so that they scale with the length of a run.
"""

from functools import partial
from typing import Any

from holdfast.catalog.entry import ALL_TASKS, NO_CLASS, MethodEntry
from holdfast.core.settings import choice, even, log

_LABELS = {"unlabelled": "none"}  # of methods that need the label of every example
_PENALIZED = "penalties:Penalized"
_OFF = {"weight": 0, "bottleneck": 0, "anneal": 0}  # a penalty with these settings changes nothing
_WIDE = {"weight": log(0.1, 1e5), "anneal": even(0.0, 0.9)}


def _method(target: str, about: str, **fields: Any) -> MethodEntry:
    return MethodEntry(f"holdfast.methods.{target}", about, **fields)


_simple = partial(_method, family="simple baselines", necks=("none",))
_risk = partial(_method, family="risk and data mixing")
_alignment = partial(_method, family="feature alignment")
_invariance = partial(_method, family="invariant risk")
_gradients = partial(_method, family="gradients and meta-learning")
_memories = partial(_method, family="memories and pretrained features")
_subgraphs = partial(
    _method, family="subgraphs", takes="graph", encoders=("gin-subgraph", "gcn-subgraph"),
    needs_class="its losses compare the predicted classes of subgraphs",
)  # fmt: skip
_continual = partial(_method, family="continual learning", acts_on="stream")
_averaging = partial(_method, family="weight averaging", tasks=ALL_TASKS)

METHODS: dict[str, MethodEntry] = {
    "erm": _risk("erm:ERM", "mean risk over all source domains, the baseline (Vapnik, 1998)", tasks=ALL_TASKS),
    "group-dro": _risk(
        "erm:GroupDRO", "domains weighted by their risk, for the worst domain (Sagawa et al., 2020)", tasks=ALL_TASKS),
    "mixup": _risk(
        "mixup:Mixup", "convex combinations of examples of two domains (Zhang et al., 2018; Yan et al., 2020)"),
    "manifold-mixup": _risk(
        "mixup:ManifoldMixup", "convex combinations of the features of any two examples (Verma et al., 2019)"),
    "g-mixup": _risk(
        "mixup:GMixup", "graphs sampled between the graphons of two classes (Han et al., 2022)", takes="graph",
        needs_class="it has one graphon per class"),
    "coral": _alignment(
        _PENALIZED, "equal means and covariances of features in all domains (Sun & Saenko, 2016)", acts_on="features",
        fixed={"penalty": "coral"}, off=_OFF, space={"weight": log(0.1, 10)}),
    "mmd": _alignment(
        _PENALIZED, "equal feature distributions, measured with Gaussian kernels (Li et al., 2018)", acts_on="features",
        fixed={"penalty": "mmd"}, off=_OFF, space={"weight": log(0.1, 10)}),
    "irm": _invariance(
        _PENALIZED, "a head that is optimal in every domain simultaneously (Arjovsky et al., 2019)",
        fixed={"penalty": "irm", **_LABELS}, preset={"weight": 100.0, "anneal": 0.1}, space=_WIDE, off=_OFF),
    "vrex": _invariance(
        _PENALIZED, "equal risks in all domains (Krueger et al., 2020)", fixed={"penalty": "vrex", **_LABELS},
        preset={"weight": 10.0, "anneal": 0.1}, space=_WIDE, off=_OFF, tasks=ALL_TASKS),
    "ib-erm": _invariance(
        _PENALIZED, "information bottleneck: low variance of the features (Ahuja et al., 2021)", acts_on="features",
        equals="", fixed={"penalty": "bottleneck", "before": 0.0, **_LABELS}, preset={"weight": 100.0, "anneal": 0.1},
        space=_WIDE),  # no equal: the moments of the optimizer restart at `anneal`
    "ib-irm": _invariance(
        _PENALIZED, "IRM with an information bottleneck (Ahuja et al., 2021)", acts_on="features", equals="irm",
        off={"bottleneck": 0}, fixed={"penalty": "irm", **_LABELS},
        preset={"weight": 100.0, "bottleneck": 100.0, "anneal": 0.1},
        space={**_WIDE, "bottleneck": log(0.1, 1e5)}),
    "dann": _alignment(
        "adversarial:DANN", "features from which a discriminator cannot predict the domain (Ganin et al., 2016)",
        acts_on="features", fixed={"conditional": False}, learned=("critic",)),
    "cdann": _alignment(
        "adversarial:DANN", "DANN with a discriminator conditioned on the class (Li et al., 2018)", acts_on="features",
        fixed={"conditional": True, **_LABELS}, learned=("critic",),
        needs_class="its discriminator is conditioned on the class"),
    "mldg": _gradients(
        "meta:MLDG", "meta-learning: steps that also reduce the risk of a held-out domain (Li et al., 2018)",
        tasks=ALL_TASKS),
    "fish": _gradients(
        "meta:Fish", "gradient agreement through one inner step per domain (Shi et al., 2021)", tasks=ALL_TASKS),
    "fishr": _gradients("penalties:Fishr", "equal gradient variance in all domains (Rame et al., 2022)"),
    "miro": _memories(
        "distil:MIRO", "features that remain informative about the pretrained ones (Cha et al., 2022)",
        acts_on="backbone"),
    "pda": _alignment(
        "adversarial:PDA", "features and predictions aligned per class (Jia & Zhang, 2022)", learned=("critic",),
        needs_class="it aligns the domains within each class"),
    "m-scl": _alignment(
        "contrastive:MemoryContrastive",
        "supervised contrastive loss with a queue of source features (Tan et al., 2022)", acts_on="features",
        needs_class="examples of one class attract each other"),
    "mil": _memories(
        "mil:MIL", "memory meta-learned to hide the domain, then frozen while the task is trained (Jia & Zhang, 2023)",
        necks=("memory", "memory-4.8m", "product-memory"), neck_args={"fusion": "interpolate", "share": 0.2},
        tuned_neck_args={"share": 0.5, "query_norm": True}, learned=("critic",)),
    "hma": _memories(
        "hma:HMA", "queue of examples written by a momentum encoder, read with slots per class (Qiu et al., 2023)",
        necks=("heterogeneous", "rma", "abd", "abd-rma", "abd-syn", "param", "param-matched"),
        needs_class="its queue and its slots are per class"),
    "ciga-v1": _subgraphs(
        "invariant_graph:CIGA", "predictive subgraph whose features agree within a class (Chen et al., 2022)",
        fixed={"hinge": 0.0}),
    "ciga-v2": _subgraphs(
        "invariant_graph:CIGA", "CIGA with a hinge loss on the rest of the graph (Chen et al., 2022)"),
    "dir": _subgraphs(
        "invariant_graph:DIR", "predictive subgraph whose risk is stable for every other rest (Wu et al., 2022)"),
    "ewc": _continual(
        "consolidation:EWC", "penalty on changes of parameters with high Fisher information (Kirkpatrick et al., 2017)",
        fixed={"online": False}, tasks=ALL_TASKS),
    "online-ewc": _continual(
        "consolidation:EWC", "EWC with one anchor and a running importance (Schwarz et al., 2018)",
        fixed={"online": True}, space={"decay": choice(0.8, 0.9, 0.95, 1.0)}, tasks=ALL_TASKS),
    "si": _continual(
        "consolidation:SynapticIntelligence",
        "penalty on changes of parameters that reduced earlier losses (Zenke et al., 2017)", tasks=ALL_TASKS),
    "lwf": _continual(
        "distil:Distillation", "distillation from the model of earlier domains on new inputs (Li & Hoiem, 2016)",
        needs_class="it distils probabilities of classes"),
    "replay": _continual(
        "replay:Replay", "training on stored examples of earlier domains (Rolnick et al., 2019)", tasks=ALL_TASKS),
    "agem": _continual(
        "replay:AGEM", "gradients projected to not increase the loss on stored examples (Chaudhry et al., 2019)",
        tasks=ALL_TASKS),
    "progressive(METHOD)": _continual(
        "progressive:Progressive",
        "any method, with new slots, words, hidden units or a column per domain (Asghar et al., 2020)",
        necks=("memory", "memory-4.8m"), tasks=ALL_TASKS, preset={"expand": "M"}),
    "moving-average(METHOD)": _averaging(
        "averaging:MovingAverage", "any method, with the average of the weights over training (Arpit et al., 2022)"),
    "swad(METHOD)": _averaging(
        "averaging:SWAD",
        "any method, with the average of the weights over a flat region of the loss (Cha et al., 2021)"),
    "soup(METHOD)": _averaging(
        "averaging:Soup",
        "any method, trained several times, with averaged weights if that helps (Wortsman et al., 2022)",
        acts_on="backbone"),
    "wise-ft(METHOD)": _averaging(
        "averaging:WiseFT",
        "any method, with weights interpolated between pretrained and trained (Wortsman et al., 2022)",
        acts_on="backbone"),
    "majority": _simple(
        "linear:Constant", "most frequent class of the training examples", needs_class="it predicts one class"),
    "mean": _simple(
        "linear:Constant", "mean target of the training examples, or the frequency of every label", tasks=NO_CLASS),
    "logistic": _simple(
        "linear:Logistic", "logistic regression on frozen features, or on TF-IDF, with a penalty chosen on domains",
        tasks=("classify", "ordinal", "multilabel")),
    "ridge": _simple(
        "linear:Ridge", "ridge regression on frozen features, or on TF-IDF, with a penalty chosen on domains",
        tasks=("regress",)),
    "boosting": _simple(
        "boosting:Boosting", "gradient-boosted trees of scikit-learn on frozen features (Friedman, 2001)", head="trees",
        fixed={"engine": "sklearn"}),
    "lightgbm": _simple(
        "boosting:Boosting", "gradient-boosted trees of LightGBM on frozen features (Ke et al., 2017)", head="trees",
        fixed={"engine": "lightgbm"}),
}  # fmt: skip

# what `compare` runs by default, where it fits; of each family the method with the best published average on DomainBed
DEFAULT_SLATE = (
    "erm", "moving-average(erm)", "coral", "vrex", "mixup", "fishr", "miro", "ciga-v2", "replay", "memory+erm", "mil",
    "hma", "experts+erm", "gmap+erm", "progressive(erm)",
)  # fmt: skip
