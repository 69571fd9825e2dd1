"""A release of clipped gradients is what it is charged as; and each classical mistake of DP-SGD is noticed."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from contract.cases import make_images
from contract.sensitivity import SameCoins, nulled, violations
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from veilset.data.spec import ImageSet, ImageSpec, to_unit_range
from veilset.engines.clipped_gradients import ClippedGradients, GradientTerms, check_width, clipped_mean
from veilset.engines.per_sample_gradients import Forward, PerSampleGradients, cross_entropies
from veilset.errors import ConfigError, NotBounded
from veilset.methods.base import FitContext, PublicFacts
from veilset.nets.classifiers import ConvNet
from veilset.privacy.bounds import GRID, Adjacency, GroupedSum, Unit, clip_rows, sum_rows
from veilset.privacy.events import NOTHING, Composed, Event, Gaussian, PoissonSampled, Repeated
from veilset.privacy.ledger import PrivacyLedger
from veilset.privacy.noise import NoiseSource, NoNoise, SeededNoise
from veilset.privacy.release import Door
from veilset.privacy.sampling import poisson_draw
from veilset.randomness import initialise, named_generator

CPU = torch.device("cpu")
SPEC = ImageSpec(height=8, width=8, channels=1, class_names=("a", "b", "c"))


class GivenRows:
    """Stands for per-sample gradients: the record whose pixels have the value i gets row i."""

    def __init__(self, rows: Tensor, sizes: tuple[int, ...] = ()) -> None:
        self.rows, self.sizes = rows, sizes or (rows.shape[1],)

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        numbers = (inputs[:, 0, 0, 0] * 255).round().to(torch.int64)
        return self.rows[numbers].clone()

    def shaped(self, row: Tensor) -> list[Tensor]:
        return list(row.split(self.sizes))


def numbered(count: int) -> ImageSet:
    """Record i has all pixels i."""
    pixels = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, *SPEC.shape)
    return ImageSet(spec=SPEC, pixels=pixels.contiguous(), labels=torch.zeros(count, dtype=torch.int64))


def network() -> nn.Module:
    made = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(4, 4), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64, 3)
    )
    return initialise(made, named_generator(0, "weights"))


def terms_for(*, size: int = 20, batch: int = 10, clip: float = 1.0) -> GradientTerms:
    return GradientTerms(declared_size=size, expected_batch=batch, clip_norm=clip)


def door_for(
    folder: Path,
    terms: GradientTerms,
    noise: NoiseSource,
    *,
    times: int = 1,
    adjacency: Adjacency = Adjacency.ADD_REMOVE,
    unit: Unit = Unit.RECORD,
) -> Door:
    event = terms.event(1.0, adjacency)
    ledger = PrivacyLedger.open_new(
        folder / "ledger.jsonl", planned=event if times == 1 else Repeated(times, event), reserve=NOTHING,
        adjacency=adjacency, unit=unit, delta=1e-5, not_private="test",
    )  # fmt: skip
    return Door(ledger, noise)


def grid(engine: ClippedGradients, gradients: Any, sample: Tensor) -> Tensor:
    total = engine.clipped_sum(gradients, sample).grid_total
    assert total is not None
    return total[0]


# --- several releases on one sample -----------------------------------------------------------------------------------


def test_rows_of_other_bounds_are_released_on_one_sample_and_cost_their_composition(tmp_path: Path) -> None:
    terms = terms_for(size=10, batch=10)
    event = terms.event(1.0, Adjacency.ADD_REMOVE, 2.0)
    assert event == PoissonSampled(1.0, Composed((Gaussian(1.0), Gaussian(2.0))))
    ledger = PrivacyLedger.open_new(
        tmp_path / "ledger.jsonl", planned=event, reserve=NOTHING, adjacency=Adjacency.ADD_REMOVE, unit=Unit.RECORD,
        delta=1e-5, not_private="test",
    )  # fmt: skip
    door, engine = Door(ledger, NoNoise()), ClippedGradients(numbered(10), terms, device=CPU)
    draw, rows = engine.draw(door, 1.0, 2.0), GivenRows(torch.full((256, 4), 100.0))
    found = [engine.release_mean(rows, draw, door, noise, clip) for noise, clip in ((1.0, 5.0), (2.0, None))]
    assert [float(value.norm()) for value in found] == pytest.approx([5.0, 1.0], rel=1e-5)
    assert ledger.charged == {event: 1}


def test_a_sum_can_be_gone_on_with() -> None:
    engine, rows = ClippedGradients(numbered(10), terms_for(), device=CPU), GivenRows(torch.eye(256))
    total = engine.clipped_sum(rows, torch.arange(4))
    total = engine.clipped_sum(rows, torch.arange(4, 10), total=total)
    assert torch.equal(total.grid_total[0], grid(engine, rows, torch.arange(10)))


def test_the_records_of_a_draw_leave_out_null_records() -> None:
    images = make_images((5, 3, 2), null_rows=(0, 7))
    engine = ClippedGradients(images, terms_for(size=10, batch=10), device=CPU)
    pixels, labels = engine.batch(poisson_draw(10, 1.0, SameCoins(0)))
    assert torch.equal(labels, images.labels[images.valid])
    assert torch.equal(pixels, to_unit_range(images.pixels[images.valid]))


def test_public_rows_are_clipped_as_private_ones() -> None:
    images, rows = numbered(20), GivenRows(torch.eye(256) * torch.arange(256)[:, None])
    engine = ClippedGradients(images, terms_for(clip=3.0), device=CPU)
    wanted = grid(engine, rows, torch.arange(20)) * (3.0 * GRID / 20)
    found = clipped_mean(rows, to_unit_range(images.pixels), images.labels, 3.0)
    assert torch.allclose(found, wanted)


# --- values ----------------------------------------------------------------------------------------------------------


def test_the_sum_is_that_of_a_plain_loop_over_clipped_records() -> None:
    images, net, clip = make_images((9, 8, 6)), network(), 3.5
    engine = ClippedGradients(images, terms_for(clip=clip), device=CPU, records_at_once=5)
    expected = 0
    norms = []
    for pixels, label in zip(to_unit_range(images.pixels), images.labels, strict=True):
        loss = cross_entropies(net, pixels[None], label[None]).sum()
        row = torch.cat([value.flatten() for value in torch.autograd.grad(loss, list(net.parameters()))])
        norms.append(float(row.norm()))
        expected = expected + row.double() * min(1.0, clip / norms[-1])
    assert max(norms) > clip > min(norms)
    found = grid(engine, PerSampleGradients(net), torch.arange(len(images))) * clip * GRID
    # Besides float32 rounding a record loses less than two grid steps in an entry: by truncation, and by the slack.
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max() + 2 * len(images) * clip * GRID


def test_the_sum_is_that_of_opacus() -> None:
    """Reference values of Opacus 1.6.0 with torch 2.13.0 on a CPU; there is no seed, weights and pixels are formulas.

    With `network`, `pixels` and `labels` as below::

        wrapped = GradSampleModule(network, loss_reduction="sum")
        optimiser = DPOptimizer(torch.optim.SGD(wrapped.parameters(), lr=1.0), noise_multiplier=0.0,
                                max_grad_norm=5.0, expected_batch_size=None, loss_reduction="sum")
        F.cross_entropy(wrapped(pixels / 255), labels, reduction="sum").backward()
        norms = torch.stack([p.grad_sample.flatten(1).norm(dim=1) for p in wrapped.parameters()]).norm(dim=0)
        optimiser.clip_and_accumulate()
        total = torch.cat([p.summed_grad.flatten() for p in wrapped.parameters()])
    """
    network = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.GroupNorm(2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(128, 3)
    )
    with torch.no_grad():
        for value in network.parameters():
            value.copy_(torch.arange(1, value.numel() + 1).sin().reshape(value.shape) / 2)
    pixels = (torch.arange(4 * 64).reshape(4, 1, 8, 8) * 37 % 256).to(torch.uint8)
    labels = torch.tensor([0, 1, 2, 1])
    images = ImageSet(spec=SPEC, pixels=pixels, labels=labels)
    gradients = PerSampleGradients(network)
    norms = gradients(to_unit_range(pixels), labels).norm(dim=1)
    assert norms.tolist() == pytest.approx([4.1374807, 13.9720984, 7.8439474, 11.4140024], rel=1e-5)
    engine = ClippedGradients(images, terms_for(clip=5.0), device=CPU)
    total = grid(engine, gradients, torch.arange(4)) * 5.0 * GRID
    grid_loss = 2 * 4 * 5.0 * GRID
    assert total[:4].tolist() == pytest.approx([2.0138137, 0.4446713, -1.9899794, 1.9220914], rel=1e-5, abs=grid_loss)
    assert total[20:24].tolist() == pytest.approx(
        [0.5663303, 6.5348358, -1.4356511, -0.9092373], rel=1e-5, abs=grid_loss
    )
    assert total[-3:].tolist() == pytest.approx([0.3289051, -0.5876760, 0.2587708], rel=1e-5, abs=grid_loss)
    assert float(total.norm()) == pytest.approx(10.2891054, rel=1e-5)


@pytest.mark.parametrize("records_at_once", [1, 3, 16, 64])
def test_the_physical_batch_does_not_change_the_sum_of_the_same_rows_by_one_bit(records_at_once: int) -> None:
    rows = torch.randn(40, 300, generator=named_generator(0, "rows")) * 0.2
    engine = ClippedGradients(numbered(40), terms_for(), device=CPU, records_at_once=records_at_once)
    sample = torch.arange(40)[::3]
    expected = clip_rows(rows[sample], 1.0, dtype=torch.float32).grid_rows.sum(dim=0)
    assert torch.equal(grid(engine, GivenRows(rows), sample), expected)
    assert torch.equal(grid(engine, GivenRows(rows), sample.flip(0)), expected)


@pytest.mark.parametrize("records_at_once", [1, 7, 64])
def test_the_physical_batch_changes_the_sum_of_a_network_by_rounding_only(records_at_once: int) -> None:
    images, gradients, sample = make_images((20, 15, 5)), PerSampleGradients(network()), torch.arange(40)
    sums = [
        grid(ClippedGradients(images, terms_for(), device=CPU, records_at_once=size), gradients, sample)
        for size in (16, records_at_once)
    ]
    assert (sums[0] - sums[1]).abs().max() <= len(sample)


@pytest.mark.parametrize(
    ("height", "width", "channels", "filters"), [(28, 28, 1, 128), (9, 13, 3, 16), (12, 12, 1, 48)]
)
def test_a_record_of_the_network_of_psg_has_the_same_row_at_every_place(
    height: int, width: int, channels: int, filters: int
) -> None:
    images = make_images((5, 3), height=height, width=width, channels=channels)
    gradients = PerSampleGradients(ConvNet(images.spec, named_generator(0, "weights"), width=filters))
    engine = ClippedGradients(images, terms_for(), device=CPU)
    straight = engine._rows(gradients, torch.arange(8))
    for shift in range(1, 8):
        assert torch.equal(engine._rows(gradients, torch.arange(8).roll(shift)).roll(-shift, 0), straight)


@pytest.mark.parametrize("width", [0, 13, 40])
def test_widths_at_which_a_record_s_place_would_show_are_refused(width: int) -> None:
    with pytest.raises(ConfigError, match="multiple of 16"):
        check_width(width)


def test_the_release_is_divided_by_the_expected_batch_and_shaped_like_the_parameters(tmp_path: Path) -> None:
    images, net, terms = make_images((9, 8, 6)), network(), terms_for(size=23, batch=7)
    engine = ClippedGradients(images, terms, device=CPU)
    found = engine.release(PerSampleGradients(net), door_for(tmp_path, terms, SameCoins(3)), 1.0)
    sample = poisson_draw(len(images), terms.rate, SameCoins(3)).indices
    total = grid(engine, PerSampleGradients(net), sample).double() * GRID
    assert 0 < len(sample) != terms.expected_batch
    assert [value.shape for value in found] == [value.shape for value in net.parameters()]
    assert torch.allclose(torch.cat([value.flatten() for value in found]).double(), total / 7, atol=1e-7)


def test_sums_by_class_are_those_of_the_records_of_each_class_with_their_count(tmp_path: Path) -> None:
    images = make_images((4, 3, 2), null_rows=(1,))
    terms = GradientTerms(declared_size=9, expected_batch=9, clip_norm=1.0, total_weight=0.5)
    rows = torch.randn(9, 5, generator=named_generator(0, "rows"))
    engine = ClippedGradients(images, terms, device=CPU, records_at_once=9)
    door = door_for(tmp_path, terms, SameCoins(0))
    found = engine.release_by_class(lambda *_: rows.clone(), engine.draw(door), door, 1.0)
    clipped = rows / rows.norm(dim=1, keepdim=True).clamp(min=1)
    expected = torch.cat([clipped, torch.full((9, 1), 0.5)], dim=1) * images.valid[:, None]
    sums = torch.zeros(3, 6).index_add(0, images.labels, expected)
    assert torch.allclose(found.float(), sums, atol=1e-4)


# --- what adds nothing -----------------------------------------------------------------------------------------------


def test_a_record_without_a_finite_gradient_adds_nothing_and_spares_the_others() -> None:
    def broken(network: Forward, inputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropies(network, inputs, labels) * torch.tensor([1.0, math.nan, math.inf])[labels]

    images, net = make_images((6, 4, 4)), network()
    engine = ClippedGradients(images, terms_for(), device=CPU, records_at_once=16)
    everybody = torch.arange(len(images))
    usable = engine._rows(PerSampleGradients(net), everybody)[images.labels == 0]
    expected = clip_rows(usable, 1.0, dtype=torch.float32).grid_rows.sum(dim=0)
    assert torch.equal(grid(engine, PerSampleGradients(net, losses=broken), everybody), expected)


def test_a_null_record_adds_nothing() -> None:
    whole, holed = make_images((6, 4)), make_images((6, 4), null_rows=(2, 7))
    gradients = PerSampleGradients(network())
    engines = [ClippedGradients(images, terms_for(), device=CPU, records_at_once=10) for images in (whole, holed)]
    kept = clip_rows(engines[0]._rows(gradients, torch.arange(10))[holed.valid], 1.0, dtype=torch.float32).grid_rows
    assert torch.equal(grid(engines[1], gradients, torch.arange(10)), kept.sum(dim=0))


@pytest.mark.parametrize("size", [0, 5])
def test_an_empty_sample_still_releases_noise_and_is_charged(size: int, tmp_path: Path) -> None:
    terms = terms_for(size=10**9, batch=1, clip=0.5)
    door = door_for(tmp_path, terms, SeededNoise(0))
    gradients = GivenRows(torch.ones(256, 4000))
    (found,) = ClippedGradients(numbered(size), terms, device=CPU).release(gradients, door, 1.0)  # type: ignore[arg-type]
    assert float(found.std()) == pytest.approx(0.5, rel=0.05)
    door.ledger.close()


# --- the guarantee ---------------------------------------------------------------------------------------------------

ENTRIES = st.one_of(
    st.floats(width=32),
    st.sampled_from([0.0, -0.0, 1e-45, 1e-38, 3.4e38, -3.4e38, math.nan, math.inf, -math.inf]),
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(ENTRIES, min_size=3, max_size=3), min_size=1, max_size=9),
    clip=st.sampled_from([1e-9, 0.1, 1.0, 1e6]),
    records_at_once=st.integers(1, 4),
)
def test_removing_any_record_moves_the_sum_by_at_most_the_clip(
    rows: list[list[float]], clip: float, records_at_once: int
) -> None:
    stand_in = GivenRows(torch.tensor(rows + [[0.0] * 3] * (256 - len(rows))))
    engine = ClippedGradients(numbered(len(rows)), terms_for(clip=clip), device=CPU, records_at_once=records_at_once)
    everybody = torch.arange(len(rows))
    total = grid(engine, stand_in, everybody)
    for left_out in everybody:
        moved = total - grid(engine, stand_in, everybody[everybody != left_out])
        assert int(moved.square().sum()) <= round(GRID**-2)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_removing_any_record_moves_the_sum_of_a_network_with_hostile_weights_by_at_most_the_clip(scale: float) -> None:
    images, net = make_images((5, 4, 3)), network()
    with torch.no_grad():
        for value in net.parameters():
            value *= scale
    engine = ClippedGradients(images, terms_for(clip=0.1), device=CPU)
    total = grid(engine, PerSampleGradients(net), torch.arange(12))
    for left_out in range(12):
        rest = torch.arange(12)[torch.arange(12) != left_out]
        moved = (total - grid(engine, PerSampleGradients(net), rest)).double()
        assert float(moved.norm()) <= (1 + 1e-6) / GRID


class DpSgd:
    """A classifier trained by three noisy steps, as the contract's sensitivity search wants its methods."""

    def terms(self, facts: PublicFacts) -> GradientTerms:
        return GradientTerms(declared_size=facts.declared_size, expected_batch=50, clip_norm=0.1)

    def events(self, config: Any, facts: PublicFacts, noise_multiplier: float) -> Event:
        return Repeated(3, self.terms(facts).event(noise_multiplier, facts.adjacency))

    def fit(self, config: Any, images: ImageSet, context: FitContext) -> None:
        net = network()
        engine = ClippedGradients(images, self.terms(context.facts), device=context.device)
        for _ in range(3):
            steps = engine.release(PerSampleGradients(net), context.door, context.noise_multiplier)
            with torch.no_grad():
                for value, step in zip(net.parameters(), steps, strict=True):
                    value -= step


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_contract_search_finds_no_neighbour_that_moves_a_step_too_far(adjacency: Adjacency) -> None:
    images = make_images((20, 12, 8))
    facts = PublicFacts(spec=images.spec, declared_size=100, adjacency=adjacency, unit=Unit.RECORD)
    assert violations(DpSgd(), None, facts, (nulled(images, place) for place in range(0, 40, 5))) == []


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_what_is_charged_is_the_event_of_the_terms(adjacency: Adjacency, tmp_path: Path) -> None:
    terms = terms_for()
    door = door_for(tmp_path, terms, SeededNoise(0), times=3, adjacency=adjacency)
    engine = ClippedGradients(numbered(20), terms, device=CPU)
    for _ in range(3):
        engine.release(GivenRows(torch.ones(256, 2)), door, 1.0)  # type: ignore[arg-type]
    door.ledger.close()  # raises PlanMismatch unless it was exactly the plan


