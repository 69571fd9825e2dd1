"""The model card that goes with every release, generated from its configuration and claim."""

from __future__ import annotations

from typing import Any

from veilset.privacy.bounds import Adjacency
from veilset.privacy.claim import Claim, shown


def plain_words(claim: Claim) -> list[str]:
    """The claim in sentences for a privacy officer; numbers come from the run's own ledger."""
    if claim.epsilon is None:
        return [*claim.stamps, "No privacy can be claimed for this model. Treat it like the images it was trained on."]
    change = "adding or removing" if claim.adjacency is Adjacency.ADD_REMOVE else "replacing"
    unit = "one image" if claim.unit == "record" else "all images of one person"
    power = claim.attack_power(0.01) or 0.0
    sentences = [
        f"This model is ({shown(claim.epsilon)}, {claim.delta:g})-differentially private for {change} {unit}.",
        f"Meaning: {_attack(claim)} at most {100 * power:.3g} %, whatever is done with the model.",
    ]
    if claim.as_replace is not None:
        sentences.append(f"For replacing {unit} by another, the same noise gives epsilon {shown(claim.as_replace)}.")
    if claim.published is not None:
        sentences.append(
            f"The paper's own formula gives epsilon {claim.published.epsilon:.4g} for this noise. Status of that "
            f"formula: {claim.published.status} ({claim.published.source})."
        )
    sentences += [
        "Anything computed from this model and public information alone adds no risk. Every further use of the images "
        "(another model, a score, tuning) adds to it.",
        "It does not hide facts that are true of the whole group, and it protects nobody if an assumption fails.",
    ]
    return [*claim.stamps, *sentences]


def _attack(claim: Claim) -> str:
    if claim.adjacency is Adjacency.ADD_REMOVE:
        return (
            "somebody who knows all other images and falsely accuses 1 % of those absent recognises, of those present,"
        )
    return "somebody who knows all other images and wrongly picks 1 % of those not used recognises, of those used,"


def model_card(config: dict[str, Any], claim: Claim) -> str:
    spec = config["spec"]
    settings = "\n".join(f"| {name} | {value} |" for name, value in config["config"].items())
    assumptions = "\n".join(f"- {text}" for text in claim.assumptions) or "- none: there is no claim"
    sentences = "\n".join(f"{number}. {text}" for number, text in enumerate(plain_words(claim), start=1))
    return f"""# Synthetic images by {config["method"]}

![samples](samples.png)

`{claim.summary}`

## What this means
{sentences}

## Assumptions
{assumptions}

## What it generates
{spec["height"]} x {spec["width"]} images with {spec["channels"]} channel(s), classes: {", ".join(spec["class_names"])}.
Class shares of samples are even or declared, never counted on the private images. Declared size of the collection:
{config["declared_size"]}.

## How to use it
```python
import veilset
model = veilset.from_pretrained("this-folder")
images = model.sample(1000, seed=0)
```
`veilset verify this-folder` checks the files, the ledger and the epsilon again. `sketch.safetensors`, where there is
one, holds the noisy sums this model was made from; `veilset synthesize this-folder` makes another model from them.

## Settings
| option | value |
|---|---|
{settings}
| accounting | {config["accounting"]} |
| veilset | {config["veilset"]} |
"""
