"""Whether two sets of images can be compared at all; if not, what to do about it."""

from collections.abc import Collection, Sequence

from veilset.data.spec import ImageSpec
from veilset.errors import ConfigError, DataError
from veilset.wording import meant


def check_shapes(ours: ImageSpec, real: ImageSpec) -> None:
    if ours.shape != real.shape:
        raise DataError(
            f"real images like the other set's: {ours.look}",
            real.look,
            f"Read the real images with --size {ours.height}x{ours.width} --color {ours.color} and the --fit that "
            f'the training images had (in Python size=({ours.height}, {ours.width}), color="{ours.color}", fit).',
        )


def check_classes(ours: ImageSpec, real: ImageSpec) -> None:
    """The same number must mean the same class in both sets."""
    names, theirs = ours.class_names, real.class_names
    if names == theirs:
        return
    if set(names) == set(theirs):
        raise DataError(
            f"real classes in the other set's order: {', '.join(names)}",
            f"{', '.join(theirs)}",
            "Renumber the labels of the real images and read them with --class-names (in Python class_names) in that "
            "order.",
        )
    missing, extra = ([name for name in a if name not in b] for a, b in ((names, theirs), (theirs, names)))
    raise DataError(
        f"the other set's {len(names)} classes: {', '.join(names)}",
        f"{len(theirs)} real ones: {missing} are missing, {extra} are unknown",
        "Use real images of the model's classes, kept back from training; where only the names differ, or a class has "
        "no image, read them with --class-names (in Python class_names) set to the model's.",
    )


def check_names(kind: str, names: Sequence[str], known: Collection[str], example: str) -> None:
    """Raises: ConfigError unless these are names of what is known, some of them and each once."""
    unknown = [] if isinstance(names, str) else [name for name in names if name not in known]
    if isinstance(names, str) or unknown or not names or len(set(names)) != len(names):
        raise ConfigError(
            f"distinct {kind}s out of: {', '.join(known)}",
            f"no {kind} {', '.join(map(repr, unknown))}" if unknown else f"{names!r}",
            meant(unknown[0] if unknown else "", known, f"Give a list of some of them, each once, such as {example}."),
        )