def with_users(count: int, per_user: int) -> ImageSet:
    """Record i has all pixels i and belongs to user i // per_user."""
    images = numbered(count)
    users = tuple(f"user {row // per_user}" for row in range(count))
    return ImageSet(spec=images.spec, pixels=images.pixels, labels=images.labels, users=users)


def test_at_user_level_users_are_drawn_and_bring_their_images_up_to_the_cap(tmp_path: Path) -> None:
    terms = GradientTerms(declared_size=40, expected_batch=20, clip_norm=1.0, rows_per_user=2)
    engine = ClippedGradients(with_users(40, 4), terms, device=CPU)
    samples = noted_samples(engine)
    door = door_for(tmp_path, terms, SameCoins(0), unit=Unit.USER)
    (found,) = engine.release(GivenRows(torch.eye(256)[:, :40]), door, 1.0)  # type: ignore[arg-type]
    drawn = poisson_draw(10, 0.5, SameCoins(0)).indices
    assert 0 < len(drawn) < 10
    assert samples[0].tolist() == [4 * int(user) + place for user in drawn for place in range(4)]
    counted = (found.reshape(10, 4) > 0).sum(dim=1)
    assert counted.tolist() == [2 if user in drawn else 0 for user in range(10)]


def test_at_user_level_the_noise_grows_with_the_cap(tmp_path: Path) -> None:
    terms = GradientTerms(declared_size=40, expected_batch=1, clip_norm=0.5, rows_per_user=3)
    door = door_for(tmp_path, terms, SeededNoise(0), unit=Unit.USER)
    engine = ClippedGradients(with_users(40, 4), terms, device=CPU)
    (found,) = engine.release(GivenRows(torch.zeros(256, 4000)), door, 1.0)  # type: ignore[arg-type]
    assert float(found.std()) == pytest.approx(3 * 0.5, rel=0.05)


