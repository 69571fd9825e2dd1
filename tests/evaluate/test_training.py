import dataclasses

import pytest
import torch
from devices import DEVICES, NEEDS_CUDA
from utility_toys import toy

from veilset.engines.weight_average import WeightAverage
from veilset.evaluate import training as training_module
from veilset.evaluate.augment import crop_scale_or_rotate
from veilset.evaluate.classifiers import RECIPES
from veilset.evaluate.fitting import TrainContext
from veilset.evaluate.training import NETWORK_TICKS, Training, fit_network, held_out_rows
from veilset.nets.classifiers import LeNet5
from veilset.nets.resnets import ResNet, WideResNet
from veilset.randomness import named_generator

TINY = dataclasses.replace(
    RECIPES["wrn-40-4"], network=LeNet5, learning_rate=0.003, batch=16, epochs=6, decay_at=(0.5,)
)
"""The benchmark's recipe, hold-out and average included, with a network that a CPU trains in no time."""


def context(seed=0, **fields):
    usual = {"device": torch.device("cpu"), "tick": lambda message: None, "warn": lambda message: None}
    return TrainContext(seed=seed, **(usual | fields))


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
    monkeypatch.setattr(Training, "hits", lambda self, rows: next(hits))

    def state(self, keep=Training.state):
        states.append(keep(self))
        return states[-1]

    monkeypatch.setattr(Training, "state", state)
    monkeypatch.setattr(Training, "finish", lambda self, chosen: finished.append(chosen))
    fit_network("tiny", TINY, toy("train", 48), context())
    assert len(states) == 3, "a state is kept where it is the best so far: epochs 1, 2 and 3"
    assert finished == [states[2]]


def test_without_held_out_images_the_last_epoch_counts(monkeypatch):
    def fail(self, rows):
        raise AssertionError("nothing is held out")

    monkeypatch.setattr(Training, "hits", fail)
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


@NEEDS_CUDA
@pytest.mark.parametrize(
    ("network", "augment"),
    [(LeNet5, None), (WideResNet, None), (LeNet5, crop_scale_or_rotate)],
    ids=["plain", "dropout", "augmented"],
)
def test_on_cuda_the_benchmark_recipe_replays_a_graph_and_learns(network, augment):
    warnings, test = [], toy("test", 40)
    ctx = TrainContext(seed=0, device=torch.device("cuda"), tick=lambda message: None, warn=warnings.append)
    recipe = dataclasses.replace(TINY, network=network, epochs=20)
    predict = fit_network("tiny", dataclasses.replace(recipe, augment=augment), toy("train", 200), ctx)
    assert warnings == [], "the step was not captured"
    assert float((predict(test.pixels) == test.labels).double().mean()) > 0.9


def test_blocks_are_compiled_for_whole_batches_of_training_alone(monkeypatch):
    sizes = []

    def compiled(function):
        def call(images):
            sizes.append(len(images))
            return function(images)

        return call

    monkeypatch.setattr(training_module, "fused_on_cuda", compiled)
    spec = toy("train", 4).spec
    model = ResNet(spec, torch.Generator().manual_seed(0), depth=8)
    training_module._fuse_blocks(model, 4)
    images = torch.zeros(4, *spec.shape)
    model(images)
    model(images[:3])
    model.eval()(images)
    assert sizes == [4] * len(model.blocks)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_learning_rate_that_falls_to_nothing_ends_the_training(optimiser, device):
    recipe = dataclasses.replace(TINY, optimiser=optimiser, average_decay=None, hold_out_one_in=None)
    ctx = context(device=torch.device(device))
    train = toy("train", 160)
    training = Training("tiny", recipe, train, torch.ones(len(train), dtype=torch.bool), ctx)
    start = training.state()
    training.epoch(0.01)  # ten steps, more than a CUDA graph has before it is captured
    moved = training.state()
    training.epoch(0.0)
    weights = len(list(training.model.parameters()))
    pairs = list(zip(start, moved, training.state(), strict=True))[:weights]
    assert not any(torch.equal(before, after) for before, after, _ in pairs)
    assert all(torch.equal(after, end) for _, after, end in pairs), "the graph replays the rate it was captured with"


def test_the_learning_rate_rises_over_the_first_steps_and_over_a_fifth_of_a_short_training():
    rates = []

    def rates_of(**changes):
        recipe = dataclasses.replace(TINY, optimiser="sgd", hold_out_one_in=None, epochs=5, **changes)
        training = Training("tiny", recipe, toy("train", 80), torch.ones(80, dtype=torch.bool), context())
        training.take_step = lambda rows: rates.append(training.optimiser.param_groups[0]["lr"])
        rates.clear()
        training.epoch(1.0)
        return rates

    assert rates_of(warm_up_steps=3) == pytest.approx([0.25, 0.5, 0.75, 1, 1])
    assert rates_of(warm_up_steps=500) == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6])
    assert rates_of() == [1.0] * 5
