# %% [markdown]
# # Regression: intervals for an age group that was not trained on
#
# A model predicts the progression of diabetes from ten measurements (scikit-learn's data, 442 patients). It is used
# on patients of an age group that is not in its training data. Do its intervals still contain nine in ten of the true
# values?

# %%
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

import holdfast

X, y = load_diabetes(return_X_y=True, scaled=False)
groups = ["under 35", "35 to 44", "45 to 54", "55 and older"]
domains = np.array(groups)[np.digitize(X[:, 0], [35, 45, 55])]
X = np.delete(X, 0, axis=1)  # the age itself is no feature
print({name: int((domains == name).sum()) for name in groups})

# %% [markdown]
# `left_out=True` also trains without each of the training groups. The errors on these groups show how wrong the model
# is about patients of an age that it has not seen, and `predict_interval(X, 0.9)` uses them. Without a coverage,
# intervals are those of the training groups.

# %%
results = {}
for held_out in groups:
    inside = domains != held_out
    model = holdfast.DomainRegressor(
        encoder="mlp", steps=80, batch=32, left_out=True, settings={"encoder.hidden": [32]}
    )
    model.fit(X[inside], y[inside], domains=domains[inside])
    truth = y[~inside]
    usual, wider = model.predict_interval(X[~inside]), model.predict_interval(X[~inside], 0.9)
    results[held_out] = (truth, model.predict(X[~inside]), usual, wider)
    covered = [((low <= truth) & (truth <= high)).mean() for low, high in (usual, wider)]
    width = [(high - low).mean() for low, high in (usual, wider)]
    print(
        f"{held_out:13}",
        "training groups: {0:.2f} covered, width {2:.0f}; left-out groups: {1:.2f}, {3:.0f}".format(*covered, *width),
    )

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
truth, predicted, _, (low, high) = results["55 and older"]
order = np.argsort(predicted)
left.fill_between(np.arange(len(order)), low[order], high[order], alpha=0.25, label="90% interval")
left.plot(predicted[order], label="prediction")
left.scatter(np.arange(len(order)), truth[order], s=8, color="black", label="truth")
left.set(title="Patients of 55 and older, who were held out", xlabel="patients, by prediction", ylabel="progression")
left.legend(fontsize=8)
for i, name in enumerate(("training groups", "left-out groups")):
    shares = [np.mean((pairs[i][0] <= truth) & (truth <= pairs[i][1])) for truth, _, *pairs in results.values()]
    right.plot(groups, shares, marker="o", label=f"calibrated on {name}")
right.axhline(0.9, color="grey", linestyle=":", label="nominal")
right.set(title="Share of true values inside the interval", ylim=(0.6, 1.02), xlabel="held-out group")
right.tick_params(axis="x", labelrotation=20)
right.legend(fontsize=8, loc="lower left")
plt.show()

# %% [markdown]
# Intervals from the training groups cover too little in three of the four groups; those from left-out groups come
# nearer to what they promise. All of them are wide, because progression is hard to predict from these measurements,
# and an interval shows that where a single number does not.