def test_at_user_level_a_release_without_a_cap_is_refused(tmp_path: Path) -> None:
    terms = terms_for()
    door = door_for(tmp_path, terms, SeededNoise(0), unit=Unit.USER)
    with pytest.raises(NotBounded):
        ClippedGradients(numbered(20), terms, device=CPU).release(GivenRows(torch.ones(256, 2)), door, 1.0)  # type: ignore[arg-type]
    assert not door.ledger.charged


@pytest.mark.parametrize("batch", [0, 21])
def test_an_expected_batch_beyond_the_declared_size_is_refused_with_one_that_is_not(batch: int) -> None:
    with pytest.raises(ConfigError) as caught:
        terms_for(batch=batch)
    assert str(caught.value) == (
        f"expected a sample of 1 to 20 images on average, as the declared size is 20\n  found {batch}\n"
        "  Use --expected-batch from 1 to 20, for example --expected-batch 6."
    )


# --- mistakes: each check passes for the engine, and fails for the engine with that mistake ---------------------------

Engine = type[ClippedGradients]


def noted_samples(engine: ClippedGradients) -> list[Tensor]:
    """A list to which every sample is added that the engine sums over from now on."""
    samples: list[Tensor] = []
    plain = engine.clipped_sum

    def noting(gradients: Any, sample: Tensor, **options: Any) -> GroupedSum:
        samples.append(sample)
        return plain(gradients, sample, **options)

    engine.clipped_sum = noting  # type: ignore[method-assign]
    return samples


