"""Reader for a map-style torch ``Dataset`` (or any sequence) of (image, label) pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from veilset.data.arrays import channels_first, header_of_shape, to_uint8
from veilset.data.decode import to_grey_or_rgb
from veilset.data.fitting import Header, array_to_image, fit_image, resolve_target
from veilset.data.labels import check_lengths, repeated_ids, resolve_labels, text_column
from veilset.data.options import ReadOptions
from veilset.data.spec import ImageSet, ImageSpec
from veilset.data.untrusted import untrusted
from veilset.errors import DataError


@dataclass(frozen=True)
class DatasetCollection:
    """Items are read one by one, once; there are no headers, so even `spec` has to read them all."""

    dataset: Any
    options: ReadOptions

    def __len__(self) -> int:
        with untrusted("a data set with a length", type(self.dataset).__name__, "Use a map-style data set."):
            return len(self.dataset)

    def spec(self) -> ImageSpec:
        return self.read().spec

    def read(self) -> ImageSet:
        items = [self._item(index) for index in range(len(self))]
        images = [image for image, _ in items]
        target = resolve_target(((f"item {row}", _header(image)) for row, image in enumerate(images)), self.options)
        if target is None:
            raise DataError("at least one item", "an empty data set", "Check how it was built.")
        labels, names = resolve_labels([label for _, label in items], self.options.class_names)
        ids, users = text_column(self.options.ids, "ids"), text_column(self.options.users, "users")
        check_lengths(len(images), (("ids", ids), ("users", users)))
        return ImageSet(
            spec=target.spec(names),
            pixels=torch.from_numpy(np.stack([fit_image(image, target) for image in images])),
            labels=labels,
            ids=ids,
            users=users,
            source=self.options.source,
            warnings=repeated_ids(ids),
        )

    def stream(self) -> None:
        """Items may be anything, so their common shape is known only when all have been read."""

    def _item(self, index: int) -> tuple[Image.Image, Any]:
        """One item as an "L" or "RGB" image and a plain label."""
        name = f"item {index}"
        with untrusted("pairs of (image, label)", name, "Check the data set's __getitem__."):
            image, label = self.dataset[index]
            if isinstance(label, Tensor | np.ndarray | np.generic):
                label = label.item()
            if not isinstance(label, int | str):
                raise DataError("a whole number or text as label", f"{name}: {label!r}"[:200], "Convert the labels.")
            picture = to_grey_or_rgb(image, name) if isinstance(image, Image.Image) else _from_array(image, name)
        self.options.report(index + 1, len(self))
        return picture, label


def _from_array(image: Any, name: str) -> Image.Image:
    if not isinstance(image, Tensor | np.ndarray) or image.ndim not in (2, 3):
        raise DataError(
            "images as Pillow images, or as tensors or arrays of 2 or 3 dimensions",
            f"{name} is a {type(image).__name__}",
            "Add a transform that converts them.",
        )
    batch = to_uint8(image[None])
    header_of_shape(batch.shape)
    return array_to_image(channels_first(batch)[0])


def _header(image: Image.Image) -> Header:
    return Header(image.height, image.width, len(image.getbands()))
