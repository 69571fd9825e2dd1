import dataclasses
import math

import pytest
import torch
from utility_toys import toy

from veilset.engines.weight_average import WeightAverage
from veilset.evaluate.augment import crop_scale_or_rotate
from veilset.evaluate.classifiers import RECIPES
from veilset.evaluate.fitting import FitContext
from veilset.evaluate.training import NETWORK_TICKS, _Training, fit_network, held_out_rows
from veilset.nets.classifiers import LeNet5
from veilset.nets.resnets import WideResNet
from veilset.randomness import named_generator

TINY = dataclasses.replace(
    RECIPES["wrn-40-4"], network=LeNet5, learning_rate=0.003, batch=16, epochs=6, decay_at=(0.5,)
)
"""The benchmark's recipe, hold-out and average included, with a network that a CPU trains in no time."""


def context(seed=0, **fields):
    quiet = {"tick": lambda message: None, "warn": lambda message: None}
    return FitContext(seed=seed, device=torch.device("cpu"), **(quiet | fields))


def test_the_benchmark_recipe_holds_out_5000_of_60000_and_the_same_share_of_every_class():
    images = toy("many", 60_000, names=tuple("0123456789"), width=10)
    mask = held_out_rows(images, 12, named_generator(0, "hold-out"))
    assert int(mask.sum()) == 5_000
    assert torch.bincount(images.labels[mask]).tolist() == [500] * 10
    assert not torch.equal(mask, held_out_rows(images, 12, named_generator(1, "hold-out")))


@pytest.mark.parametrize(("count", "held_out"), [(4, 0), (22, 0), (24, 2), (50, 4)])
def test_a_tiny_set_keeps_every_class_in_training(count, held_out):
    images = toy("few", count)
    mask = held_out_rows(images, 12, named_generator(0, "hold-out"))
    assert int(mask.sum()) == held_out
    assert set(images.labels[~mask].tolist()) == {0, 1}


def test_the_epoch_is_chosen_on_held_out_training_images_and_ties_go_to_the_later_one(monkeypatch):
    hits, states, finished = iter([3, 7, 7, 5, 1, 0]), [], []
    monkeypatch.setattr(_Training, "hits", lambda self, rows: next(hits))

    def state(self, keep=_Training.state):
        states.append(keep(self))
        return states[-1]

    monkeypatch.setattr(_Training, "state", state)
    monkeypatch.setattr(_Training, "finish", lambda self, chosen: finished.append(chosen))
    fit_network("tiny", TINY, toy("train", 48), context())
    assert len(states) == 3, "a state is kept where it is the best so far: epochs 1, 2 and 3"
    assert finished == [states[2]]


def test_without_held_out_images_the_last_epoch_counts(monkeypatch):
    def fail(self, rows):
        raise AssertionError("nothing is held out")

    monkeypatch.setattr(_Training, "hits", fail)
    test = toy("test", 40)
    predict = fit_network("tiny", dataclasses.replace(TINY, hold_out_one_in=None), toy("train", 48), context())
    assert predict(test.pixels).shape == (40,)


def test_held_out_images_are_never_trained_on():
    train = toy("train", 48)
    mask = held_out_rows(train, 12, context().generator("tiny/hold-out"))
    poisoned = dataclasses.replace(train, pixels=train.pixels.clone())
    poisoned.pixels[mask] = 255
    recipe = dataclasses.replace(TINY, epochs=1)
    images = toy("test", 40).pixels
    assert torch.equal(*(fit_network("tiny", recipe, one, context())(images) for one in (train, poisoned)))


def test_the_held_out_images_are_judged_with_averaged_weights():
    learnt = fit_network("tiny", dataclasses.replace(TINY, epochs=30), toy("train", 96), context())
    test = toy("test", 40)
    assert float((learnt(test.pixels) == test.labels).double().mean()) > 0.9


def test_the_weight_average_follows_its_formula():
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    average = WeightAverage([weight], 0.5)
    expected = weight.detach().clone().double()
    for update in range(1, 30):
        with torch.no_grad():
            weight += update
        average.update()
        decay = min(0.5, (1 + update) / (10 + update))
        expected = decay * expected + (1 - decay) * weight.detach().double()
        torch.testing.assert_close(average.values[0].double(), expected, rtol=1e-5, atol=1e-5)