def check_one_noise(engine_type: Engine, folder: Path) -> None:
    """The noise of a sample of many physical batches has the scale of one release."""
    terms = terms_for(size=40, batch=40, clip=0.5)
    engine = engine_type(numbered(40), terms, device=CPU, records_at_once=2)
    door = door_for(folder, terms, SeededNoise(0))
    (found,) = engine.release(GivenRows(torch.zeros(256, 4000)), door, 1.0)  # type: ignore[arg-type]
    assert float(found.std() * 40) == pytest.approx(0.5, rel=0.05)


def check_flat_clip(engine_type: Engine, folder: Path) -> None:
    """A record with a long gradient in every layer moves the sum by the clip, not by the clip in every layer."""
    engine = engine_type(numbered(1), terms_for(clip=0.5), device=CPU)
    total = engine.clipped_sum(GivenRows(torch.ones(256, 6), sizes=(2, 4)), torch.arange(1))  # type: ignore[arg-type]
    assert total.grid_total is not None
    assert float(total.grid_total.double().norm() * total.grid_step) <= 0.5
    assert total.bound == 0.5


def check_expected_batch(engine_type: Engine, folder: Path) -> None:
    """The release is in proportion to the number of records in the sample: nothing in it divides by that number."""
    terms = terms_for(size=40, batch=40)
    found = []
    for count in (10, 40):
        (folder / str(count)).mkdir()
        engine = engine_type(numbered(count), terms, device=CPU)
        door = door_for(folder / str(count), terms, SameCoins(0))
        found.append(engine.release(GivenRows(torch.ones(256, 1)), door, 1.0)[0])  # type: ignore[arg-type]
    assert float(found[0]) == pytest.approx(0.25, rel=1e-5)
    assert float(found[1]) == pytest.approx(1.0, rel=1e-5)


