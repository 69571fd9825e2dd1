"""Adding sketches of different people: sums add, and so do their noises. Open side: no image is read.

Why the claim is that of the dearest part: adding, removing or replacing one person changes one part only, and all other
parts are the same with or without that person (parallel composition). It holds only as long as nobody is in two parts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath

import torch

from veilset.artifact import combined, write_release
from veilset.errors import ConfigError
from veilset.files import require_empty
from veilset.model import release_folder
from veilset.privacy.claim import common_terms
from veilset.run_folder import RunFolder
from veilset.sharing import verify
from veilset.sketch_file import same_networks
from veilset.sketch_release import MERGED, SketchRelease, differing, open_sketch, sketch_files


def merge(paths: Sequence[Path], out: Path) -> SketchRelease:
    """Writes the sum of released sketches as a new one, after verifying each."""
    if len(paths) < 2:
        raise ConfigError("at least two sketches to merge", f"{len(paths)}", "Name them one after the other.")
    for path in paths:
        verify(path, second=False)
    sketches = [open_sketch(path) for path in paths]
    for other in sketches[1:]:
        _check_alike(sketches[0], other)
    _check_different(sketches)
    _check_data_sets(paths)
    files = _merged(sketches)
    require_empty(out)
    write_release(out / "release", files)
    return open_sketch(out)


def _merged(sketches: Sequence[SketchRelease]) -> dict[str, bytes]:
    first = sketches[0]
    facts = replace(first.facts, declared_size=sum(sketch.facts.declared_size for sketch in sketches))
    if facts.declared_size * first.claim.delta >= 1:
        raise ConfigError(
            f"a delta below 1 / declared size of all parts = {1 / facts.declared_size:.2g}",
            f"{first.claim.delta:g}",
            "At this delta publishing one record outright would be allowed. Measure with a smaller delta.",
        )
    privacy = combined(
        tuple(part for sketch in sketches for part in sketch.privacy.parts),
        [sketch.claim for sketch in sketches],
        assumptions=MERGED,
    )
    files = [sketch.tensors for sketch in sketches]
    tensors = dict(files[0])
    for name in tensors:
        if name.endswith(".sums"):
            tensors[name] = torch.stack([file[name].double() for file in files]).sum(0).float()
    parts = [part for sketch in sketches for part in sketch.parts]
    return sketch_files(facts, first.layout, parts, tensors, privacy)


def _check_alike(first: SketchRelease, other: SketchRelease) -> None:
    """Sums of other networks, images or units cannot be added; neither can claims on other terms."""
    common_terms([*first.privacy.records, *other.privacy.records])
    terms = ({**vars(one.facts), "declared_size": "any", **vars(one.layout)} for one in (first, other))
    wanted, found = differing(*terms)
    if wanted:
        raise ConfigError(
            f"sketches of one kind: {wanted}",
            found,
            "Measure all parts with the same sizes, classes, networks, rounds and settings.",
        )
    if not same_networks(first.tensors, other.tensors):
        raise ConfigError(
            "later rounds measured with the same networks", "others", "Use one --features file for all parts."
        )


def _check_data_sets(paths: Sequence[Path]) -> None:
    """Where the runs are the owner's own, their notes tell which images were measured; an exported sketch has none.

    A folder and one inside it count as the same images: which part of the outer one was read is not compared.
    """
    known = [RunFolder(release_folder(path).parent).data_set for path in paths]
    pairs = itertools.combinations([PurePath(name) for name in known if name is not None], 2)
    if twice := [max(pair) for pair in pairs if pair[0].is_relative_to(pair[1]) or pair[1].is_relative_to(pair[0])]:
        raise ConfigError(
            "sketches of different people",
            f"several of {twice[0]}",
            "The same people in two parts bear both epsilons. Measure all images at once, or use one of the sketches.",
        )


def _check_different(sketches: Sequence[SketchRelease]) -> None:
    """The same measurement twice would be counted as two groups of people, and its noise would not be independent."""
    seen: set[str] = set()
    for sketch in sketches:
        mine = {one["sums"] for part in sketch.parts for one in part}
        if seen & mine:
            raise ConfigError(
                "sketches of different people", f"a part of {sketch.folder} twice", "Merge every sketch once."
            )
        seen |= mine
