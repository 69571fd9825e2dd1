"""Matching moves a set towards a gradient's direction, row by row, and trains its network on the set alone."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from devices import NEEDS_CUDA

from veilset.data.spec import ImageSpec
from veilset.engines.gradient_matching import (
    FreePixels,
    GeneratedImages,
    GradientMatching,
    Standard,
    cosine_distance,
)
from veilset.nets.classifiers import ConvNet, restart
from veilset.nets.image_sets import labels_of
from veilset.randomness import named_generator

SPEC = ImageSpec(height=8, width=8, channels=1, class_names=("a", "b"))
STANDARD = Standard(0.5, 0.25)
LABELS = labels_of(SPEC, 3, torch.device("cpu"))


def sets() -> dict[str, FreePixels | GeneratedImages]:
    draws = named_generator(0, "set")
    return {
        "pixels": FreePixels(SPEC, 3, STANDARD, draws),
        "generated": GeneratedImages(SPEC, 3, STANDARD, draws, latent_size=2, channels=8),
    }


def matching_for(images: FreePixels | GeneratedImages, *, batch: int = 256) -> GradientMatching:
    network = ConvNet(SPEC, named_generator(0, "weights"), width=4)
    optimiser = torch.optim.Adam(images.parameters(), lr=0.02)
    return GradientMatching(network, images, LABELS, optimiser, network_rate=0.1, batch=batch)


def gradient_on(network: ConvNet, images: torch.Tensor) -> list[torch.Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(network(images), LABELS), list(network.parameters())))


def test_the_distance_is_one_minus_the_cosine_summed_over_rows_of_weights() -> None:
    draws = named_generator(0, "values")
    ours, theirs = ([torch.randn(shape, generator=draws) for shape in ((3, 2, 2, 2), (4, 5), (7,))] for _ in range(2))
    rows = [(a, b) for i in (0, 1) for a, b in zip(ours[i].flatten(1), theirs[i].flatten(1), strict=True)]
    expected = sum(1 - float(F.cosine_similarity(a, b, dim=0)) for a, b in rows)
    assert float(cosine_distance(ours, theirs)) == pytest.approx(expected, rel=1e-5)


def test_the_distance_depends_on_directions_only_and_not_on_biases() -> None:
    draws = named_generator(0, "values")
    ours = [torch.randn(3, 4, generator=draws), torch.randn(3, generator=draws)]
    assert float(cosine_distance(ours, [ours[0] * 5, -ours[1]])) == pytest.approx(0, abs=1e-5)
    assert float(cosine_distance(ours, [-ours[0], ours[1]])) == pytest.approx(6, rel=1e-5)


def test_a_row_without_length_has_a_finite_gradient() -> None:
    ours = torch.zeros(2, 3, requires_grad=True)
    (slope,) = torch.autograd.grad(cosine_distance([ours], [torch.ones(2, 3)]), [ours])
    assert bool(torch.isfinite(slope).all())


@pytest.mark.parametrize("kind", ["pixels", "generated"])
def test_matching_the_gradient_of_other_images_lowers_the_distance_and_stays_in_range(kind: str) -> None:
    images = sets()[kind]
    matching = matching_for(images)
    # Of one class bright on the left, of the other on the right.
    other = torch.zeros(6, 1, 8, 8)
    other[:3, :, :, :4], other[3:, :, :, 4:] = 1, 1
    assert isinstance(matching.network, ConvNet)
    wanted = gradient_on(matching.network, STANDARD.of(other))
    matching.match(wanted)
    first = float(matching.distance)
    for _ in range(60):
        matching.match(wanted)
    assert float(matching.distance) < 0.75 * first
    shown = images().detach() * STANDARD.deviation + STANDARD.mean
    assert -1e-5 < float(shown.min()) < float(shown.max()) < 1 + 1e-5


def test_matching_leaves_the_network_and_training_leaves_the_set_as_it_was() -> None:
    images = sets()["pixels"]
    matching = matching_for(images)
    weights, before = [value.detach().clone() for value in matching.weights], images().detach().clone()
    matching.match([torch.ones_like(value) for value in weights])
    assert all(torch.equal(a, b) for a, b in zip(weights, matching.weights, strict=True))
    moved = images().detach().clone()
    assert not torch.equal(moved, before)
    matching.train(1, named_generator(0, "order"))
    assert torch.equal(images(), moved)
    assert not torch.equal(weights[0], matching.weights[0])


def test_an_epoch_is_a_pass_over_the_set_in_batches() -> None:
    matching = matching_for(sets()["pixels"], batch=4)
    seen: list[torch.Tensor] = []
    matching._train = seen.append  # type: ignore[assignment]
    matching.train(2, named_generator(0, "order"))
    assert [len(rows) for rows in seen] == [4, 2, 4, 2]
    assert sorted(torch.cat(seen[:2]).tolist()) == sorted(torch.cat(seen[2:]).tolist()) == list(range(6))


def test_the_codes_of_a_generated_set_are_fixed() -> None:
    images = sets()["generated"]
    assert isinstance(images, GeneratedImages)
    codes = images.latents.clone()
    matching = matching_for(images)
    for _ in range(3):
        matching.match([torch.ones_like(value) for value in matching.weights])
    assert torch.equal(images.latents, codes)
    assert "latents" in images.state_dict(), "a resumed run must go on with the same codes"


def test_the_set_moves_against_the_derivative_of_the_distance() -> None:
    images = FreePixels(SPEC, 3, STANDARD, named_generator(0, "set"))
    matching = matching_for(images)
    wanted = [torch.randn(value.shape, generator=named_generator(0, "wanted")) for value in matching.weights]
    weights = torch.tensor([1.5, 0.5])
    slopes, distance = matching._slopes(images().detach(), weights[LABELS], *wanted)
    loss = F.cross_entropy(matching.network(images()), LABELS, weight=weights)
    expected = cosine_distance(torch.autograd.grad(loss, matching.weights, create_graph=True), wanted)
    assert float(distance) == pytest.approx(float(expected.detach()))
    torch.testing.assert_close(slopes, torch.autograd.grad(expected, images.values)[0])


def test_classes_that_weigh_alike_are_matched_as_without_weights() -> None:
    moved = []
    for weights in (None, torch.ones(2), torch.ones(2, dtype=torch.float64)):
        matching = matching_for(sets()["pixels"])
        matching.match([torch.ones_like(value) for value in matching.weights], weights)
        moved.append(matching.images().detach())
    assert torch.equal(moved[0], moved[1])
    assert torch.equal(moved[0], moved[2])


def test_the_gradient_of_an_uneven_batch_is_reached_by_an_even_set_whose_classes_weigh_as_unevenly() -> None:
    """Five images of one class and one of the other, and one image of each class that weigh five to one."""
    images = FreePixels(SPEC, 3, STANDARD, named_generator(0, "set"))
    network = ConvNet(SPEC, named_generator(0, "weights"), width=4)
    with torch.no_grad():
        for label in (0, 1):
            images.values[label == LABELS] = images.values[label == LABELS][:1]
    batch = images()[[0, 0, 0, 0, 0, 3]].detach()
    loss = F.cross_entropy(network(batch), torch.tensor([0, 0, 0, 0, 0, 1]))
    wanted = list(torch.autograd.grad(loss, list(network.parameters())))

    def distance(weights: torch.Tensor) -> float:
        matching = matching_for(images)
        return float(matching._slopes(images().detach(), weights[LABELS], *wanted)[1])

    assert distance(torch.tensor([5.0, 1.0])) == pytest.approx(0, abs=1e-3)
    assert distance(torch.ones(2)) > 1


def test_several_batches_are_shuffled_and_one_batch_draws_nothing() -> None:
    draws = named_generator(0, "order")
    several = matching_for(sets()["pixels"], batch=4)
    assert not torch.equal(several._order(draws), several._order(draws))
    before = draws.get_state()
    matching_for(sets()["pixels"]).train(2, draws)
    assert torch.equal(draws.get_state(), before)


@NEEDS_CUDA
@pytest.mark.parametrize("batch", [256, 4])
def test_on_cuda_compiled_steps_move_the_set_as_plain_ones_do(
    batch: int, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In full precision: few images of 8 x 8 pixels say little once they are rounded to half of it.
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    sides = {device: matching_on(device, batch) for device in ("cpu", "cuda")}

    def state(device: str) -> list[torch.Tensor]:
        return [value.detach() for value in (*sides[device].images.parameters(), *sides[device].weights)]

    for turn in range(9):
        if turn == 7:
            restart(sides["cpu"].network, named_generator(0, "other weights"))
        for here, there in zip(state("cpu"), state("cuda"), strict=True):
            there.copy_(here)  # every turn from the same state: rounding would carry two courses apart
        before = [value.clone() for value in state("cpu")]
        shares = torch.tensor([1 + turn / 10, 1 - turn / 10], dtype=torch.float64)
        for device, matching in sides.items():
            matching.match([torch.ones_like(value) for value in matching.weights], shares.to(device))
            matching.train(1, named_generator(turn, "order"))
        # Graphs that do not follow their weights, or images, would take the step of another turn.
        for old, here, there in zip(before, state("cpu"), state("cuda"), strict=True):
            assert float((there.cpu() - here).norm()) <= 0.05 * float((here - old).norm()) + 1e-5
    assert not [str(warning.message) for warning in recwarn if "slower" in str(warning.message)]


def matching_on(device: str, batch: int) -> GradientMatching:
    images = FreePixels(SPEC, 3, STANDARD, named_generator(0, "set")).to(device)
    network = ConvNet(SPEC, named_generator(0, "weights"), width=16).to(device)
    return GradientMatching(
        network, images, labels_of(SPEC, 3, torch.device(device)), torch.optim.SGD(images.parameters(), lr=0.1),
        network_rate=0.1, batch=batch,
    )  # fmt: skip
