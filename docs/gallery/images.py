# %% [markdown]
# # Images: interpolation is easier than extrapolation
#
# A classifier sees digits at four angles and must read them at a fifth one. Which angles are hard?
#
# The images are those of scikit-learn, 8 pixels wide. Every angle is a domain with digits of its own, so that no
# digit is in two domains.

# %%
import matplotlib.pyplot as plt
import numpy as np
from scipy.ndimage import rotate
from sklearn.datasets import load_digits

import holdfast

digits = load_digits()
angles = [0, 18, 36, 54, 72]
order = np.random.default_rng(0).permutation(len(digits.images))

images, labels, domains = [], [], []
for k, angle in enumerate(angles):
    for i in order[k::5]:
        turned = rotate(digits.images[i], angle, reshape=False, order=1) * 15.9
        images.append(np.repeat(turned.clip(0, 255).astype(np.uint8)[None], 3, axis=0))  # three equal channels
        labels.append(str(digits.target[i]))
        domains.append(f"{angle}°")
np.savez("digits.npz", x=np.stack(images), y=labels, domain=domains)

figure, panels = plt.subplots(2, 5, figsize=(6, 2.6), subplot_kw={"xticks": [], "yticks": []})
for (row, column), panel in np.ndenumerate(panels):
    panel.imshow(images[domains.index(f"{angles[column]}°") + row][0], cmap="gray_r")
    if row == 0:
        panel.set_title(f"{angles[column]}°")
figure.suptitle("Two digits per domain")
plt.show()

# %% [markdown]
# `compare` holds out each angle in turn. The plan `in-domain` trains and tests on the same angle: its score is what a
# model could reach if it had labelled digits at that angle.

# %%
shared = {
    "methods": ["erm"], "encoder": "pixel-mlp", "settings": {"encoder.size": 8, "encoder.hidden": 64},
    "steps": 120, "batch": 32, "seeds": 1, "baselines": False, "combinations": False, "search_rate": False,
}  # fmt: skip
results = {
    "four other angles": holdfast.compare("digits.npz", out="runs/unseen", **shared),
    "the same angle": holdfast.compare("digits.npz", plan="in-domain", out="runs/inside", **shared),
}
scores = {name: {cell["target"]: cell["mean"] for cell in result.table()} for name, result in results.items()}
for name, row in scores.items():
    print(f"trained on {name}:", ", ".join(f"{angle}° {row[f'{angle}°']:.2f}" for angle in angles))

# %%
figure, axes = plt.subplots(figsize=(6, 3.5))
for name, row in scores.items():
    axes.plot(angles, [row[f"{angle}°"] for angle in angles], marker="o", label=f"trained on {name}")
axes.set(xlabel="angle of the test digits (degrees)", ylabel="accuracy", ylim=(0, 1), xticks=angles)
axes.set_title("The first and the last angle are the hardest")
axes.legend(loc="lower center")
plt.show()

# %% [markdown]
# An angle between two training angles is easier than one at either end: nothing in the training data shows what
# lies beyond the last angle. Before you look for a better method, find out whether your next domain lies between the
# ones you have; if not, a few labelled examples of it, and `holdfast adapt`, are worth more.
