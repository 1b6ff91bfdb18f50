"""Protocols, rules of selection and kinds of tasks."""

from __future__ import annotations

from holdfast.catalog.entry import Entry

PLANS = {
    "leave-one-out": Entry(
        "holdfast.protocols.plans:LeaveOneOut",
        "train on all domains but one, score on that one, for each",
    ),
    "cross-dataset": Entry(
        "holdfast.protocols.plans:CrossDataset",
        "train on some domains, score on others that are named",
    ),
    "single-source": Entry(
        "holdfast.protocols.plans:SingleSource", "train on one domain, score on every other, for each"
    ),
    "given": Entry(
        "holdfast.protocols.plans:Given", "the data's own split: rows marked train, valid and test in any domain"
    ),
    "in-domain": Entry("holdfast.protocols.plans:InDomain", "train and score inside each domain: the reference"),
    "stream": Entry("holdfast.protocols.plans:Stream", "domain after domain; every domain is scored after each"),
    "joint": Entry(
        "holdfast.protocols.plans:Joint", "all domains at once, with the test rows of a stream: its upper reference"
    ),
    "all": Entry("holdfast.protocols.plans:Everything", "train on all domains, hold none out: to use the model"),
}
SELECTIONS = {
    "train-validation": Entry("holdfast.protocols.select:train_validation", "held-out rows of the training domains"),
    "leave-one-domain-out": Entry(
        "holdfast.protocols.select:leave_one_domain_out",
        "each training domain left out in turn (costs as many fits)",
    ),
    "oracle": Entry("holdfast.protocols.select:oracle", "held-out rows of the target: an upper bound, not a method"),
    "current-domain": Entry("holdfast.protocols.select:current_domain", "held-out rows of the stage's own domains"),
    "last": Entry("holdfast.protocols.select:last", "the last step"),
}
TASKS = {
    "classify": Entry("holdfast.tasks.classify:Classify", "one label an example"),
    "respond": Entry(
        "holdfast.tasks.respond:Respond", "an answer to each message, learned from pairs of message and response",
        defaults={"encoder": "dialogue-gru", "head": "none"},
    ),
    "tag": Entry(
        "holdfast.tasks.tag:Tag", "a tag for each word, scored by the entities they make", defaults={"tune": "full"}
    ),
    "span": Entry(
        "holdfast.tasks.span:Span", "the answer to a question, as a stretch of a text", defaults={"tune": "full"}
    ),
    "masked": Entry(
        "holdfast.tasks.masked:Masked", "the words that were hidden in a text, as in pretraining",
        defaults={"tune": "full", "head": "vocabulary"},
    ),
}  # fmt: skip
