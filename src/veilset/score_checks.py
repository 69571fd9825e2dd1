"""What must hold before noisy scores are bought: all of it is checked before a cost is reserved for them."""

from __future__ import annotations

from veilset.data.spec import ImageSet
from veilset.errors import ConfigError, PrivacyError
from veilset.looks import refuse_after_a_look
from veilset.model import Model
from veilset.privacy.bounds import Unit
from veilset.run_folder import RunFolder
from veilset.score_release import benchmark_stamps
from veilset.scoring import Request


def check_allowed(folder: RunFolder, test: ImageSet, request: Request, model: Model) -> None:
    """Raises: ConfigError for what is not for sale, PrivacyError for what would cost somebody more than is claimed."""
    if request.fidelity:
        raise ConfigError(
            "accuracies, the only scores that can be bought with noise",
            f"{', '.join(request.fidelity)} as well",
            "One image can change these by too much. Drop --fidelity; measure it for the owner, after the purchase.",
        )
    benchmark_stamps(test.source.benchmark)  # refuses a name that could not be published
    request.check_fits(model.spec, test.spec)
    if model.claim.unit is Unit.USER and test.users is None:
        raise ConfigError("a user for every test image, as in the fit", "none", "Give a manifest with a user column.")
    images = int(test.valid.sum())
    if not 0 < images * model.claim.delta < 1:
        raise ConfigError(
            f"some test images, and fewer than 1 / delta = {1 / model.claim.delta:g}",
            f"{images:,}",
            "Choose another test set, or fit with a smaller delta.",
        )
    _check_disjoint(folder, test, model.claim.unit)
    refuse_after_a_look(folder, test.source)


def _check_disjoint(folder: RunFolder, test: ImageSet, unit: Unit) -> None:
    """Whether the two sets share an image or, at user level, a person.

    The comparison has no noise, so a published score says how it ended. The claim names that among its assumptions.
    """
    shared = {"training images": folder.count_training_images(test)}
    if unit is Unit.USER:
        shared["training users"] = folder.count_training_users(test)
    for what, number in shared.items():
        if number is None:
            raise PrivacyError(
                f"a run that can tell its {what} from others",
                f"a run without hashes of its {what}",
                "Nothing was released; a cost reserved with the fit stays charged. Fit again: fits keep hashes now.",
            )
        if number:
            raise PrivacyError(
                "test images of people the model was not fitted on",
                f"{number:,} {what} in it",
                "Such a person would lose privacy twice: take their images out of the test set or, better, separate "
                "the sets by person before a fit. Nothing was released; a cost reserved with the fit stays charged.",
            )
