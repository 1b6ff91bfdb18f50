# %% [markdown]
# # Foreign examples: when not to trust a prediction
#
# A model labels whatever it receives, also inputs of a kind that it has never seen. Which predictions should a person
# check?
#
# The score `foreign` is the percentile of an example's distance to the training data, among validation examples: 99
# means farther away than 99% of them. Here the model knows the digits 0 to 7 in three versions and receives,
# unannounced, 8 and 9 and an unknown version.

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import holdfast

pixels, digit = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
order = rng.permutation(len(pixels))
pixels, digit = pixels[order], digit[order]
image = pixels.reshape(-1, 8, 8)
versions = {"plain": image, "faint": 0.6 * image, "bold": np.clip(1.5 * image, 0, 16), "inverted": 16 - image}

known, new = (digit < 8) & (np.arange(len(digit)) < 1200), np.arange(len(digit)) >= 1200
X = np.concatenate([versions[name][known].reshape(-1, 64)[k::3] for k, name in enumerate(("plain", "faint", "bold"))])
y = np.concatenate([digit[known][k::3] for k in range(3)])
domains = np.repeat(["plain", "faint", "bold"], [len(digit[known][k::3]) for k in range(3)])
model = holdfast.DomainClassifier(encoder="mlp", steps=150, batch=32, settings={"encoder.hidden": [64]}).fit(
    X, y, domains=domains
)

# %%
batches = {
    "known digits, known version": (versions["plain"][new & (digit < 8)], digit[new & (digit < 8)]),
    "digits 8 and 9": (versions["plain"][new & (digit >= 8)], digit[new & (digit >= 8)]),
    "inverted version": (versions["inverted"][new & (digit < 8)], digit[new & (digit < 8)]),
}
scores, correct = {}, {}
for name, (batch, truth) in batches.items():
    flat = batch.reshape(-1, 64)
    scores[name], correct[name] = model.foreignness(flat), model.predict(flat) == truth
    above = (scores[name] > 95).mean()
    print(f"{name:28} accuracy {correct[name].mean():.2f}, {above:.0%} of the examples are above the 95th percentile")

# %% [markdown]
# Sort all new examples by `foreign` and let the model label only the first ones. The curve shows the accuracy of what
# it labels.

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
left.hist(list(scores.values()), bins=np.linspace(0, 100, 21), stacked=True, label=list(scores))
left.set(title="Foreign score by kind of input", xlabel="foreign (percentile)", ylabel="examples")
left.legend(fontsize=8, loc="upper left")
foreign, right_or_not = np.concatenate(list(scores.values())), np.concatenate(list(correct.values()))
ranked = right_or_not[np.argsort(foreign, kind="stable")]
labelled = np.arange(1, len(ranked) + 1)
right.plot(labelled / len(ranked), np.cumsum(ranked) / labelled, label="least foreign first")
right.axhline(ranked.mean(), color="grey", linestyle=":", label="in random order")
right.set(
    title="Accuracy of the labelled examples", xlabel="share of the examples that the model labels", ylim=(0, 1.02)
)
right.legend(loc="lower left")
plt.show()

# %% [markdown]
# The unknown version is recognised at once, the unknown digits are not: to this network an 8 lies within the cloud of
# the digits that it knows. `foreign` measures a distance to the training data, no more; use it to find inputs of
# another kind, and prediction sets for doubt between classes. `holdfast predict --abstain-above 99` gives no label to
# the most foreign examples.