def check_poisson(engine_type: Engine, folder: Path) -> None:
    """Sample sizes are binomial, and whether a record came says nothing about whether it comes again."""
    count, times, terms = 40, 300, terms_for(size=40, batch=10)
    engine = engine_type(numbered(count), terms, device=CPU, records_at_once=count)
    door = door_for(folder, terms, SeededNoise(0), times=times)
    came = torch.zeros(times, count)
    samples = noted_samples(engine)
    for time in range(times):
        engine.release(GivenRows(torch.ones(256, 1)), door, 1.0)  # type: ignore[arg-type]
        came[time, samples[time]] = 1
    # Binomial(40, 1/4) has variance 7.5; of 300 its estimate is within a half and twice but once in a million.
    assert 3.75 < float(came.sum(dim=1).var()) < 15
    again = float((came[1:] * came[:-1]).mean())
    assert again == pytest.approx(1 / 16, rel=0.2)


CHECKS = [check_one_noise, check_flat_clip, check_expected_batch, check_poisson]


class NoiseInEveryBatch(ClippedGradients):
    """The noise stands inside the sum, once for each physical batch: as some papers print it."""

    def clipped_sum(self, gradients: Any, sample: Tensor, **options: Any) -> GroupedSum:
        total = super().clipped_sum(gradients, sample, **options)
        assert total.grid_total is not None
        draws = named_generator(0, "noise")
        for _ in sample.split(self.records_at_once)[1:]:
            total.grid_total += (torch.randn(total.grid_total.shape, generator=draws) / GRID).long()
        return total


