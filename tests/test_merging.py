"""Adding sketches of different people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import make_images
from sketch_cases import NETWORKS, continued, measured

from veilset.data.spec import Source
from veilset.errors import ConfigError, MixedAdjacency, VeilsetError
from veilset.merging import merge
from veilset.privacy.accounting import price
from veilset.score_release import on_benchmark
from veilset.sharing import verify
from veilset.sketch_release import MERGED, open_sketch
from veilset.synthesis import synthesize


def test_a_merged_sketch_is_the_sum_and_claims_the_dearest_part(made: Path) -> None:
    first, other, merged = (open_sketch(made / name) for name in ("first", "other", "merged"))
    assert torch.allclose(merged.sums[0], first.sums[0] + other.sums[0])
    assert merged.claim.epsilon == other.claim.epsilon > first.claim.epsilon
    assert merged.claim.mu == other.claim.mu
    assert merged.facts.declared_size == 50
    assert set(MERGED) <= set(merged.claim.assumptions)


def test_without_noise_merging_is_the_sketch_of_all_images_together(tmp_path: Path) -> None:
    images, bare = make_images(counts=(8, 5, 3)), {"accounting": "none", "epsilon": None, "declared_size": 10}
    rows = torch.arange(len(images))
    for name, part in (("a", rows % 2 == 0), ("b", rows % 2 == 1)):
        measured(tmp_path / name, images.subset(part), **bare)
    merged = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    whole = measured(tmp_path / "whole", images, **bare)
    assert torch.allclose(merged.sums[0], whole.sums[0], atol=1e-4)


def test_a_part_without_privacy_voids_the_sum(made: Path, tmp_path: Path) -> None:
    measured(tmp_path / "bare", make_images(seed=3), accounting="none", epsilon=None)
    merged = merge([made / "first", tmp_path / "bare"], tmp_path / "c")
    assert merged.claim.epsilon is None
    assert any(stamp.startswith("NOT PRIVATE") for stamp in merged.claim.stamps)
    assert "epsilon" not in verify(tmp_path / "c")


def test_the_same_measurement_is_not_merged_twice_not_even_inside_another(made: Path, tmp_path: Path) -> None:
    for names in (("first", "first"), ("merged", "first"), ("other", "merged")):
        with pytest.raises(ConfigError, match="different people"):
            merge([made / name for name in names], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_two_measurements_of_one_data_set_are_not_of_different_people(tmp_path: Path) -> None:
    for name in ("photos/train", "other photos"):
        (tmp_path / name).mkdir(parents=True)
    source = Source(path=str(tmp_path / "photos"))
    for name in ("a", "b"):
        measured(tmp_path / name, make_images(source=source))
    measured(tmp_path / "d", make_images(seed=1, source=Source(path=str(tmp_path / "other photos"))))
    measured(tmp_path / "e", make_images(seed=2, source=Source(path=str(tmp_path / "photos" / "train"))))
    a, b, e = (tmp_path / name for name in "abe")
    for paths in ((a, b), (a / "release", b), (a, e), (e, a)):
        with pytest.raises(ConfigError, match=r"several of .*photos"):
            merge(paths, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    assert merge([tmp_path / "a", tmp_path / "d"], tmp_path / "c")


@pytest.mark.parametrize("private_first", [True, False])
def test_one_private_part_makes_the_sum_private(tmp_path: Path, private_first: bool) -> None:
    """Else exact scores on its people could be published as scores on public images are."""
    public = Source(benchmark="digits")
    sources = [Source(), public] if private_first else [public, Source()]
    for name, seed in (("a", 0), ("b", 1)):
        measured(tmp_path / name, make_images(seed=seed, source=sources[seed]))
    measured(tmp_path / "d", make_images(seed=2, source=Source(benchmark="letters")))
    assert not on_benchmark(merge([tmp_path / "a", tmp_path / "b"], tmp_path / "ab").claim)
    both = merge([tmp_path / "ab"[private_first], tmp_path / "d"], tmp_path / "public").claim
    assert on_benchmark(both)
    assert len(both.stamps) == 2


@pytest.mark.parametrize(("first", "second"), [(None, "digits"), ("digits", None)])
def test_a_round_on_public_images_does_not_make_a_private_sketch_public(
    tmp_path: Path, first: str | None, second: str | None
) -> None:
    begun = measured(tmp_path / "a", make_images(source=Source(benchmark=first)))
    assert on_benchmark(begun.claim) == (first is not None)
    synthesize(tmp_path / "a", tmp_path / "run", options=NETWORKS, features_out=tmp_path / "networks")
    images = make_images(source=Source(benchmark=second))
    gone_on = continued(tmp_path / "b", tmp_path / "a", tmp_path / "networks", images=images)
    assert not on_benchmark(gone_on.claim)


def test_three_parts_can_be_merged_one_after_the_other(made: Path, tmp_path: Path) -> None:
    measured(tmp_path / "third", make_images(seed=4), epsilon=0.5)
    merged = merge([made / "merged", tmp_path / "third"], tmp_path / "c")
    assert [len(part) for part in merged.parts] == [1, 1, 1]
    assert verify(tmp_path / "c")["epsilon"] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"delta": 1e-6}, MixedAdjacency),
        ({"adjacency": "replace"}, MixedAdjacency),
        ({"networks": 3}, ConfigError),
        ({"width": 5}, ConfigError),
        ({"network_seed": 1}, ConfigError),
        ({"total_weight": 0.2}, ConfigError),
    ],
)
def test_sketches_of_other_networks_or_terms_are_not_added(
    options: dict[str, Any], kind: type[VeilsetError], made: Path, tmp_path: Path
) -> None:
    measured(tmp_path / "b", make_images(seed=1), **options)
    with pytest.raises(kind) as told:
        merge([made / "first", tmp_path / "b"], tmp_path / "c")
    assert not (tmp_path / "c").exists()
    if kind is ConfigError:
        assert told.value.found == ", ".join(f"{name} {value}" for name, value in options.items()), "nothing else"


def test_sketches_of_other_classes_or_rounds_are_not_added(made: Path, tmp_path: Path) -> None:
    measured(tmp_path / "b", make_images(counts=(3, 4)))
    for other in (tmp_path / "b", made / "second"):
        with pytest.raises(ConfigError):
            merge([made / "other", other], tmp_path / "c")
    with pytest.raises(ConfigError, match="two sketches"):
        merge([made / "first"], tmp_path / "c")


def test_later_rounds_with_other_networks_are_not_added(made: Path, tmp_path: Path) -> None:
    synthesize(made / "other", tmp_path / "run", options=NETWORKS, features_out=tmp_path / "nets")
    continued(tmp_path / "b", made / "other", tmp_path / "nets", images=make_images(seed=1), declared_size=30)
    with pytest.raises(ConfigError, match="same networks"):
        merge([made / "second", tmp_path / "b"], tmp_path / "c")


def test_parts_under_replace_stay_parts_and_the_card_says_so(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        measured(tmp_path / name, make_images(seed=seed), adjacency="replace")
    merged = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    record = merged.privacy.records[0][0]
    assert merged.claim.epsilon == price(record.spent, record.delta, record.adjacency).epsilon
    assert "both are of the same part" in (tmp_path / "c" / "release" / "README.md").read_text()


def test_a_declared_size_too_large_for_delta_is_refused(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        measured(tmp_path / name, make_images(seed=seed), declared_size=60_000)
    with pytest.raises(ConfigError, match="smaller delta"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")


def test_a_forged_part_is_not_merged(made: Path, tmp_path: Path) -> None:
    import shutil

    from contract.cases import rewrite_bytes

    shutil.copytree(made / "first", tmp_path / "a")
    rewrite_bytes(tmp_path / "a" / "release" / "README.md", b"trust me")
    with pytest.raises(VeilsetError):
        merge([tmp_path / "a", made / "other"], tmp_path / "c")
