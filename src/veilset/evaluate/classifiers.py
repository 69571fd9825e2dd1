"""The classifiers by which synthetic data is judged, by name: how each is fitted on synthetic images.

A fit sees synthetic images alone and returns a function from images to labels, so that no classifier can select an
epoch or a setting on the real test set.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from veilset.data.spec import ImageSet, to_unit_range
from veilset.errors import MissingExtra
from veilset.nets.classifiers import PaperCnn
from veilset.randomness import named_generator

Predict = Callable[[Tensor], Tensor]
"""uint8 images (n, channels, height, width) to int64 labels (n,) on the CPU."""

CNN_EPOCHS = 10
CNN_BATCH = 128
CNN_LEARNING_RATE = 1e-3
PREDICT_BATCH = 512


@dataclass(frozen=True, kw_only=True)
class FitContext:
    """What a fit may use besides the synthetic images."""

    seed: int
    device: torch.device
    tick: Callable[[str], None]
    """Called with a message after each unit of work, ``Classifier.num_ticks`` times."""
    warn: Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Classifier:
    fit: Callable[[ImageSet, FitContext], Predict]
    num_ticks: int = 1


def fit_cnn(train: ImageSet, ctx: FitContext) -> Predict:
    """`PaperCnn` with Adam 1e-3, batch 128, 10 epochs; the last epoch counts."""
    # Weights and batch order are drawn on the CPU, so that they are the same on every device.
    model = PaperCnn(train.spec, named_generator(ctx.seed, "gen2real/cnn/weights"))
    order = named_generator(ctx.seed, "gen2real/cnn/order")
    masks = named_generator(ctx.seed, "gen2real/cnn/dropout", ctx.device)
    # channels_last: measured 6 times faster than the default layout on a 2-core CPU.
    model.to(ctx.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = torch.optim.Adam(model.parameters(), lr=CNN_LEARNING_RATE, fused=ctx.device.type in ("cpu", "cuda"))
    pixels, labels = train.pixels.to(ctx.device), train.labels.to(ctx.device)
    with _repeatable_convolutions():
        for epoch in range(1, CNN_EPOCHS + 1):
            rows = torch.randperm(len(train), generator=order).to(ctx.device)
            for batch in rows.split(CNN_BATCH):
                loss = F.cross_entropy(model(_network_input(pixels[batch]), masks), labels[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            ctx.tick(f"epoch {epoch} of {CNN_EPOCHS}")
    model.eval()
    return lambda images: _predict_cnn(model, images, ctx.device)


def _predict_cnn(model: PaperCnn, images: Tensor, device: torch.device) -> Tensor:
    with torch.inference_mode(), _repeatable_convolutions():
        batches = [model(_network_input(batch.to(device))).argmax(1).cpu() for batch in images.split(PREDICT_BATCH)]
    return torch.cat(batches)


def _network_input(pixels: Tensor) -> Tensor:
    return to_unit_range(pixels).contiguous(memory_format=torch.channels_last)


def _repeatable_convolutions():
    # A context, because these flags are global: on CUDA the same seed must give the same score, as it does on the CPU.
    return torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)


def fit_mlp(train: ImageSet, ctx: FitContext) -> Predict:
    """scikit-learn's `MLPClassifier` with its defaults (100 hidden units, at most 200 epochs); always on the CPU."""
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.neural_network import MLPClassifier
    except ImportError as error:
        raise MissingExtra("scikit-learn", "eval", "the classifier 'mlp'") from error
    draw = named_generator(ctx.seed, "gen2real/mlp")
    model = MLPClassifier(random_state=int(torch.randint(2**31 - 1, (), generator=draw)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(_flat_rows(train.pixels), train.labels.cpu().numpy())
    for warning in caught:
        if issubclass(warning.category, ConvergenceWarning):
            ctx.warn(f"mlp, seed {ctx.seed}: still improving after {model.n_iter_} epochs, the protocol's limit")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    ctx.tick("fitted")
    return lambda images: torch.from_numpy(model.predict(_flat_rows(images)))


def _flat_rows(pixels: Tensor):
    return to_unit_range(pixels).flatten(1).cpu().numpy()


CLASSIFIERS: dict[str, Classifier] = {
    "cnn": Classifier(fit=fit_cnn, num_ticks=CNN_EPOCHS),
    "mlp": Classifier(fit=fit_mlp),
}
"""To add a classifier: write its fit function and give it a name here."""
