"""Protocols, rules of selection and kinds of tasks."""

from __future__ import annotations

from holdfast.catalog.entry import PlanEntry, SelectionEntry, TaskEntry

PLANS = {
    "leave-one-out": PlanEntry(
        "holdfast.protocols.plans:LeaveOneOut",
        "train on all domains but one, score on that one, for each",
    ),
    "cross-dataset": PlanEntry(
        "holdfast.protocols.plans:CrossDataset",
        "train on some domains, score on others that are named",
    ),
    "single-source": PlanEntry(
        "holdfast.protocols.plans:SingleSource", "train on one domain, score on every other, for each"
    ),
    "given": PlanEntry(
        "holdfast.protocols.plans:GivenSplit", "the data's own split: rows marked train, valid and test in any domain"
    ),
    "in-domain": PlanEntry("holdfast.protocols.plans:InDomain", "train and score inside each domain: the reference"),
    "stream": PlanEntry("holdfast.protocols.plans:Stream", "domain after domain; every domain is scored after each"),
    "joint": PlanEntry(
        "holdfast.protocols.plans:Joint", "all domains at once, with the test rows of a stream: its upper reference"
    ),
    "all": PlanEntry("holdfast.protocols.plans:AllDomains", "train on all domains, hold none out: to use the model"),
}
SELECTIONS = {
    "train-validation": SelectionEntry(
        "holdfast.protocols.select:train_validation", "held-out rows of the training domains"
    ),
    "leave-one-domain-out": SelectionEntry(
        "holdfast.protocols.select:leave_one_domain_out",
        "each training domain left out in turn (costs as many fits)",
    ),
    "oracle": SelectionEntry(
        "holdfast.protocols.select:oracle", "held-out rows of the target: an upper bound, not a method"
    ),
    "current-domain": SelectionEntry(
        "holdfast.protocols.select:current_domain", "held-out rows of the stage's own domains"
    ),
    "last": SelectionEntry("holdfast.protocols.select:last", "the last step"),
}
TASKS = {
    "classify": TaskEntry("holdfast.tasks.classify:Classify", "one label an example"),
    "respond": TaskEntry(
        "holdfast.tasks.respond:Respond", "an answer to each message, learned from pairs of message and response",
        defaults={"encoder": "dialogue-gru", "head": "none"},
    ),
    "tag": TaskEntry(
        "holdfast.tasks.tag:Tag", "a tag for each word, scored by the entities they make", defaults={"tune": "full"}
    ),
    "span": TaskEntry(
        "holdfast.tasks.span:Span", "the answer to a question, as a stretch of a text", defaults={"tune": "full"}
    ),
    "masked": TaskEntry(
        "holdfast.tasks.masked:Masked", "the words that were hidden in a text, as in pretraining",
        defaults={"tune": "full", "head": "vocabulary"},
    ),
}  # fmt: skip