class ClipPerLayer(ClippedGradients):
    """Every layer gets the whole clip."""

    def clipped_sum(self, gradients: Any, sample: Tensor, **options: Any) -> GroupedSum:
        total = super().clipped_sum(gradients, sample, **options)
        layers = self._rows(gradients, sample).split(gradients.sizes, dim=1)
        sums = [sum_rows(clip_rows(layer, self.terms.clip_norm)).grid_total for layer in layers]
        total.grid_total = torch.cat([value for value in sums if value is not None], dim=1)
        return total


class RealisedBatch(ClippedGradients):
    """Divides by the number of records that came, which is secret."""

    def release(self, gradients: Any, door: Door, noise_multiplier: float) -> list[Tensor]:
        samples = noted_samples(self)
        found = super().release(gradients, door, noise_multiplier)
        return [value * self.terms.expected_batch / max(len(samples[0]), 1) for value in found]


class Shuffled(ClippedGradients):
    """Walks through shuffled batches of a fixed size and is priced as if each were a fresh sample."""

    left = torch.zeros(0, dtype=torch.int64)

    def release(self, gradients: Any, door: Door, noise_multiplier: float) -> list[Tensor]:
        draw = poisson_draw(len(self._labels), self.terms.rate, door.noise)
        if len(self.left) == 0:
            self.left = torch.randperm(len(self._labels), generator=named_generator(len(draw.indices), "order"))
        sample, self.left = self.left[: self.terms.expected_batch], self.left[self.terms.expected_batch :]
        noisy = door.release_sum(self.clipped_sum(gradients, sample), noise_multiplier, draw=draw)
        return gradients.shaped(noisy[0] / self.terms.expected_batch)


@pytest.mark.parametrize("check", CHECKS)
def test_the_engine_passes(check: Callable[[Engine, Path], None], tmp_path: Path) -> None:
    check(ClippedGradients, tmp_path)


@pytest.mark.parametrize(
    ("mistake", "check"),
    list(zip([NoiseInEveryBatch, ClipPerLayer, RealisedBatch, Shuffled], CHECKS, strict=True)),
    ids=lambda value: value.__name__,
)
def test_a_mistake_is_noticed(mistake: Engine, check: Callable[[Engine, Path], None], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check(mistake, tmp_path)
