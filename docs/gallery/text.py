# %% [markdown]
# # Texts: what a new product costs a review classifier
#
# A classifier of product reviews was trained on three kinds of products and is used on a fourth. How much accuracy
# does that cost, and which classifier loses least?
#
# The reviews below are generated: every product has words of its own for praise and complaints, and some words change
# sides. A *loud* speaker is good, a *loud* kettle is not.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas

import holdfast

praise = {
    "books": ["gripping", "moving", "witty", "deep"], "phones": ["fast", "light", "crisp", "small"],
    "kettles": ["hot", "quiet", "fast", "sturdy"], "speakers": ["loud", "deep", "warm", "crisp"],
}  # fmt: skip
complaint = {
    "books": ["dull", "light", "slow", "predictable"], "phones": ["hot", "slow", "heavy", "cracked"],
    "kettles": ["loud", "leaky", "slow", "small"], "speakers": ["quiet", "small", "tinny", "distorted"],
}  # fmt: skip
filler = ["bought", "last", "month", "for", "my", "brother", "at", "home", "one", "of", "these"]
common = {"good": ["great", "superb", "recommended"], "bad": ["awful", "disappointing", "returned"]}

rng = np.random.default_rng(0)
rows = []
for product in praise:
    for _ in range(100):
        label = str(rng.choice(["good", "bad"]))
        own = (praise if label == "good" else complaint)[product]
        words = [*rng.choice(own, 2), *rng.choice(common[label], rng.integers(0, 2))]
        words += rng.choice(filler, 6).tolist()
        rows.append({"text": " ".join(rng.permutation(words)), "label": label, "domain": product})
reviews = pandas.DataFrame(rows)
print(reviews.groupby("domain").head(1).to_string(index=False))

# %% [markdown]
# `audit` measures the cost of the shift before any training: it fits the same simple classifier once on rows of the
# product itself, and once on the same number of rows of the other products.

# %%
audit = holdfast.audit(reviews)
print(audit.headline)

# %% [markdown]
# `compare` then trains a small network and adds simple baselines, with every product held out in turn.

# %%
result = holdfast.compare(
    reviews, methods=["erm"], encoder="bilstm", settings={"encoder.hidden": 16, "encoder.embedding": 16},
    steps=30, batch=24, lr=0.01, seeds=1, combinations=False, out="runs/reviews",
)  # fmt: skip
print(result.explanation)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8.5, 3.4), sharey=True)
for x, cost in enumerate(audit.baseline):
    left.plot([x, x], [cost.inside, cost.outside], color="lightgrey", linewidth=4, zorder=0)
    left.scatter(x, cost.inside, color="tab:blue", label="trained on this product" if x == 0 else None)
    left.scatter(x, cost.outside, color="tab:red", label="trained on other products" if x == 0 else None)
left.set_xticks(range(len(audit.baseline)), [cost.domain for cost in audit.baseline])
left.set(title="Audit: what an unseen product costs", ylabel="accuracy", ylim=(0.3, 1.02))
left.legend(loc="lower left")

names = list(dict.fromkeys(cell["method"] for cell in result.table()))
for i, name in enumerate(names):
    cells = {cell["target"]: cell["mean"] for cell in result.table() if cell["method"] == name}
    right.bar(np.arange(4) + 0.27 * (i - 1), [cells[product] for product in praise], 0.27, label=name)
right.set_xticks(range(4), list(praise))
right.set(title="Comparison: accuracy on the held-out product")
right.legend(fontsize=8)
plt.show()

# %% [markdown]
# The distance between the dots is the headroom: no method can gain more than that by generalising better. Words such
# as *great* carry over to every product, words such as *small* carry over with the wrong sign.
