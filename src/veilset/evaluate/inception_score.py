"""The Inception score, and the classifier it needs: trained on the owner's real images, kept in the owner's vault."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save as safetensors_save
from torch import Tensor, nn

from veilset.artifact import load_into
from veilset.data.spec import ImageSet, to_unit_range
from veilset.errors import ArtifactError, ConfigError, DataError
from veilset.evaluate.augment import random_crops_and_flips
from veilset.evaluate.cached import alone_in, cache_key, write_private
from veilset.evaluate.extractors import exact_convolutions
from veilset.evaluate.fitting import TrainContext
from veilset.evaluate.training import Recipe, train_network
from veilset.nets.vgg import Vgg11
from veilset.randomness import named_generator

logger = logging.getLogger(__name__)

EPOCHS = 50
SPLITS = 10
RECIPE = Recipe(
    network=Vgg11,
    optimiser="sgd",
    learning_rate=0.1,
    momentum=0.9,
    weight_decay=1e-4,
    batch=128,
    epochs=EPOCHS,
    decay_factor=0.1,
    decay_at=(0.8,),
    # About one of the 50 epochs on MNIST. Ours, for small sets: after 240 steps on 4,000 MNIST images without it the
    # classifier knew 27 % of test images, after 235 steps on 3,000 with it 76 %.
    warm_up_steps=500,
    augment=random_crops_and_flips,
    fast_on_cuda=True,
)
"""VGG-11 as in GS-WGAN's code, even batches of 128 and horizontal flips of digits. Ours differs from that code:
it warms up, and its pixels lie in [0, 1], where theirs are normalised by mean 0.1307 and deviation 0.3081."""
_PREDICT_BATCH = 1024


def inception_score(
    log_probabilities: Tensor, generator: torch.Generator, *, splits: int = SPLITS
) -> tuple[float, float | None, int]:
    """exp(mean KL(p(y|x) || p(y))) in each of `splits` parts: mean, sample sd, parts used (Salimans et al. 2016).

    Rows are shuffled first: samples often come sorted by class, and a part with one class alone would score 1.
    Logarithms come in, so that a probability of zero gives no NaN.
    """
    if len(log_probabilities) < 2:
        raise DataError("at least 2 images", f"{len(log_probabilities)}", "Sample more images.")
    splits = max(1, min(splits, len(log_probabilities) // 2))
    order = torch.randperm(len(log_probabilities), generator=generator)
    values = []
    for part in log_probabilities.double()[order].tensor_split(splits):
        marginal = part.logsumexp(0) - torch.tensor(float(len(part))).log()
        values.append((part.exp() * (part - marginal)).nan_to_num(nan=0.0).sum(1).mean().exp())
    found = torch.stack(values)
    return float(found.mean()), float(found.std()) if splits > 1 else None, splits


@dataclass(frozen=True, kw_only=True)
class ScoreClassifier:
    """Knows the real classes. It was trained on private images: neither it nor its answers leave the vault."""

    model: nn.Module
    device: torch.device

    def log_probabilities(self, pixels: Tensor) -> Tensor:
        with torch.inference_mode(), exact_convolutions():
            batches = [
                F.log_softmax(_answers(self.model, to_unit_range(batch.to(self.device))).double(), dim=1).cpu()
                for batch in pixels.split(_PREDICT_BATCH)
            ]
        return torch.cat(batches)


def score_classifier(
    real: ImageSet,
    *,
    epochs: int = EPOCHS,
    device: torch.device | str = "cpu",
    cache: Path | None = None,
    tick: Callable[[int], None] = lambda epochs: None,
) -> ScoreClassifier:
    """Trained on `real` or taken from the vault; `tick` is called with epochs just done."""
    if epochs < 1 or len(real) < 2:
        raise ConfigError("1 or more epochs and 2 or more real images", f"{epochs}, {len(real)}", "Give more.")
    device = torch.device(device)
    model = _trained(real, epochs, device, tick) if cache is None else _cached(real, epochs, device, tick, cache)
    model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return ScoreClassifier(model=model.eval().requires_grad_(False), device=device)


def _cached(real: ImageSet, epochs: int, device: torch.device, tick: Callable[[int], None], cache: Path) -> nn.Module:
    path = cache / f"is-{_key(real, epochs)}.safetensors"
    with alone_in(cache):
        model = _restored(Vgg11(real.spec, named_generator(0, "is/weights")), path)
        if model is not None:
            tick(epochs)
            return model
        model = _trained(real, epochs, device, tick)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        write_private(path, safetensors_save(tensors))
        return model


def _trained(real: ImageSet, epochs: int, device: torch.device, tick: Callable[[int], None]) -> nn.Module:
    ctx = TrainContext(seed=0, device=device, tick=lambda message: None, warn=logger.warning)
    recipe = replace(RECIPE, epochs=epochs)
    return train_network("is", recipe, real, ctx, lambda done, total: tick(1)).model


def _answers(model: nn.Module, images: Tensor) -> Tensor:
    return model(images.contiguous(memory_format=torch.channels_last))


def _key(real: ImageSet, epochs: int) -> str:
    labels = real.labels.cpu().numpy().tobytes().hex()
    return cache_key(real.pixels, "vgg11/3", str(epochs), str(real.spec.num_classes), labels)


def _restored(model: Vgg11, path: Path) -> nn.Module | None:
    try:
        load_into(model, path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ArtifactError) as error:
        logger.warning("the cached classifier %s is unusable (%s): training it again", path, error)
        return None
    return model
