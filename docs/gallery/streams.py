# %% [markdown]
# # Streams: learning one domain after another without forgetting
#
# Data of a new source arrive every month, and the model is trained on the latest month only. How much does it forget,
# and what helps?
#
# The sources are scikit-learn's digits, each with the pixels in another fixed order, as if every source had wired its
# sensor in its own way. On a stream, `erm` is plain fine-tuning, `ewc` (Kirkpatrick et al., 2017) holds on to weights
# that mattered earlier and stores no examples, and `replay` (Rolnick et al., 2019) stores a few examples of earlier
# sources.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas
from sklearn.datasets import load_digits

import holdfast

pixels, digit = load_digits(return_X_y=True)
rng = np.random.default_rng(0)
pixels = pixels + rng.normal(0, 2, pixels.shape)  # noise of the sensor
sources = ["May", "June", "July", "August"]
frames = []
for rows, source in zip(np.array_split(rng.permutation(len(pixels)), 4), sources, strict=True):
    order = np.arange(64) if source == "May" else rng.permutation(64)
    frame = pandas.DataFrame(pixels[rows][:, order], columns=[f"pixel{i}" for i in range(64)])
    frames.append(frame.assign(label=digit[rows].astype(str), domain=source))
stream = pandas.concat(frames, ignore_index=True)

# %%
methods = {"erm": {}, "ewc": {"method.weight": 400.0}, "replay": {"method.capacity": 150}}
scores = {}
for method, settings in methods.items():
    result = holdfast.compare(
        stream, plan="stream", methods=[method], encoder="mlp", settings={"encoder.hidden": [64], **settings},
        steps=80, batch=32, seeds=1, baselines=False, combinations=False, search_rate=False, out=f"runs/{method}",
    )  # fmt: skip
    (record,) = result.records
    matrix = np.array([[stage["test"][source]["accuracy"] for source in sources] for stage in record.stages])
    forgotten = np.mean([matrix[:-1, j].max() - matrix[-1, j] for j in range(3)])
    print(f"{method:6} final average {matrix[-1].mean():.2f}, forgotten {100 * forgotten:.0f} points")
    scores[method] = matrix

# %%
figure, panels = plt.subplots(1, 3, figsize=(9, 3), sharey=True)
for panel, (method, matrix) in zip(panels, scores.items(), strict=True):
    image = panel.imshow(matrix, vmin=0, vmax=1, cmap="viridis")
    for (stage, source), value in np.ndenumerate(matrix):
        colour = "white" if value < 0.6 else "black"
        panel.text(source, stage, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8)
    panel.set(title=method, xlabel="tested on")
    panel.set_xticks(range(4), sources)
    panel.set_yticks(range(4), sources)
panels[0].set_ylabel("after training on")
figure.colorbar(image, ax=panels, label="accuracy")
figure.suptitle("Accuracy on every source after every stage")
plt.show()

# %% [markdown]
# Read a column from the diagonal downwards: it is the history of one source after it was learned. Fine-tuning learns
# every source and loses it again. `ewc` forgets less, but the weights that it holds on to are missing when the next
# source is learned. `replay` with 150 stored examples has the best average. For texts, `progressive(erm)` with the
# encoder `memory-lstm` adds memory slots for every domain instead;
# [Streams of domains](../tutorials/streams.md) has the commands.
