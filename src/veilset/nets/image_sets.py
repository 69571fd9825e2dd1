"""A model that is nothing but images: what methods release that optimise a small set instead of a generator."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from veilset.data.spec import ImageSpec


class FixedImages(nn.Module):
    """The same number of images for every class, those of a class side by side; a row of `values` is an image."""

    def __init__(self, spec: ImageSpec, per_class: int) -> None:
        super().__init__()
        self.spec, self.per_class = spec, per_class
        self.values = nn.Parameter(torch.zeros(spec.num_classes * per_class, spec.num_values), requires_grad=False)

    @classmethod
    @torch.no_grad()
    def of(cls, spec: ImageSpec, images: Tensor) -> FixedImages:
        """The model of these images in [0, 1], which come in the order of `labels_of`."""
        model = cls(spec, len(images) // spec.num_classes).to(images.device)
        model.values.copy_(images.flatten(1))
        return model

    def sample(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """One image for each label. None comes again before all of its class came: asked for as many images as there
        are, it gives each of them once, in an order by chance."""
        shape = (self.spec.num_classes, self.per_class)
        order = torch.rand(shape, generator=generator, device=generator.device).argsort(dim=1)
        rows = labels * self.per_class + order[labels, _same_before(labels) % self.per_class]
        return self.values[rows].reshape(-1, *self.spec.shape)


def _same_before(labels: Tensor) -> Tensor:
    """How often the label of each place stands at earlier places."""
    by_label, counts = labels.argsort(stable=True), labels.bincount()
    first = counts.cumsum(0) - counts
    places = torch.arange(len(labels), device=labels.device)
    return torch.empty_like(labels).index_copy_(0, by_label, places - first[labels[by_label]])


def labels_of(spec: ImageSpec, per_class: int, device: torch.device) -> Tensor:
    """The label of each of the images of a set like `FixedImages`."""
    return torch.arange(spec.num_classes, device=device).repeat_interleave(per_class)
