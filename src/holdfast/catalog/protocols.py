"""Protocols, model selection and tasks."""

from holdfast.catalog.entry import Entry, TaskEntry

_PLANS = {  # class in holdfast.train.plans, description
    "leave-one-out": ("LeaveOneOut", "train on all domains but one and score that one, for every domain"),
    "leave-groups-out": (
        "LeaveGroupsOut", "hold out groups of domains and score each domain once: for more than 8 domains"),
    "cross-dataset": ("CrossDataset", "train on some domains and score the named target domains"),
    "single-source": ("SingleSource", "train on one domain and score all others, for every domain"),
    "given": ("GivenSplit", "the split of the data: rows marked train, valid and test in any domain"),
    "in-domain": ("InDomain", "train and score within every domain: the reference without a shift"),
    "k-fold": ("KFold", "score every row of all domains once: train on the other folds, for every fold"),
    "stream": ("Stream", "train on one domain after another and score all of them after each"),
    "joint": ("Joint", "train on all domains together with the test rows of a stream: its upper bound"),
    "all": ("AllDomains", "train on all domains and hold none out, for deployment"),
}  # fmt: skip
_SELECTIONS = {  # function in holdfast.train.select, description
    "train-validation": ("train_validation", "held-out rows of the training domains"),
    "leave-one-domain-out": (
        "leave_one_domain_out", "every training domain left out in turn (one extra fit per domain)"),
    "oracle": ("oracle", "held-out rows of the target: an upper bound, not a valid selection"),
    "current-domain": ("current_domain", "held-out rows of the domains of the current stage"),
    "last": ("last", "the last step"),
}  # fmt: skip
PLANS = {name: Entry(f"holdfast.train.plans:{plan}", about) for name, (plan, about) in _PLANS.items()}
SELECTIONS = {
    name: Entry(f"holdfast.train.select:{function}", about) for name, (function, about) in _SELECTIONS.items()
}
TASKS = {
    "classify": TaskEntry(
        "holdfast.tasks.classify:Classify", "one label per example", card="A classifier of {count} labels ({labels})",
        hub={"text": "text-classification", "image": "image-classification", "table": "tabular-classification",
             "vector": "tabular-classification", "graph": "graph-ml"}),
    "regress": TaskEntry(
        "holdfast.tasks.regress:Regress", "one number per example, with a prediction interval",
        card="A regression model", hub={"table": "tabular-regression", "vector": "tabular-regression"}),
    "multilabel": TaskEntry(
        "holdfast.tasks.multilabel:MultiLabel", "a set of labels per example, such as red|blue",
        card="A multi-label classifier of {count} labels ({labels})", hub={"text": "text-classification"}),
    "ordinal": TaskEntry(
        "holdfast.tasks.ordinal:Ordinal", "one of several ordered levels per example",
        card="A classifier of {count} ordered levels ({labels})", hub={"text": "text-classification"}),
    "tag": TaskEntry(
        "holdfast.tasks.tag:Tag", "one tag per word, scored by entities",
        card="A sequence tagger ({labels})", hub={"text": "token-classification"}),
    "span": TaskEntry(
        "holdfast.tasks.span:Span", "the answer to a question, as a span of a text", defaults={"batch": 8},
        card="An extractive question-answering model", hub={"text": "question-answering"}),
    "masked": TaskEntry(
        "holdfast.tasks.masked:Masked", "masked words of a text, as in pretraining",
        defaults={"tune": "full", "head": "vocabulary"}, card="A masked language model", hub={"text": "fill-mask"}),
}  # fmt: skip