def test_the_warm_up_of_the_average_forgets_the_random_start():
    weight = torch.nn.Parameter(torch.zeros(1))
    average = WeightAverage([weight], 0.9999)
    with torch.no_grad():
        weight.fill_(1.0)
    for _ in range(100):
        average.update()
    assert float(average.values[0]) > 0.999, "a plain average of decay 0.9999 would stand at 0.01"


def test_the_learning_rate_of_the_benchmark_falls_every_twenty_epochs():
    recipe = RECIPES["resnet-110"]
    rates = [recipe.rate_in(epoch, 50) for epoch in (0, 19, 20, 39, 40, 49)]
    assert rates == pytest.approx([0.01, 0.01, 0.002, 0.002, 0.0004, 0.0004])
    lenet = RECIPES["lenet"]
    assert [lenet.rate_in(epoch, 50) for epoch in (0, 39, 40)] == pytest.approx([0.02, 0.02, 0.002])


def test_small_sets_are_trained_for_more_epochs_by_psg():
    assert (RECIPES["convnet"].num_epochs(500), RECIPES["convnet"].num_epochs(60_000)) == (300, 40)
    assert RECIPES["convnet-aug"].num_epochs(500) == 1000


@pytest.mark.parametrize("epochs", [1, 3, 10, 25])
def test_a_fit_reports_the_promised_number_of_ticks(epochs):
    ticks = []
    recipe = dataclasses.replace(TINY, epochs=epochs, batch=48)
    fit_network("tiny", recipe, toy("train", 24), context(tick=ticks.append))
    assert len(ticks) == NETWORK_TICKS
    assert ticks[-1] == f"epoch {epochs} of {epochs}"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("network", "augment"),
    [(LeNet5, False), (WideResNet, False), (LeNet5, True)],
    ids=["plain", "dropout", "augmented"],
)
def test_on_cuda_the_benchmark_recipe_replays_a_graph_and_learns(network, augment):
    warnings, test = [], toy("test", 40)
    ctx = FitContext(seed=0, device=torch.device("cuda"), tick=lambda message: None, warn=warnings.append)
    recipe = dataclasses.replace(TINY, network=network, epochs=20)
    predict = fit_network("tiny", dataclasses.replace(recipe, augment=augment), toy("train", 200), ctx)
    assert warnings == [], "the step was not captured"
    assert float((predict(test.pixels) == test.labels).double().mean()) > 0.9


def test_augmentation_changes_every_image_by_one_of_three_bounded_moves():
    bar = torch.zeros(300, 1, 32, 32)
    bar[:, :, 8:24, 14:18] = 1
    moved = crop_scale_or_rotate(bar, named_generator(0, "moves"))
    assert moved.shape == bar.shape
    rows = torch.arange(32.0) - 15.5
    mass = moved.sum((1, 2, 3))
    down, right = ((moved.sum((1, axis)) * rows).sum(1) / mass for axis in (3, 2))
    cross = (moved[:, 0] * rows[:, None] * rows[None, :]).sum((1, 2)) / mass
    shifted = (down.abs() > 0.4) | (right.abs() > 0.4)
    turned = ~shifted & (cross.abs() > 0.2)
    for share in (shifted, turned, ~shifted & ~turned):
        assert 0.2 < float(share.double().mean()) < 0.47
    assert max(float(down.abs().max()), float(right.abs().max())) <= 4.01
    # A bar of 16 x 4 turned by 45 degrees at most: its covariance is at most half the difference of its variances.
    assert float(cross[turned].abs().max()) < (16**2 - 4**2) / 24 * 1.1
    assert float(mass.max() / 64) < 1.2**2 * 1.1


def test_augmentation_depends_on_its_generator_alone():
    images = torch.rand(8, 3, 9, 13, generator=named_generator(0, "images"))
    first, again = (crop_scale_or_rotate(images, named_generator(0, "moves")) for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, crop_scale_or_rotate(images, named_generator(1, "moves")))
    assert math.isclose(float(crop_scale_or_rotate(images * 0, named_generator(0, "moves")).abs().max()), 0)
