"""How often classifiers are right on private test images, counted so that the counts can be released with noise."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from veilset.data.spec import ImageSet
from veilset.engines.feature_sums import first_rows_of_each_user
from veilset.engines.threads import one_thread
from veilset.errors import ConfigError
from veilset.evaluate.fitting import Predict
from veilset.privacy.bounds import GroupedSum, Unit, clip_rows
from veilset.score_release import row_bound

BATCH = 10_000


def count_correct(
    predictors: Iterable[Predict],
    count: int,
    test: ImageSet,
    *,
    unit: Unit = Unit.RECORD,
    images_per_user: int | None = None,
    progress: Callable[[int], None] = lambda judged: None,
) -> GroupedSum:
    """The vector of `count` numbers of correct answers and, last, the number of test images, ready for the door.

    Claim: adding or removing one test image moves the vector by at most sqrt(count + 1) in L2 norm, so one Gaussian
      release of it is private for the test set with that sensitivity (replacing: sqrt(2) times as much).
    Proof: 1. The classifiers are functions of synthetic images and public seeds, so they are the same for
      neighbouring test sets. 2. The row of a test image is (r_1, ..., r_count, 1), where r_j is 1 if classifier j gives
      its label and else 0. It depends on this image and its label alone: every image is shown to a classifier by
      itself, because in a batch the rounding of one answer may depend on its neighbours, and a near tie could then
      turn. An unreadable image has the zero row. 3. Entries are 0 or 1, so the norm of a row is at most
      sqrt(count + 1); `clip_rows` enforces it whatever a classifier answers. 4. The vector is the sum of the rows:
      adding or removing an image adds or removes its own row and no other. Rows are non-negative, so two of them
      differ by at most sqrt(2) bounds. At user level at most `images_per_user` rows of one person enter.
    Not covered: a person with images in the training set too. The model is a release of its own there, and the losses
      of both add up; the claim names this.
    """
    kept = test if unit is Unit.RECORD else test.subset(first_rows_of_each_user(test, images_per_user))
    answers = []
    for predict in predictors:
        answers.append(_correct(predict, kept))
        progress(len(answers))
    if len(answers) != count:
        raise ConfigError(f"{count} classifiers, as planned", f"{len(answers)}", "Report this as a bug.")
    hits = torch.stack([*answers, kept.valid], dim=1)
    total = GroupedSum(1, rows_per_unit=images_per_user if unit is Unit.USER else None)
    for rows in hits.split(BATCH):
        bounded = clip_rows(rows.to(torch.float64), row_bound(count), nonnegative=True)
        total.add(bounded, torch.zeros(len(rows), dtype=torch.int64))
    return total


def _correct(predict: Predict, images: ImageSet) -> Tensor:
    """Whether each image gets its label, when it is shown by itself; never for an unreadable one."""
    found = torch.zeros(len(images), dtype=torch.bool)
    with one_thread():
        for row in images.valid.nonzero().flatten().tolist():
            found[row] = bool(predict(images.pixels[row : row + 1])[0] == images.labels[row])
    return found
