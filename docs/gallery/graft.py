# %% [markdown]
# # Your own network: graft experts into it
#
# You have a PyTorch network and a training loop. `holdfast.graft` inserts a layer of experts in place. Do the experts
# divide the work, and does it help on a domain that was not trained on?
#
# The data are digits in four versions: as they are, inverted, mirrored, and with a blot. The fourth version is held
# out.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import holdfast

pixels, digit = load_digits(return_X_y=True)
pixels = torch.tensor(pixels, dtype=torch.float32).view(-1, 8, 8) / 16
digit = torch.tensor(digit)
blotted = pixels.clone()
blotted[:, 2:5, 0:3] = 1
versions = {"plain": pixels, "inverted": 1 - pixels, "mirrored": pixels.flip(2), "blotted": blotted}
train = {name: x[:1000].flatten(1) for name, x in versions.items() if name != "blotted"}
test = {name: x[1000:].flatten(1) for name, x in versions.items()}


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


# %% [markdown]
# The training loop is an ordinary one. The only addition is the tape: experts record their balance loss on it. A
# third network with random routing is the null control: it has the same experts and parameters, but its router never
# learns.


# %%
def fit(network, steps=150):
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    network.train()
    for _ in range(steps):
        rows = torch.randint(1000, (32,), generator=generator)
        x, y = torch.cat([part[rows] for part in train.values()]), digit[rows].repeat(len(train))
        with holdfast.tape() as side:
            loss = nn.functional.cross_entropy(network(x), y) + holdfast.auxiliary_loss(side)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


def network():
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(64, 10))


networks = {"plain network": network(), "experts": network(), "random routing": network()}
experts = {"at": ["1"], "feed": ("up", "act", "down"), "count": 4, "top": 1}
holdfast.graft(networks["experts"], experts=experts)
holdfast.graft(networks["random routing"], experts={**experts, "router": "random", "noise": 0.0, "balance": 0.0})
for each in networks.values():
    fit(each)

accuracy, routes = {}, {}
with torch.no_grad():
    for name, x in test.items():
        accuracy[name] = [(each(x).argmax(1) == digit[1000:]).float().mean().item() for each in networks.values()]
        with holdfast.tape() as side:
            networks["experts"](x)
        routes[name] = torch.bincount(side["experts/chosen"][0].flatten(), minlength=4) / len(x)
for name, row in accuracy.items():
    print(f"{name:9}", ", ".join(f"{each} {value:.3f}" for each, value in zip(networks, row, strict=True)))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
at = np.arange(4)
for i, name in enumerate(networks):
    left.bar(at + 0.27 * (i - 1), [row[i] for row in accuracy.values()], 0.27, label=name)
left.set_xticks(at, list(accuracy))
left.set(title="Accuracy per version; blotted was held out", ylim=(0, 1.2))
left.legend(loc="upper center", ncols=3, fontsize=8)
image = right.imshow(torch.stack(list(routes.values())).numpy(), vmin=0, cmap="Blues")
right.set_yticks(at, list(routes))
right.set(title="Share of the digits that each expert receives", xlabel="expert", xticks=range(4))
figure.colorbar(image, ax=right)
plt.show()

# %% [markdown]
# `holdfast.save_graft` stores the inserted parts only, `holdfast.ungraft` restores the original network, and existing
# parameters keep their names. The router separates the inverted digits from the others, so the work is divided by
# domain. On the held-out version this does not help: random routing, which has the same parameters, is at least as
# good. A gain of experts counts only if it exceeds that of the null control, over several seeds.
