"""The classifiers by which synthetic data is judged, by name: how each is fitted on training images.

A fit sees its training images alone and returns a function from images to labels, so that no classifier can select an
epoch or a setting on the test set.
"""

from dataclasses import replace
from functools import partial

from veilset.evaluate.augment import crop_scale_or_rotate
from veilset.evaluate.fitting import Classifier
from veilset.evaluate.sklearn_suite import SKLEARN_SUITE
from veilset.evaluate.training import NETWORK_TICKS, Recipe, fit_network
from veilset.nets.classifiers import ConvNet, LeNet5, PaperCnn
from veilset.nets.resnets import ResNet, ResNeXt, WideResNet

CNN_EPOCHS = 10

_PSG = Recipe(
    network=ConvNet,
    optimiser="sgd",
    learning_rate=0.01,
    momentum=0.9,
    weight_decay=5e-4,
    batch=256,
    epochs=40,
    small_set_epochs=300,
    decay_factor=0.1,
    decay_at=(0.5,),
    scaling="training-set",
    fast_on_cuda=True,
)


def _dpimagebench(network) -> Recipe:
    """50 epochs of Adam at 0.01, x 0.2 every 20 epochs; 11 in 12 images train the network, 1 in 12 choose its epoch."""
    return Recipe(
        network=network,
        learning_rate=0.01,
        batch=256,
        epochs=50,
        decay_factor=0.2,
        decay_at=(0.4, 0.8),
        scaling="symmetric",
        average_decay=0.9999,
        hold_out_one_in=12,
        fast_on_cuda=True,
    )


RECIPES: dict[str, Recipe] = {
    "cnn": Recipe(network=PaperCnn, learning_rate=1e-3, batch=128, epochs=CNN_EPOCHS),
    # The repository default of GS-WGAN (Chen et al. 2020), which normalises every data set by the constants of MNIST.
    "lenet": Recipe(
        network=LeNet5,
        optimiser="sgd",
        learning_rate=0.02,
        momentum=0.9,
        weight_decay=1e-4,
        batch=128,
        epochs=50,
        decay_factor=0.1,
        decay_at=(0.8,),
        scaling="mnist",
    ),
    "convnet": _PSG,
    "convnet-aug": replace(_PSG, small_set_epochs=1000, augment=crop_scale_or_rotate),
    "resnet": Recipe(network=partial(ResNet, depth=8), learning_rate=1e-3, batch=128, epochs=10, scaling="symmetric"),
    "resnet-110": _dpimagebench(partial(ResNet, depth=110)),
    "wrn-40-4": _dpimagebench(WideResNet),
    "resnext-29": _dpimagebench(ResNeXt),
}

_STANDARDISED = "standardised by the training images, not by the paper's constants of each data set"
_BENCHMARK = (
    "the held-out images are drawn at random within each class; the benchmark takes the last 5,000",
    "the benchmark's settings for all sets but CIFAR, where its code trains larger networks for 200 epochs",
)
NOTES: dict[str, tuple[str, ...]] = {
    "lenet": ("normalised by the constants of MNIST for every data set, as in the paper's code",),
    "convnet": (_STANDARDISED,),
    "convnet-aug": (_STANDARDISED, "bilinear interpolation where the paper's code takes nearest or cubic"),
    "resnet-110": _BENCHMARK,
    "wrn-40-4": _BENCHMARK,
    "resnext-29": _BENCHMARK,
}


def _network(name: str) -> Classifier:
    # The recipe is looked up at the time of the fit, so that a changed table counts.
    return Classifier(
        fit=lambda train, ctx: fit_network(name, RECIPES[name], train, ctx),
        num_ticks=NETWORK_TICKS,
        notes=NOTES.get(name, ()),
    )


CLASSIFIERS: dict[str, Classifier] = {
    "cnn": _network("cnn"),
    **SKLEARN_SUITE,
    **{name: _network(name) for name in RECIPES if name != "cnn"},
}
"""To add a classifier: write its fit function, or a recipe, and give it a name here."""

THIRTEEN: tuple[str, ...] = ("cnn", *SKLEARN_SUITE)
"""The thirteen of GS-WGAN's tables."""
