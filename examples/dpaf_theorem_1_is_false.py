"""Theorem 1 of DPAF is false: an attack on the smallest model it speaks of. Takes a second.

python examples/dpaf_theorem_1_is_false.py

The theorem: if the first half of a model is trained by DP-SGD, it is private, however the second half is trained, as
long as that one is thrown away. The model here is a product of two numbers, first x second x input. 99 records are
alike; one more is mislabelled, or absent. `first` is trained by DP-SGD, `second` by plain gradient descent, as in the
paper. In the first step the one record turns the sign of `second`; from then on the clipped gradients of all 99 others
point the other way, and their sum moves by 198 clip norms, although its noise was made for a move by 1.
"""

from __future__ import annotations

import math

import torch
from scipy.stats import beta
from torch import Tensor

from veilset.privacy.gaussian import gaussian_epsilon
from veilset.privacy.noise import NoiseSource, SeededNoise

OTHERS, LABEL, WRONG_LABEL = 99, 10.0, -3000.0
STEPS, CLIP, NOISE = 10, 1.0, 50.0
FIRST_RATE, SECOND_RATE = 0.05, 0.1
DELTA = 1e-5
RUNS = 100_000


def claimed_epsilon() -> float:
    """What the theorem claims: so many Gaussian releases of a sum that one record moves by at most the clip norm."""
    return gaussian_epsilon(math.sqrt(STEPS) * CLIP / NOISE, DELTA)


def trained(present: bool, noise: NoiseSource, runs: int = RUNS) -> Tensor:
    """The released weight `first` of so many independent runs, with or without the one record."""
    first, second = torch.ones(2, runs, dtype=torch.float64)
    for _ in range(STEPS):
        error, wrong_error = first * second - LABEL, first * second - WRONG_LABEL
        total = OTHERS * (error * second).clamp(-CLIP, CLIP)
        plain = OTHERS * error * first
        if present:
            total = total + (wrong_error * second).clamp(-CLIP, CLIP)
            plain = plain + wrong_error * first
        released = total + NOISE * CLIP * noise.normal(runs)
        second = second - SECOND_RATE * plain / (OTHERS + 1)
        first = first - FIRST_RATE * released / (OTHERS + 1)
    return first


def measured_epsilon(absent: Tensor, present: Tensor, confidence: float = 0.95) -> float:
    """A lower bound by the attack "`first` is below the middle", which is set on one half and judged on the other."""
    half = len(absent) // 2
    middle = float(absent[:half].mean() + present[:half].mean()) / 2
    accused, found = (int((values[half:] < middle).sum()) for values in (absent, present))
    judged, tail = len(absent) - half, (1 - confidence) / 2
    # Clopper and Pearson 1934, both sides.
    false_alarms = float(beta.ppf(1 - tail, accused + 1, judged - accused)) if accused < judged else 1.0
    power = float(beta.ppf(tail, found, judged - found + 1)) if found else 0.0
    return math.log(max(power - DELTA, 1e-300) / false_alarms)


def main() -> None:
    noise = SeededNoise(0)  # an experiment: nobody's data is at stake
    absent, present = (trained(world, noise, 2 * RUNS) for world in (False, True))
    print(f"claimed by theorem 1:  epsilon   {claimed_epsilon():.3f} at delta {DELTA:g}")
    print(f"measured by attack:    epsilon > {measured_epsilon(absent, present):.1f} with 95 % confidence")


if __name__ == "__main__":
    main()
