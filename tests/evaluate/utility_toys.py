"""Small image sets whose classes are easy, or nearly impossible, to tell apart."""

import dataclasses

import torch

from veilset.data.spec import ImageSet, ImageSpec
from veilset.randomness import named_generator


def toy(name, count=240, *, height=8, width=8, channels=1, names=("left", "right"), noise=60, **fields):
    """Noisy images with one bright vertical stripe; its position is the class."""
    spec = ImageSpec(height=height, width=width, channels=channels, class_names=names)
    generator = named_generator(0, f"toy/{name}")
    pixels = torch.randint(0, noise, (count, *spec.shape), generator=generator, dtype=torch.uint8)
    labels = torch.arange(count) % spec.num_classes
    edges = [round(i * width / spec.num_classes) for i in range(spec.num_classes + 1)]
    for label in range(spec.num_classes):
        rows = (labels == label).nonzero().flatten()
        pixels[rows, :, :, edges[label] : edges[label + 1]] += 120
    return ImageSet(spec=spec, pixels=pixels, labels=labels, **fields)


def hard(name, **options):
    """Noise that nearly hides the stripe: accuracies lie strictly between chance and 1, so that they can differ."""
    images = toy(name, noise=120, **options)
    generator = named_generator(0, f"hard/{name}")
    washed = torch.randint(0, 256, images.pixels.shape, generator=generator, dtype=torch.uint8)
    mixed = (images.pixels.float() * 0.08 + washed.float() * 0.92).to(torch.uint8)
    return dataclasses.replace(images, pixels=mixed)


def numbers(scores):
    return [(s.metric, s.mean, s.sd, s.details["per_class"], s.details["per_seed"]) for s in scores]
