"""DANN, CDANN and PDA: features from which critics cannot predict the domain.

Shapes: b batch, n domains, d width, c classes.
"""

from collections.abc import Hashable
from itertools import combinations, permutations
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from holdfast.core import parallel
from holdfast.core.batch import DomainBatch
from holdfast.core.errors import BadInput
from holdfast.core.settings import checked_settings, log, retired_settings, setting, unlabelled_setting, whole
from holdfast.core.tape import tape
from holdfast.methods.base import Method, Metrics, StageInfo
from holdfast.nn.heads import Head, WordHead

HIDDEN = 256  # units of a critic


def discriminator(width: int, hidden: int, outputs: int) -> nn.Sequential:
    """Build a critic of three layers that maps features (b, width) to logits (b, outputs)."""
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    )


class DANN(Method):
    """Minimise risk - weight * domain loss, while a critic minimises the domain loss (Ganin et al., 2016).

    With `conditional` the critic also sees the class, and all classes have equal weight (Li et al., 2018). Both use the
    same forward pass.
    """

    @checked_settings
    class Settings:
        weight: float = setting(1.0, search=log(1e-2, 1e2), help="weight of the domain loss")
        hidden: int = setting(HIDDEN, search=whole(64, 1024), help="hidden units of the critic")
        critic_steps: int = setting(1, search=whole(1, 8), help="updates of the critic per step")
        conditional: bool = False
        unlabelled: str = unlabelled_setting()

        retired = retired_settings(grad_penalty=0.0)

    saved_attributes = ("optimizer", "critic_optimizer")
    min_domains = 2
    capturable = True

    @property
    def uses_unlabelled(self) -> bool:
        return not self.settings.conditional and self.settings.unlabelled != "none"

    def begin_stage(self, info: StageInfo) -> None:
        width = self.model.width
        self.unlabelled = info.unlabelled
        groups = len(info.train_domains) + info.unlabelled
        self.critic = discriminator(width, self.settings.hidden, groups).to(self.device)
        self.classes = None
        if self.settings.conditional:
            self.classes = nn.Embedding(cast(Head, self.model.head).outputs, width).to(self.device)
        embedding = self.classes.parameters() if self.classes is not None else ()
        self.critic_optimizer = self.make_optimizer([*self.critic.parameters(), *embedding], part="critic")

    def capture_key(self) -> Hashable | None:
        return None if self.unlabelled and self.settings.unlabelled == "source" else ()  # drawn on the CPU

    def step(self, batch: DomainBatch) -> Metrics:
        count = batch.labelled_count(self.unlabelled)
        batch = batch.with_control(self.unlabelled, self.settings.unlabelled)
        target = batch.positions()
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        for left in reversed(range(self.settings.critic_steps)):
            self.critic_optimizer.minimize(self._domain_loss(z.detach(), batch, target), ends_step=left == 0)
        risk = self.task.loss(self.model.head(z[:count]), batch.y[:count])
        confusion = self._domain_loss(z, batch, target)
        return self.minimize(risk - self.settings.weight * confusion, side, risk=risk, confusion=confusion)

    def _domain_loss(self, z: Tensor, batch: DomainBatch, target: Tensor) -> Tensor:
        """Return the loss of the critic."""
        if self.classes is None:
            return F.cross_entropy(self.critic(z), target)
        losses = F.cross_entropy(self.critic(z + self.classes(batch.y)), target, reduction="none")  # (b,)
        counts = torch.bincount(batch.y, minlength=self.classes.num_embeddings)  # (c,)
        return (losses / (counts[batch.y] * (counts > 0).sum())).sum()


