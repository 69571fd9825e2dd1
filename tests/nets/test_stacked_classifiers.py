"""Classifiers are critics whose score is a margin between logits."""

from __future__ import annotations

import pytest
import torch
from plain_critics import PlainClassifier, spec_of
from torch import Tensor

from veilset.nets.critics import conv_critics, dense_critics
from veilset.nets.stacked_classifiers import Classifiers
from veilset.randomness import named_generator

COUNT, NUMBER = 3, 4
LAYOUTS = [conv_critics(spec_of(12, 10, 1), 3), dense_critics(spec_of(9, 8, 3, classes=5), 5)]
NETS = [Classifiers(layout.spec, layout.blocks) for layout in LAYOUTS]
every_net = pytest.mark.parametrize("net", NETS, ids=["conv", "dense"])


def batch(net: Classifiers) -> tuple[Tensor, Tensor]:
    draws = named_generator(0, "images")
    labels = torch.randint(0, net.spec.num_classes, (COUNT, NUMBER), generator=draws)
    return torch.rand(COUNT, NUMBER, *net.spec.shape, generator=draws), labels


def singly(net: Classifiers) -> list[PlainClassifier]:
    classifiers = [
        PlainClassifier(net, *net.draw(COUNT, named_generator(0, "classifiers")), number) for number in range(COUNT)
    ]
    for classifier in classifiers:
        classifier.iterate()
    return classifiers


@every_net
def test_scores_are_the_logit_of_the_class_less_the_mean_of_the_others(net: Classifiers) -> None:
    weights, vectors = net.draw(COUNT, named_generator(0, "classifiers"))
    ready = net.ready(weights, net.iterated(weights, vectors), torch.float32)
    images, labels = batch(net)
    images.requires_grad_()
    expected = torch.stack([one(*some) for one, *some in zip(singly(net), images, labels, strict=True)])
    torch.testing.assert_close(net.scores(ready, images, labels), expected)
    (slopes,) = torch.autograd.grad(expected.sum(), images)
    torch.testing.assert_close(net.image_gradients(ready, images, labels), slopes, rtol=1e-4, atol=1e-6)


def test_of_two_classes_the_margin_is_the_difference_of_their_logits() -> None:
    layout = dense_critics(spec_of(8, 8, 1, classes=2), 3)
    net = Classifiers(layout.spec, layout.blocks)
    ready = net.ready(*net.draw(1, named_generator(0, "classifiers")), torch.float32)
    image = torch.rand(1, 1, 1, 8, 8, generator=named_generator(0, "image"))
    scores = [net.scores(ready, image, torch.tensor([[label]])) for label in (0, 1)]
    torch.testing.assert_close(scores[0], -scores[1])


def test_a_single_class_has_no_others() -> None:
    layout = dense_critics(spec_of(8, 8, 1, classes=1), 3)
    net = Classifiers(layout.spec, layout.blocks)
    ready = net.ready(*net.draw(2, named_generator(0, "classifiers")), torch.float32)
    images = torch.rand(3, 1, 8, 8, generator=named_generator(0, "images"))
    assert torch.isfinite(net.scores(ready, images, torch.zeros(3, dtype=torch.int64))).all()


def test_a_classifier_of_the_paper_has_as_many_weights_as_its_code() -> None:
    layout = conv_critics(spec_of(28, 28, 1, classes=10))
    assert Classifiers(layout.spec, layout.blocks).num_weights == 1_067_018
