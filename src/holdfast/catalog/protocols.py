"""Protocols, model selection and tasks."""

from __future__ import annotations

from holdfast.catalog.entry import PlanEntry, SelectionEntry, TaskEntry

PLANS = {
    "leave-one-out": PlanEntry(
        "holdfast.protocols.plans:LeaveOneOut",
        "train on all domains but one and score that one, for every domain",
    ),
    "cross-dataset": PlanEntry(
        "holdfast.protocols.plans:CrossDataset",
        "train on some domains and score the named target domains",
    ),
    "single-source": PlanEntry(
        "holdfast.protocols.plans:SingleSource", "train on one domain and score all others, for every domain"
    ),
    "given": PlanEntry(
        "holdfast.protocols.plans:GivenSplit", "the split of the data: rows marked train, valid and test in any domain"
    ),
    "in-domain": PlanEntry(
        "holdfast.protocols.plans:InDomain", "train and score within every domain: the reference without a shift"
    ),
    "stream": PlanEntry(
        "holdfast.protocols.plans:Stream", "train on one domain after another and score all of them after each"
    ),
    "joint": PlanEntry(
        "holdfast.protocols.plans:Joint",
        "train on all domains together with the test rows of a stream: its upper bound",
    ),
    "all": PlanEntry("holdfast.protocols.plans:AllDomains", "train on all domains and hold none out, for deployment"),
}
SELECTIONS = {
    "train-validation": SelectionEntry(
        "holdfast.protocols.select:train_validation", "held-out rows of the training domains"
    ),
    "leave-one-domain-out": SelectionEntry(
        "holdfast.protocols.select:leave_one_domain_out",
        "every training domain left out in turn (one extra fit per domain)",
    ),
    "oracle": SelectionEntry(
        "holdfast.protocols.select:oracle", "held-out rows of the target: an upper bound, not a valid selection"
    ),
    "current-domain": SelectionEntry(
        "holdfast.protocols.select:current_domain", "held-out rows of the domains of the current stage"
    ),
    "last": SelectionEntry("holdfast.protocols.select:last", "the last step"),
}
TASKS = {
    "classify": TaskEntry("holdfast.tasks.classify:Classify", "one label per example"),
    "respond": TaskEntry(
        "holdfast.tasks.respond:Respond", "a response to every message, trained on message-response pairs",
        defaults={"encoder": "dialogue-gru", "head": "none"},
    ),
    "tag": TaskEntry(
        "holdfast.tasks.tag:Tag", "one tag per word, scored by entities", defaults={"tune": "full"}
    ),
    "span": TaskEntry(
        "holdfast.tasks.span:Span", "the answer to a question, as a span of a text", defaults={"tune": "full"}
    ),
    "masked": TaskEntry(
        "holdfast.tasks.masked:Masked", "masked words of a text, as in pretraining",
        defaults={"tune": "full", "head": "vocabulary"},
    ),
}  # fmt: skip
