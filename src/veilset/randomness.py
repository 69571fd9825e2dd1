"""Reproducible randomness for everything that is not privacy noise: weights, latents, batch order.

Never global state: every user takes a ``torch.Generator`` that is derived from a seed and a name, so that adding one
consumer does not shift another. Privacy noise and sampling draws come from ``privacy.noise`` and from nowhere else.
"""

import hashlib

import torch


def named_generator(seed: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """A generator that depends on ``seed`` and ``name`` alone.

    >>> a, b = named_generator(0, "weights"), named_generator(0, "weights")
    >>> bool((torch.rand(4, generator=a) == torch.rand(4, generator=b)).all())
    True
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator(device=device)
    generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return generator


def initialise(module: torch.nn.Module, generator: torch.Generator) -> torch.nn.Module:
    """Redraws all weights of ``module`` from ``generator``: torch's own initialisers use global state.

    Same laws as torch's defaults for linear and convolution layers: uniform within 1 / sqrt(fan in).
    """
    for layer in module.modules():
        weight = getattr(layer, "weight", None)
        if isinstance(weight, torch.nn.Parameter) and weight.dim() >= 2:
            limit = (weight.shape[1] * weight[0, 0].numel()) ** -0.5
            with torch.no_grad():
                for parameter in (weight, getattr(layer, "bias", None)):
                    if isinstance(parameter, torch.nn.Parameter):
                        draw = torch.rand(parameter.shape, generator=generator, device=generator.device)
                        parameter.copy_(draw * (2 * limit) - limit)
    return module


GOLDEN = -0x61C8864680B583EB
"""0x9E3779B97F4A7C15 as a signed number: torch's integers of 64 bits wrap around."""
FIRST_FACTOR = -0x40A7B892E31B1A47
SECOND_FACTOR = -0x6B2FB644ECCEEE15


def stream_keys(seed: int, name: str, count: int) -> torch.Tensor:
    """Keys of ``count`` streams for `uniforms`; each depends on ``seed``, ``name`` and its own number alone."""
    digests = (hashlib.sha256(f"{seed}/{name}/{number}".encode()).digest() for number in range(count))
    return torch.tensor([int.from_bytes(digest[:8], "little", signed=True) for digest in digests], dtype=torch.int64)


def uniforms(keys: torch.Tensor, steps: torch.Tensor, count: int) -> torch.Tensor:
    """``count`` uniform numbers inside (0, 1) of every stream at its own step, (streams, count) in float64.

    A number depends on its key, its step and its place alone, on any device: thousands of streams that must not shift
    each other cannot share a ``torch.Generator``, and one each would draw them one after the other on the host. The
    numbers are those of SplitMix64 (Steele et al. 2014) started at the key, 2^32 numbers a step.
    """
    places = torch.arange(1, count + 1, device=keys.device)
    state = keys[:, None] + ((steps[:, None] << 32) + places) * GOLDEN
    state = (state ^ _shifted(state, 30)) * FIRST_FACTOR
    state = (state ^ _shifted(state, 27)) * SECOND_FACTOR
    state = state ^ _shifted(state, 31)
    return (_shifted(state, 12).double() + 0.5) * 2.0**-52


def _shifted(values: torch.Tensor, bits: int) -> torch.Tensor:
    """A shift to the right that brings in zeros; torch's own repeats the sign."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)
