"""One critic, and one classifier, as anybody would write them, to hold a stack against: torch's own layers and Adam."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from veilset.data.spec import ImageSpec
from veilset.nets.critics import ConvBlock, Critics


def spec_of(height: int, width: int, channels: int, classes: int = 3) -> ImageSpec:
    names = tuple(f"class {number}" for number in range(classes))
    return ImageSpec(height=height, width=width, channels=channels, class_names=names)


class PlainCritic(nn.Module):
    """Row `number` of a stack."""

    def __init__(self, net: Critics, weights: Tensor, vectors: Tensor, number: int) -> None:
        super().__init__()
        self.net = net
        sizes = [math.prod(shape) for shape in net.matrices]
        pieces = weights[number].detach().clone().split([*sizes, *net.biases])
        self.matrices = nn.ParameterList([p.reshape(s) for p, s in zip(pieces, net.matrices, strict=False)])
        self.biases = nn.ParameterList(pieces[len(sizes) :])
        vectors = vectors[number].clone()
        self.left = list(vectors.split([size for shape in net.matrices for size in shape])[::2])
        self.right = [F.normalize(m.detach().T @ u, dim=0) for m, u in zip(self.matrices, self.left, strict=True)]

    def row(self) -> Tensor:
        return torch.cat([value.detach().flatten() for value in (*self.matrices, *self.biases)])

    def iterate(self) -> None:
        """One step of power iteration."""
        for place, matrix in enumerate(self.matrices):
            self.right[place] = F.normalize(matrix.detach().T @ self.left[place], dim=0)
            self.left[place] = F.normalize(matrix.detach() @ self.right[place], dim=0)

    def normed(self, place: int) -> Tensor:
        matrix = self.matrices[place]
        return matrix / torch.dot(self.left[place], matrix @ self.right[place])

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        hidden = images
        for place, block in enumerate(self.net.blocks):
            if isinstance(block, ConvBlock):
                kernel = self.normed(place).reshape(block.outputs, 5, 5, block.channels).permute(0, 3, 1, 2)
                hidden = F.conv2d(hidden, kernel, self.biases[place], stride=2, padding=2).relu()
            else:
                values = hidden.permute(0, 2, 3, 1).flatten(1) if hidden.dim() == 4 else hidden
                hidden = F.linear(values, self.normed(place), self.biases[place]).relu()
        last = hidden.permute(0, 2, 3, 1).flatten(1) if hidden.dim() == 4 else hidden
        return self.scored(last, labels)

    def scored(self, last: Tensor, labels: Tensor) -> Tensor:
        """From the last activations."""
        linear = F.linear(last, self.normed(len(self.left) - 2), self.biases[-1]).squeeze(1)
        return linear + (F.embedding(labels, self.normed(len(self.left) - 1)) * last).sum(1)

    def penalty(self, images: Tensor, labels: Tensor) -> Tensor:
        images = images.detach().clone().requires_grad_()
        (slopes,) = torch.autograd.grad(self(images, labels).sum(), images, create_graph=True)
        return (slopes.flatten(1).norm(dim=1) - 1).square().mean()

    def loss(self, real: Tensor, fake: Tensor, labels: Tensor, mix: Tensor) -> Tensor:
        share = mix[:, None, None, None]
        of_real, of_fake = self(real, labels), self(fake, labels)
        penalty = self.penalty(share * real + (1 - share) * fake, labels)
        return of_fake.mean() - of_real.mean() + 10 * penalty + 0.001 * of_real.square().mean()


class PlainClassifier(PlainCritic):
    """Row `number` of a stack, by torch's own layers."""

    def scored(self, last: Tensor, labels: Tensor) -> Tensor:
        logits = F.linear(last, self.normed(len(self.left) - 1), self.biases[-1])
        others = torch.ones_like(logits).scatter_(1, labels[:, None], 0.0)
        return logits.gather(1, labels[:, None]).squeeze(1) - (logits * others).sum(1) / others.sum(1)

    def margin_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        margins = self(images, labels)
        return -margins.mean() + 10 * self.penalty(images, labels) + 0.001 * margins.square().mean()
