# %% [markdown]
# # Your own method: train for the worst half of the domains
#
# A training method is a class with one function, `step`. Here is a method in a few lines that averages only the
# largest domain risks. Does it help the domain that `erm` neglects?
#
# The mean of the largest risks is the conditional value at risk. With `share=1` it is the mean over all domains,
# which is `erm`: a null control that is part of the method.

# %%
from dataclasses import dataclass

import matplotlib.pyplot as plt
import numpy as np
import torch

import holdfast
from holdfast.core.batch import DomainBatch
from holdfast.core.settings import setting
from holdfast.core.tape import tape, with_auxiliary
from holdfast.methods.base import Method, Metrics


class WorstShare(Method):
    """Mean of the largest domain risks."""

    @dataclass(frozen=True)
    class Settings:
        share: float = setting(0.5, help="share of the domains whose risk counts; 1 is ERM")

    def step(self, batch: DomainBatch) -> Metrics:
        with tape() as side:
            output = self.model(batch.x)
        pairs = zip(batch.split(output), batch.split(batch.y), strict=True)
        risks = torch.stack([self.task.loss(logits, y) for logits, y in pairs])  # (domains,)
        loss = risks.topk(max(1, round(self.settings.share * len(risks)))).values.mean()
        self.optimizer.minimize(with_auxiliary(loss, side))
        return {"risk": risks.mean().detach(), "worst": risks.max().detach()}


# %% [markdown]
# Pass the class to `compare` in place of a name. The data have a cue that agrees with the label in all domains except
# the last.

# %%
data = holdfast.world("vector", "spurious", domains=4, size=200, seed=0)
shares = [1.0, 0.67, 0.33]
scores = {}
for share in shares:
    result = holdfast.compare(
        data, methods=["erm", WorstShare] if share == 1 else [WorstShare],
        settings={"method.share": share, "encoder.hidden": [16]}, steps=80, batch=32, seeds=1,
        baselines=False, combinations=False, search_rate=False, out=f"runs/share-{share}",
    )  # fmt: skip
    for cell in result.table():
        scores.setdefault((cell["method"], share), {})[cell["target"]] = cell["mean"]
names = {("erm", 1.0): "erm", **{("worst-share", share): f"share {share:g}" for share in shares}}
for key, name in names.items():
    print(f"{name:10}", ", ".join(f"{domain} {scores[key][domain]:.2f}" for domain in data.domains))

# %%
figure, axes = plt.subplots(figsize=(7, 3.4))
for i, (key, name) in enumerate(names.items()):
    axes.bar(np.arange(4) + 0.2 * i - 0.3, [scores[key][domain] for domain in data.domains], 0.2, label=name)
axes.set_xticks(range(4), list(data.domains))
axes.set(xlabel="held-out domain", ylabel="accuracy", title="Accuracy on the held-out domain by share of the risks")
axes.legend(ncols=4, loc="upper center", fontsize=8)
axes.set_ylim(0, 1.15)
plt.show()

# %% [markdown]
# `erm` and `share 1` are equal in every group, as they must be. A smaller share changes little on
# the last domain, where the cue is wrong, and costs accuracy elsewhere. The risks are those of the training domains,
# and in none of them the cue is wrong: a method cannot prepare for a failure that no training domain shows. Many new
# methods end like this, which is why `compare` tests them against `erm`.
#
# To use the method from the command line, put the class into a package with an entry point; [Adding a
# method](../adding-a-method.md) has the six lines.
