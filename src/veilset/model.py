"""A finished model: sample from it, read its claim, save and load it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from numbers import Integral, Real
from pathlib import Path
from shlex import quote

import torch
from torch import Tensor, nn

from veilset.artifact import (
    CLASSIFIER,
    Privacy,
    check_shapes,
    load_module,
    parse_json,
    read_privacy,
    read_release,
    write_release,
)
from veilset.data.spec import ImageSet, ImageSpec, to_bytes
from veilset.errors import ArtifactError, ConfigError
from veilset.files import require_empty
from veilset.methods.base import Progress, Synthesizer, get_method, layout_in, make_config
from veilset.nets.image_sets import FixedImages
from veilset.privacy.claim import Claim
from veilset.randomness import named_generator
from veilset.sketch_file import FILE
from veilset.version import read_as_ours

SAMPLE_BATCH = 500


class Model:
    """What a fit returns and `from_pretrained` loads. It holds nothing private."""

    def __init__(self, folder: Path, method: Synthesizer, spec: ImageSpec, module: nn.Module, privacy: Privacy) -> None:
        self.folder = folder
        """The release folder this model was read from."""
        self.method = method.name
        self.spec = spec
        self.privacy = privacy
        self._method = method
        self._module = module.eval()

    @property
    def size(self) -> int | None:
        """How many images there are in all, where the model is a set of images; None for a generator."""
        return self._module.per_class * self.spec.num_classes if isinstance(self._module, FixedImages) else None

    @property
    def claim(self) -> Claim:
        """Proven epsilon, delta, adjacency, unit and assumptions."""
        return self.privacy.claim

    def sample(
        self,
        count: int,
        *,
        seed: int = 0,
        mix: Mapping[str, float] | None = None,
        device: torch.device | str = "cpu",
        progress: Progress = lambda *_: None,
    ) -> ImageSet:
        """Draws `count` synthetic images; costs no privacy, however often it is called.

        A model of `size` images gives each of them once before any of them again.

        Args:
            mix: shares of the classes by name, e.g. ``{"cat": 3, "dog": 1}``; even by default. Declare it: shares
                counted on the private images would be a release of their own.
        """
        if not (isinstance(count, Integral) and count >= 1):
            raise ConfigError("a whole number of samples, at least one", f"{count}", "Pass a positive number.")
        count = int(count)
        labels = self._labels(count, mix).to(device)
        draws = named_generator(seed, "samples", device)
        module = self._module.to(device)
        pieces = []
        # A set knows what it gave within one call alone; to ask it for all at once costs no more than the images do.
        batch = SAMPLE_BATCH if self.size is None else count
        with torch.no_grad():
            for start in range(0, count, batch):
                images = self._method.sample(module, labels[start : start + batch], draws)
                pieces.append(to_bytes(images).cpu())
                progress("sampling", min(start + batch, count), count)
        return ImageSet(spec=self.spec, pixels=torch.cat(pieces), labels=labels.cpu())

    def _labels(self, count: int, mix: Mapping[str, float] | None) -> Tensor:
        """Exact shares (largest remainders), interleaved so that any prefix is mixed too."""
        shares = _shares(self.spec, mix) * count
        counts = shares.floor().to(torch.int64)
        rest = (shares - counts).argsort(descending=True, stable=True)[: count - int(counts.sum())]
        counts[rest] += 1
        places = torch.cat([(torch.arange(int(n)) + 0.5) / int(n) for n in counts if n > 0])
        labels = torch.repeat_interleave(torch.arange(len(counts)), counts)
        return labels[places.argsort(stable=True)]

    def save(self, path: str | Path) -> Path:
        """Copies the release, as it is and unchecked, to `path`, which must be new or empty.

        What is shared goes out by `veilset export`, which verifies it and refuses what has no claim.
        """
        target = Path(path)
        files = read_release(self.folder)
        require_empty(target)
        write_release(target, files)
        return target


def _shares(spec: ImageSpec, mix: Mapping[str, float] | None) -> Tensor:
    if mix is None:
        return torch.full((spec.num_classes,), 1.0 / spec.num_classes, dtype=torch.float64)
    numbers = all(isinstance(share, Real) for share in mix.values())
    shares = torch.tensor([mix.get(name, 0) if numbers else -1 for name in spec.class_names], dtype=torch.float64)
    total = float(shares.sum())
    if not (set(mix) <= set(spec.class_names) and bool((shares >= 0).all()) and 0 < total < math.inf):
        unknown = [name for name in mix if name not in spec.class_names]
        raise ConfigError(
            f"shares of at least 0, and not all 0, of the classes {', '.join(spec.class_names)}",
            f"no class {', '.join(map(repr, unknown))}" if unknown else f"{dict(mix)}", "Correct the label mix.",
        )  # fmt: skip
    return shares / total


def from_pretrained(path: str | Path) -> Model:
    """Loads a model from a run folder or from an exported release, after checking every file."""
    folder = release_folder(Path(path))
    files = read_release(folder)
    config = parse_json(files["config.json"], "config.json")
    if "model.safetensors" not in files:
        raise ArtifactError(
            "a model",
            "a sketch, from which one can be made",
            f"Run `veilset synthesize {quote(str(path))} --out run` first.",
        )
    if config.get("kind") == CLASSIFIER:
        raise ArtifactError(
            "a model that makes images", "a classifier", "`veilset continual` measures it; it cannot be sampled."
        )
    with read_as_ours("a model", config):
        method = get_method(str(config["method"]))
        spec = ImageSpec.from_json(config["spec"])
        settings = make_config(method, config["config"])
        layout = layout_in(config)
        if (layout is None) != (FILE not in files):
            raise ArtifactError(f"{FILE} where a method has one", "the contrary", "Copy the release again.")
        if layout is not None:
            check_shapes(layout.expected(spec), files[FILE])
        module = load_module(lambda: method.build(settings, spec), files["model.safetensors"])
    return Model(folder, method, spec, module, read_privacy(files["privacy.json"]))


def release_folder(path: Path) -> Path:
    return path / "release" if os.path.isdir(path / "release") else path
