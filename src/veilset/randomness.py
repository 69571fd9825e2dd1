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
