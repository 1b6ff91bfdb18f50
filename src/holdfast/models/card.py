"""The model card: what a model folder's README says, from the record alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast import catalog
from holdfast.record import RunRecord


def to_predict(spec: Mapping[str, Any]) -> str:
    """What a user would bring to a model of this spec."""
    return "PICTURES/" if catalog.lookup("encoders", str(spec["encoder"])).takes == "image" else "NEW.csv"


def card(name: str, classes: Sequence[str], record: RunRecord) -> str:
    """What was trained on what, how well it does inside its domains, and how to use it."""
    spec, stage = record.spec, record.stages[-1]
    metric = spec["metric"]
    sizes = {domain: count for each in record.stages for domain, count in each["sizes"]["train"].items()}
    lines = [
        f"| {domain} | {sizes.get(domain, 0)} | {scores[metric]:.3f} |"
        for domain, scores in {**stage["test"], **stage["valid"]}.items()
        if scores[metric] is not None
    ]
    labels = ", ".join(classes[:20]) + (", ..." if len(classes) > 20 else "")
    kind = {
        "classify": f"A classifier of {len(classes)} labels ({labels})",
        "respond": "A model that answers messages",
        "tag": f"A tagger of words ({labels})",
        "span": "A model that finds the answer to a question in a text",
        "masked": "A model that guesses hidden words",
    }[spec.get("task", "classify")]
    neck = "" if spec.get("neck") in (None, "none") else f" and neck `{spec['neck']}`"
    return f"""# {name}

{kind}, trained by Holdfast {record.code["version"]} with method
`{spec["method"]}`{neck} on encoder `{spec["encoder"]}` ({spec["tune"]}).

Data: {spec["data"]} (content {spec["fingerprint"]}), seed {spec["seed"]}; step {stage["step"]} of {spec["steps"]} was
kept by {spec["select"]}.

| domain | training examples | {metric} on held-out rows of the domain |
|---|---|---|
{chr(10).join(lines)}

These scores are inside the training domains. For a domain never seen, see `holdfast compare`.

```bash
holdfast predict {name} {to_predict(spec)} --out predictions.csv
```
"""
