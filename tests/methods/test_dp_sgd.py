"""The classifier baseline: paper's noise, nothing but noisy gradients, and going on from where another stopped."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import make_images
from contract.sensitivity import NOISE_MULTIPLIER, Memory, RecordingDoor, SameCoins, neighbours, nulled, violations

import veilset
from veilset.data.spec import ImageSet
from veilset.errors import ConfigError
from veilset.methods.base import FitContext, PublicFacts, make_config
from veilset.methods.dp_sgd import DpSgd
from veilset.methods.plan import make_plan
from veilset.privacy.bounds import Adjacency, Unit
from veilset.privacy.events import NOTHING, Gaussian, PoissonSampled, Repeated
from veilset.privacy.ledger import PrivacyLedger

METHOD = DpSgd()
TINY: dict[str, Any] = {"epochs": 2, "expected_batch": 50, "width": 16}


def facts_for(images: ImageSet, size: int = 100, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> PublicFacts:
    return PublicFacts(spec=images.spec, declared_size=size, adjacency=adjacency, unit=Unit.RECORD)


def test_it_makes_no_images_so_no_list_of_methods_has_it() -> None:
    assert METHOD.name not in veilset.all_methods()
    with pytest.raises(ConfigError):
        veilset.plan(make_images().spec, method=METHOD.name, epsilon=1.0, declared_size=20)


def test_a_task_of_split_mnist_is_priced_as_ten_epochs_over_its_declared_size() -> None:
    facts = facts_for(make_images(), size=12_000)
    event = METHOD.events(METHOD.Config(), facts, 0.7)
    assert event == Repeated(470, PoissonSampled(256 / 12_000, Gaussian(0.7), 1.0))
    noise = METHOD.published_noise(METHOD.Config(), facts, 10.0, 1e-5)
    assert METHOD.published_claim(METHOD.Config(), facts, noise, 1e-5).epsilon == pytest.approx(10.0, rel=1e-3)
    plan = make_plan(METHOD, facts, epsilon=10.0)
    assert plan.epsilon_planned == pytest.approx(10.0, rel=1e-3)
    assert plan.noise_multiplier < noise, "the paper's Renyi bound asks for more noise than is needed"


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_no_neighbour_moves_a_release_beyond_its_bound(adjacency: Adjacency) -> None:
    def base(size: int) -> ImageSet:
        return make_images(counts=(size - size // 3, size // 3), seed=size)

    config, facts = make_config(METHOD, TINY), facts_for(base(3), adjacency=adjacency)
    assert violations(METHOD, config, facts, neighbours(base, (1, 2, 17), adjacency, in_place=True)) == []
    assert violations(METHOD, config, facts, iter([nulled(base(17), 8)])) == []


def fitted(folder: Path, images: ImageSet, noise: Any = None, **options: Any) -> tuple[Any, RecordingDoor]:
    config, facts = make_config(METHOD, TINY), facts_for(images)
    ledger = PrivacyLedger.open_new(
        folder / "ledger.jsonl", planned=METHOD.events(config, facts, NOISE_MULTIPLIER), reserve=NOTHING,
        adjacency=facts.adjacency, unit=facts.unit, delta=1e-5, not_private="test",
    )  # fmt: skip
    door = RecordingDoor(ledger, noise or SameCoins(0))
    context = FitContext(
        door=door, facts=facts, noise_multiplier=NOISE_MULTIPLIER, shard_key=b"k" * 32, seed=0,
        device=torch.device("cpu"), checkpoints=Memory(), progress=lambda *_: None,
    )  # fmt: skip
    network = METHOD.fit(config, images, context, **options)
    ledger.close()
    return network, door


def test_a_fit_releases_what_its_plan_says_and_moves_along_it(tmp_path: Path) -> None:
    network, door = fitted(tmp_path, make_images())
    assert door.ledger.charged == Counter({PoissonSampled(0.5, Gaussian(1.0), 1.0): 4})
    start = METHOD.build(make_config(METHOD, TINY), make_images().spec)
    moved = torch.cat([value.flatten() for value in network.parameters()])
    assert moved.numel() == door.outputs[0].numel() == sum(value.numel() for value in start.parameters())


def test_a_network_goes_on_from_the_one_before(tmp_path: Path) -> None:
    images = make_images()
    nothing = images.subset(torch.zeros(len(images), dtype=torch.bool))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    before, _ = fitted(tmp_path / "a", images)
    after, _ = fitted(tmp_path / "b", nothing, before=before)
    for old, new in zip(before.parameters(), after.parameters(), strict=True):
        assert torch.equal(old, new), "without noise, an empty task moves nothing"


@pytest.mark.parametrize("wrong", [{"epochs": 0}, {"clip_norm": 0.0}, {"width": 20}, {"mean": 1e9}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        make_config(METHOD, wrong)
