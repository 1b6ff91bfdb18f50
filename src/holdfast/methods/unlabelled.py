"""Unlabelled groups at the end of a batch, for methods that align the features of domains."""

from dataclasses import replace

import torch

from holdfast.core import inputs
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import check_known
from holdfast.core.settings import UNLABELLED


def check_choice(choice: str) -> None:
    """Raise for an unknown value of the setting `unlabelled`."""
    check_known("method.unlabelled", choice, UNLABELLED)


def labelled_count(batch: DomainBatch, groups: int) -> int:
    """Return the number of labelled examples, which come first; the last `groups` groups have no labels."""
    return sum(batch.sizes[: len(batch.sizes) - groups])


def with_control(batch: DomainBatch, groups: int, choice: str) -> DomainBatch:
    """Return the batch, for the null control with random labelled inputs in place of the unlabelled ones."""
    if not groups or choice != "source":
        return batch
    count, total = labelled_count(batch, groups), len(batch.y)
    drawn = torch.randint(count, (total - count,))
    rows = torch.cat([torch.arange(count), drawn])
    return replace(batch, x=inputs.take(batch.x, rows.to(batch.y.device)))
