"""The model card that goes with every release, generated from its configuration and claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import Claim, shown


def unit_in_words(claim: Claim) -> str:
    return "one image" if claim.unit is Unit.RECORD else "all images of one person"


def in_words(claim: Claim) -> str:
    """The neighbouring relation: what an epsilon is for."""
    change = "adding or removing" if claim.adjacency is Adjacency.ADD_REMOVE else "replacing"
    return f"for {change} {unit_in_words(claim)}"


def plain_words(claim: Claim, what: str = "model") -> list[str]:
    """The claim in sentences for a privacy officer; numbers come from the run's own ledger."""
    if claim.epsilon is None:
        return [
            *claim.stamps,
            f"No privacy can be claimed for this {what}. Treat it like the images it was trained on.",
        ]
    power = claim.attack_power(0.01) or 0.0
    sentences = [
        f"This {what} is ({shown(claim.epsilon)}, {claim.delta:g})-differentially private {in_words(claim)}.",
        f"Meaning: {_attack(claim)} at most {shown(100 * power)} %, whatever is done with the {what}.",
    ]
    if claim.as_replace is not None:
        sentences.append(
            f"For replacing {unit_in_words(claim)} by another, the same noise gives epsilon {shown(claim.as_replace)}."
        )
    if claim.published is not None:
        sentences.append(
            f"The paper's own formula gives epsilon {claim.published.epsilon:.4g} for this noise. Status of that "
            f"formula: {claim.published.status} ({claim.published.source})."
        )
    sentences += [
        f"Anything computed from this {what} and public information alone adds no risk. Every further use of the "
        "images (another model, a score, tuning) adds to it.",
        "It does not hide facts that are true of the whole group, and it protects nobody if an assumption fails.",
    ]
    return [*claim.stamps, *sentences]


def _attack(claim: Claim) -> str:
    if claim.adjacency is Adjacency.ADD_REMOVE:
        return (
            "somebody who knows all other images and falsely accuses 1 % of those absent recognises, of those present,"
        )
    return "somebody who knows all other images and wrongly picks 1 % of those not used recognises, of those used,"


def claim_text(claim: Claim, sentences: Sequence[str]) -> str:
    """The part of a card that says what is proven, in these sentences too, and what that assumes."""
    assumptions = "\n".join(f"- {text}" for text in claim.assumptions) or "- none: there is no claim"
    numbered = "\n".join(f"{number}. {text}" for number, text in enumerate(sentences, start=1))
    return f"""`{claim.summary}`

## What this means
{numbered}

## Assumptions
{assumptions}"""


def tasks_table(tasks: Sequence[Mapping[str, Any]]) -> str:
    """Declared facts of tasks that were learned one after the other."""
    rows = [
        f"| {number} | {', '.join(task['classes'])} | {task['declared_size']} |"
        for number, task in enumerate(tasks, start=1)
    ]
    return "\n".join(["| task | classes | declared size |", "|---|---|---|", *rows])


def _settings_table(config: Mapping[str, Any]) -> str:
    rows = [f"| {name} | {value} |" for name, value in config["config"].items()]
    ends = [f"| {name} | {config[name]} |" for name in ("accounting", "veilset")]
    return "\n".join(["## Settings", "| option | value |", "|---|---|", *rows, *ends])


def classifier_card(config: dict[str, Any], claim: Claim) -> str:
    spec = config["spec"]
    return f"""# A classifier by {config["method"]}

{claim_text(claim, plain_words(claim, "classifier"))}

## What it was trained on
{spec["height"]} x {spec["width"]} images with {spec["channels"]} channel(s), task after task. It knows the classes of
these tasks, in their order, and was never shown others.

{tasks_table(config["tasks"])}

{_settings_table(config)}
"""


def model_card(config: dict[str, Any], claim: Claim) -> str:
    spec = config["spec"]
    return f"""# Synthetic images by {config["method"]}

![samples](samples.png)

{claim_text(claim, plain_words(claim))}

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

{_settings_table(config)}
"""
