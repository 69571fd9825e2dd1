from __future__ import annotations

import numpy as np
import pytest
import torch

from veilset.data import inspect, load
from veilset.errors import DataError

from .helpers import pattern, small_images

Y = [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize("channels", [1, 3])
def test_layouts_agree(channels: int) -> None:
    nhwc = small_images(channels=channels).reshape(6, 8, 8, channels)
    first = load(nhwc, Y)
    for other in (nhwc.transpose(0, 3, 1, 2), torch.from_numpy(nhwc), torch.from_numpy(nhwc).permute(0, 3, 1, 2)):
        assert (load(other, Y).pixels == first.pixels).all()
    assert first.spec.channels == channels


def test_floats_in_the_unit_range_are_scaled_by_255() -> None:
    bytes_ = small_images()
    for dtype in (np.float16, np.float32, np.float64):
        assert (load((bytes_ / 255).astype(dtype), Y).pixels[:, 0].numpy() == bytes_).all()
    half = torch.from_numpy(bytes_ / 255).to(torch.bfloat16)
    assert (load(half, Y).pixels[:, 0].numpy().astype(int) - bytes_).max() <= 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.01, 1.01, 255.0])
def test_floats_outside_the_unit_range_are_refused(value: float) -> None:
    images = np.zeros((6, 8, 8), np.float32)
    images[3, 2, 1] = value
    with pytest.raises(DataError, match=r"finite|\[0, 1\]"):
        load(images, Y)


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint16, bool, complex, object, "U3"])
def test_other_types_are_refused(dtype: object) -> None:
    with pytest.raises(DataError, match="uint8"):
        load(np.zeros((6, 8, 8), dtype), Y)


@pytest.mark.parametrize("shape", [(8, 8), (6,), (6, 8, 8, 4), (6, 3, 8, 3), (0, 8, 8), (6, 2, 8, 8), (1, 1, 1, 8, 8)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="shape"):
        load(np.zeros(shape, np.uint8), Y)


def test_arrays_are_resized_and_converted_on_request() -> None:
    images = load(small_images(), Y, size=(16, 16), fit="stretch", color="rgb")
    assert images.spec.shape == (3, 16, 16)
    assert (images.pixels[:, 0] == images.pixels[:, 2]).all()
    with pytest.raises(DataError, match="fit="):
        load(small_images(), Y, size=(16, 16))


def test_read_only_and_strided_arrays_work(recwarn: pytest.WarningsRecorder) -> None:
    wide = np.repeat(small_images(), 2, axis=2)
    wide.flags.writeable = False
    assert (load(wide[:, :, ::2], Y).pixels[:, 0].numpy() == small_images()).all()
    assert not recwarn.list


def test_input_is_copied() -> None:
    images = small_images()
    loaded = load(images, Y)
    images[:] = 0
    assert loaded.pixels[1].any()


def test_labels_are_needed() -> None:
    with pytest.raises(DataError, match="labels"):
        load(small_images())


def test_lengths_must_agree() -> None:
    for wrong in ({"labels": Y[:5]}, {"labels": Y, "ids": ["a"]}, {"labels": Y, "users": range(7)}):
        with pytest.raises(DataError, match=r"6 (labels|ids|users)"):
            load(small_images(), **wrong)


def test_more_images_than_one_chunk() -> None:
    images = np.stack([pattern(shift=index % 20) for index in range(2500)])
    calls: list[int] = []
    loaded = load(images, np.zeros(2500, int), progress=lambda done, total: calls.append(done))
    assert (loaded.pixels[:, 0].numpy() == images).all()
    assert calls == [1024, 2048, 2500]


def test_inspect_describes_an_array() -> None:
    spec, declared = inspect(small_images(), Y, size=(16, 16), fit="crop")
    assert spec.shape == (1, 16, 16)
    assert declared == 10


def test_sparse_tensor_is_refused() -> None:
    with pytest.raises(DataError):
        load(torch.zeros(6, 8, 8).to_sparse(), Y)