class PDA(Method):
    """Minimise risk + feature_weight * adversarial + prediction_weight * KL, both per class over pairs of domains.

    Prompt-based distribution alignment (Jia & Zhang, 2022). With `words` the KL divergence is between distributions
    over words, as published: the label words, or the complete vocabulary with head.full=true. There is one critic per
    pair of domains; where a step has some of the domains, one critic with an output per domain, whose differences are
    the logits of the pairs.
    """

    @checked_settings
    class Settings:
        feature_weight: float = setting(0.1, search=log(1e-2, 1), help="weight of the adversarial loss")
        prediction_weight: float = setting(0.1, search=log(1e-2, 1), help="weight of the KL divergence")
        words: bool = setting(False, help="compare distributions over words; needs head=words")

        retired = retired_settings(hidden=256)

    saved_attributes = ("optimizer", "critic_optimizer")
    min_domains = 2

    def setup(self) -> None:
        if self.settings.words and not isinstance(self.model.head, WordHead):
            raise BadInput("method.words compares distributions over words: use --set head=words, or leave it out")

    def begin_stage(self, info: StageInfo) -> None:
        width = self.model.width
        count = len(info.train_domains)
        pairs, outputs = list(combinations(range(count), 2)), 1
        if 0 < info.domains_per_step < count:
            pairs, outputs = pairs[:1], count
        self.critics = nn.ModuleList(discriminator(width, HIDDEN, outputs) for _ in pairs).to(self.device)
        self.critic_optimizer = self.make_optimizer(list(self.critics.parameters()), part="critic")

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            z = self.model.features(batch.x)  # (b, d)
        output = self.model.head(z)
        risk = self.task.loss(output, batch.y)
        critic_loss = self._critic_loss(z.detach(), batch, flipped=False)
        if critic_loss.requires_grad:  # false if no class occurs in two domains of the batch
            self.critic_optimizer.accumulate(critic_loss)
        if parallel.all_max(int(critic_loss.requires_grad))[0]:  # all processes take the step, or none
            self.critic_optimizer.step()
        else:
            self.critic_optimizer.end_step()
        confusion = self._critic_loss(z, batch, flipped=True)
        words = cast(WordHead, self.model.head).words(z) if self.settings.words else output
        gap = self._prediction_gap(words, batch)
        loss = risk + self.settings.feature_weight * confusion + self.settings.prediction_weight * gap
        return self.minimize(loss, side, risk=risk, confusion=confusion, gap=gap)

    def _by_class(self, t: Tensor, batch: DomainBatch) -> list[list[Tensor]]:
        """Return the rows of each class, per domain."""
        domains = list(zip(batch.split(t), batch.split(batch.y), strict=True))
        return [[rows[y == c] for rows, y in domains] for c in batch.y.unique().tolist()]

    def _critic_loss(self, z: Tensor, batch: DomainBatch, *, flipped: bool) -> Tensor:
        """Return the mean loss of the critics; with `flipped` for exchanged domains, which the features minimise."""
        losses, pairs = [], list(combinations(range(len(batch.sizes)), 2))
        for groups in self._by_class(z, batch):
            for pair, (i, j) in enumerate(pairs):
                a, b = groups[i], groups[j]
                if len(a) and len(b):
                    logits = self._logits(torch.cat([a, b]), batch, pair, (i, j))
                    first = torch.cat([torch.ones(len(a)), torch.zeros(len(b))]).to(logits)
                    losses.append(F.binary_cross_entropy_with_logits(logits, 1 - first if flipped else first))
        return torch.stack(losses).mean() if losses else z.new_zeros(())

    def _logits(self, z: Tensor, batch: DomainBatch, pair: int, sides: tuple[int, int]) -> Tensor:
        """Return (b,) logits of the first domain of a pair against the second."""
        if batch.drawn is None:
            return self.critics[pair](z)[:, 0]
        outputs = self.critics[0](z)[:, batch.drawn[list(sides)]]
        return outputs[:, 0] - outputs[:, 1]

    def _prediction_gap(self, output: Tensor, batch: DomainBatch) -> Tensor:
        """Return the mean KL divergence between the mean predictions of a class in two domains."""
        gaps = [output.sum() * 0.0]
        for groups in self._by_class(output.softmax(dim=-1), batch):
            means = [g.mean(dim=0) for g in groups if len(g)]  # (c,) each
            gaps += [F.kl_div(a.clamp(min=1e-8).log(), b, reduction="sum") for a, b in permutations(means, 2)]
        return torch.stack(gaps).sum() / max(1, len(gaps) - 1)
