"""The page that goes with a released sketch: five sentences for a privacy officer, with its own numbers."""

from __future__ import annotations

from typing import Any

from veilset.card import claim_text, in_words, unit_in_words
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.claim import Claim, shown
from veilset.privacy.gaussian import gaussian_epsilon
from veilset.sketch_file import row_bound

IMAGES_OF_ONE = (2, 8)
"""Numbers of images of one person for which the loss is printed."""


def sketch_sentences(config: dict[str, Any], claim: Claim) -> list[str]:
    """What the file is, what is proven about it, what that means, what adds risk and what it does not do."""
    if claim.epsilon is None:
        return [*claim.stamps, "No privacy can be claimed for this sketch. Treat it like the images it was made from."]
    bound = row_bound(float(config["sketch"]["total_weight"]))
    rounds, parts = 1 + len(config["sketch"]["later"]), len(config["sketch"]["parts"])
    times = "" if rounds == 1 else f" There are {rounds} such sums, measured one after the other; their losses add up."
    merged = "" if parts == 1 else f" It adds the sums of {parts} parts with different people, each with its own noise."
    return [
        *claim.stamps,
        "This file is a sum of bounded, per-image measurements plus Gaussian noise; each image with its label moves "
        f"the noise-free sum by at most {shown(bound)}, whatever the other images are.{times}{merged}",
        _guarantee(claim),
        _meaning(claim),
        "Anything computed from this file and public information alone adds no risk; every further use of the images "
        "(another sketch, a score, tuning) adds to it.",
        "It does not hide facts that are true of the whole group, and it protects nobody if an assumption fails.",
    ]


def _guarantee(claim: Claim) -> str:
    mu = "" if claim.mu is None else f" (mu = {shown(claim.mu)})"
    text = f"It is ({shown(claim.epsilon or 0.0)}, {claim.delta:g})-differentially private {in_words(claim)}{mu}"
    if claim.as_replace is not None:
        text += f"; for replacing {unit_in_words(claim)} by another the epsilon is {shown(claim.as_replace)}"
    if claim.unit is Unit.RECORD and claim.mu is not None:
        losses = [f"epsilon {shown(gaussian_epsilon(k * claim.mu, claim.delta))} for {k}" for k in IMAGES_OF_ONE]
        text += f"; for one person with k images mu is k times larger: {', '.join(losses)}"
    return f"{text}."


def _meaning(claim: Claim) -> str:
    power = 100 * (claim.attack_power(0.01) or 0.0)
    if claim.adjacency is Adjacency.ADD_REMOVE:
        wrong, right = "falsely accuses 1 % of absent ones", "recognises at most"
        return f"Meaning: an attacker who knows all other images and {wrong} {right} {shown(power)} % of those present."
    wrong = "wrongly picks 1 % of those not used"
    return (
        f"Meaning: an attacker who knows all other images and {wrong} recognises at most {shown(power)} % "
        "of those used."
    )


def sketch_card(config: dict[str, Any], claim: Claim) -> str:
    spec, sketch = config["spec"], config["sketch"]
    rounds = [(sketch["networks"], sketch["width"], 1), *map(tuple, sketch["later"])]
    table = "\n".join(
        f"| {place} | {count} | {width} | {kinds} |" for place, (count, width, kinds) in enumerate(rounds, start=1)
    )
    ledgers = "\n".join(
        f"| {place} | {one['ledger'][:16]} | {one['sums'][:16]} |"
        for place, part in enumerate(sketch["parts"], start=1)
        for one in part
    )
    return f"""# A sketch of images

{claim_text(claim, sketch_sentences(config, claim))}

## What was declared before reading
{spec["height"]} x {spec["width"]} images with {spec["channels"]} channel(s), classes: {", ".join(spec["class_names"])}.
Declared size of the collection: {config["declared_size"]}. Images per person: {config["rows_per_user"] or "no cap"}.
Seed of the random networks: {sketch["network_seed"]}. Weight of the count: {sketch["total_weight"]}.

| round | networks | width | kinds of a class |
|---|---|---|---|
{table}

## What was released
| part | ledger | sums |
|---|---|---|
{ledgers}

They are in sketch.safetensors, with the networks of later rounds. SHA-256 of that file: `{sketch["sha256"]}`.

## How to use it
`veilset synthesize this-folder --out run` trains a generator from this file alone, as often as you like.
`veilset verify this-folder` checks the files, the ledgers and the epsilon again.

Made by Veilset {config["veilset"]}, accounting {config["accounting"]}.
"""
