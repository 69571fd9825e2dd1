"""DPAF: reference values of its noise, what its proof rests on, and faults that must be noticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from contract.cases import QUICKEST, TINY, make_images, tiny_plan
from contract.sensitivity import nulled, run_world, violations
from contract.test_sensitivity import collection, facts_for
from torch import Tensor

import veilset
from veilset.data.spec import ImageSet, ImageSpec
from veilset.engines import aggregated_batches, checkpointing, clipped_gradients
from veilset.engines.aggregated_adversary import Adversary
from veilset.engines.aggregated_batches import RepairedBatches, private_shares
from veilset.engines.aggregation_settings import AggregationSettings
from veilset.engines.clipped_gradients import ClippedGradients
from veilset.engines.per_sample_gradients import PerSampleGradients
from veilset.engines.published_accounting import wbk_composed_epsilon
from veilset.errors import ArtifactError, BudgetExceeded, ConfigError, PrivacyError, RunError
from veilset.methods import dpaf
from veilset.methods.base import make_config
from veilset.methods.dpaf import Dpaf, DpafConfig
from veilset.methods.plan import Plan
from veilset.nets.aggregating_critics import AggregatingCritic
from veilset.privacy import bounds
from veilset.privacy.accounting import renyi_epsilon
from veilset.privacy.bounds import Adjacency, Bounded
from veilset.privacy.events import Composed, Gaussian, PoissonSampled, Repeated, steps
from veilset.privacy.noise import NoiseSource, SeededNoise
from veilset.privacy.release import Door
from veilset.randomness import named_generator
from veilset.report.content import headlines
from veilset.run import execute, resume
from veilset.sharing import export, verify

ALL = {"expected_batch": 20}
"""A sample of everybody: priced at once, where the price is not what a test is about. Published ones need a half."""
MNIST = ImageSpec(height=28, width=28, channels=1, class_names=tuple("0123456789"))


def mnist_plan(**options: Any) -> Plan:
    return veilset.plan(MNIST, method="dpaf", declared_size=60_000, **options)


def config_of(**options: Any) -> DpafConfig:
    config = make_config(Dpaf(), {**TINY["dpaf"], **QUICKEST["dpaf"], **options})
    assert isinstance(config, DpafConfig)
    return config


# --- what it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("noise", "epsilon"), [(0.81, 10.0), (3.73, 1.0)])
def test_renyi_accounting_gives_the_epsilons_that_are_known_for_a_common_noise(noise: float, epsilon: float) -> None:
    """Batches of 256 of 60,000, 5 and 20 epochs, 8 batches to a gradient: computed in another program, two digits."""
    rate = 256 / 60_000
    counts = ((1171, rate), (4687, rate), (585, 8 * rate))
    event = Composed(tuple(Repeated(count, PoissonSampled(q, Gaussian(noise))) for count, q in counts))
    assert renyi_epsilon(event, 1e-5, Adjacency.ADD_REMOVE) == pytest.approx(epsilon, rel=5e-3)


def test_theorem_6_adds_up_stages_and_has_the_known_value_for_one() -> None:
    """9.993 is what the code of GS-WGAN gives for its only stage (autodp)."""
    whole = wbk_composed_epsilon([(1.07, 1e-3, 640_000)], 1e-5)
    assert whole == pytest.approx(9.993, abs=1e-3)
    assert wbk_composed_epsilon([(1.07, 1e-3, 600_000), (1.07, 1e-3, 40_000)], 1e-5) == pytest.approx(whole)


def test_both_releases_of_a_batch_compose_before_the_sample_amplifies_them() -> None:
    config = DpafConfig()
    (classifier, batch), noises = (steps(dpaf_events(config)), config.noises(2.0))
    rate = 256 / 60_000
    assert classifier == PoissonSampled(rate, Gaussian(noises[0]))
    assert batch == PoissonSampled(rate, Composed((Gaussian(noises[1]), Gaussian(noises[2]))))
    assert list(steps(dpaf_events(config)).values()) == [config.classifier_steps, config.steps]


def dpaf_events(config: DpafConfig) -> Any:
    facts = facts_for(make_images(height=28, width=28), Adjacency.ADD_REMOVE)
    return Dpaf().events(config, type(facts)(**{**vars(facts), "declared_size": 60_000}), 2.0)


# --- what may be said ------------------------------------------------------------------------------------------------


def test_as_published_an_epsilon_is_printed_as_refuted_and_none_as_proven(tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, "dpaf", accounting="published", epsilon=3.0)
    assert plan.epsilon_planned is None
    model = execute(images, plan, tmp_path / "run", allow_published=True)
    assert "eps_proven=none" in model.claim.summary
    assert "eps_as_published=3 (status: refuted)" in model.claim.summary
    assert model.claim.stamps[0].startswith("NOT PRIVATE: no epsilon is proven for DPAF as published")
    assert "NOT PRIVATE" in verify(tmp_path / "run")["verdict"]
    with pytest.raises(ArtifactError, match="NOT PRIVATE"):
        export(tmp_path / "run", tmp_path / "out")


def test_on_private_images_the_published_construction_is_refused_with_the_words_that_nothing_is_proven(
    tmp_path: Path,
) -> None:
    plan = tiny_plan(make_images(), "dpaf", accounting="published")
    with pytest.raises(PrivacyError, match="proven epsilon of that run would be none"):
        execute(make_images(), plan, tmp_path / "run")


def test_the_published_construction_cannot_be_had_with_a_proven_epsilon() -> None:
    with pytest.raises(ConfigError, match="no epsilon is proven for DPAF as published"):
        tiny_plan(make_images(), "dpaf", construction="published")
    plan = tiny_plan(make_images(), "dpaf", construction="published", accounting="none")
    assert plan.config["construction"] == "published"


def test_a_release_that_claims_an_epsilon_for_the_published_construction_is_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tiny_plan(make_images(), "dpaf", accounting="published")
    with monkeypatch.context() as patch:
        patch.setattr(Plan, "not_private", None)
        model = execute(make_images(), plan, tmp_path / "run", allow_published=True)
    assert model.claim.epsilon is not None
    with pytest.raises(ArtifactError, match="no epsilon for settings without a proof"):
        verify(tmp_path / "run")


def test_the_report_says_that_nothing_is_proven_and_what_was_published(tmp_path: Path) -> None:
    plan = tiny_plan(make_images(), "dpaf", accounting="published", epsilon=3.0)
    claim = execute(make_images(), plan, tmp_path / "run", allow_published=True).claim
    proven, published = headlines(claim)
    assert (proven.label, proven.text) == ("NOT PRIVATE", "no epsilon can be claimed")
    assert "no epsilon is proven for DPAF as published" in proven.note
    assert published.label == "Published, refuted"
    assert "theorem 1 is false" in published.note


# --- what its proof rests on, and faults -----------------------------------------------------------------------------


def test_the_forecast_of_many_classes_is_worse_than_that_of_few() -> None:
    """Each class has its part of a sample, and as much noise as all together."""

    def signal(classes: int, **options: Any) -> float:
        facts = facts_for(make_images((2,) * classes, height=28, width=28), Adjacency.ADD_REMOVE)
        return Dpaf().forecast(DpafConfig(expected_batch=20, **options), facts, 1.0).signal_to_noise

    assert signal(2) == pytest.approx(5 * signal(10))
    assert signal(2, construction="published") == pytest.approx(signal(10, construction="published"))


def test_a_bound_is_never_rounded_down_for_people() -> None:
    config, facts = DpafConfig(expected_batch=20), facts_for(make_images(height=28, width=28), Adjacency.ADD_REMOVE)
    said = Dpaf().forecast(config, facts, 1.0).released.rpartition("at most ")[2]
    assert config.sensitivity(facts) <= float(said) < 1.001 * config.sensitivity(facts)


def found_by_search(config: DpafConfig, adjacency: Adjacency = Adjacency.ADD_REMOVE) -> list[str]:
    """What the sensitivity search of the contract suite finds, on a few of its neighbours."""
    facts = facts_for(collection(1), adjacency)
    pairs = (nulled(collection(size), place, relabelled=True) for size in (16, 40) for place in (0, size // 2))
    return violations(Dpaf(), config, facts, pairs)


def releases_named(found: list[str]) -> set[int]:
    return {int(what.split("release ")[1].split(":")[0]) for what in found}


LONG: dict[str, Any] = {"classifier_steps": 14, "classifier_rate": 3.0, "hidden_rate": 3.0, "steps": 2}
"""Hidden layers move far enough for a few neighbours to show it."""


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_search_passes_the_repaired_construction_and_fails_the_published_one(adjacency: Adjacency) -> None:
    assert found_by_search(config_of(**LONG), adjacency) == []
    assert found_by_search(config_of(**LONG, construction="published"), adjacency) != []


def test_the_search_finds_layers_that_were_trained_on_the_data_from_the_second_release_on() -> None:
    """Theorem 1: the first gradient of conv1 is sound, later ones pass through layers that one record has moved."""
    found = releases_named(found_by_search(config_of(**LONG, construction="published")))
    assert found & set(range(1, LONG["classifier_steps"])), "those of the classifier"
    assert 0 not in found


def test_the_search_finds_a_slope_at_the_clean_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """The repaired construction with the one thing undone that makes its second release private."""
    plain = RepairedBatches.__call__

    def at_clean_mean(self: RepairedBatches, step: int, slope_at: Any) -> Any:
        everybody = torch.arange(len(self.private._labels))
        rows = aggregated_batches.feature_rows(self.critic)
        total = self.features.clipped_sum(rows, everybody, self.critic.num_groups)
        assert total.grid_total is not None
        sums = total.grid_total[:, :-1] * total.grid_step
        clean = (sums / self.private.terms.expected_batch).float().reshape(-1, *self.critic.feature_shape)
        return plain(self, step, lambda _: slope_at(clean))

    monkeypatch.setattr(RepairedBatches, "__call__", at_clean_mean)
    assert found_by_search(config_of()) != []


def test_the_search_finds_features_without_their_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def unclipped(rows: Tensor, bound: float, **options: Any) -> Bounded:
        longer = bounds.clip_rows(rows, 1e6 * bound, **options)
        return Bounded((longer.grid_rows * 10**6).to(torch.int64), bound, False, bounds._MADE_HERE)

    monkeypatch.setattr(clipped_gradients, "clip_rows", unclipped)
    assert any("moved by" in what for what in found_by_search(config_of()))


def test_the_search_finds_gradients_that_depend_on_the_classes_of_other_records(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How many images of a class came must not be used: only noisy counts are released."""

    def turned_by_mates(critic: AggregatingCritic, slopes: Tensor) -> PerSampleGradients:
        def losses(_: Any, inputs: Tensor, labels: Tensor) -> Tensor:
            mates = (labels[:, None] == labels).sum(dim=1)
            along = slopes.flatten(1)[critic.groups_of(labels)] * (-1) ** mates[:, None]
            return (critic.features(inputs, labels).flatten(1) * along).sum(dim=1)

        return PerSampleGradients(critic, critic.before_average(), losses, layerwise=True)

    monkeypatch.setattr(aggregated_batches, "aligned_gradients", turned_by_mates)
    assert any("moved by" in what for what in found_by_search(config_of()))


def test_the_bound_is_enforced_whatever_the_norm_layer_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("veilset.nets.aggregating_critics.normalised", lambda maps: 1e3 * maps)
    assert found_by_search(config_of()) == []


def test_a_mean_over_the_batch_that_came_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shown the same sums and counts, the critic must be shown the same means, however many records there are."""
    assert torch.equal(*means_of_two_worlds())
    plain = ClippedGradients.release_by_class

    def realised(self: ClippedGradients, rows_of: Any, draw: Any, *others: Any) -> Tensor:
        sums = plain(self, rows_of, draw, *others)
        return torch.cat([sums[:, :-1] / max(len(self.records(draw)), 1), sums[:, -1:]], dim=1)

    monkeypatch.setattr(ClippedGradients, "release_by_class", realised)
    assert not torch.equal(*means_of_two_worlds())


def means_of_two_worlds() -> tuple[Tensor, Tensor]:
    """What the critic is shown first, with and without a record, of one transcript."""
    config, means = config_of(expected_batch=100, classifier_steps=1, steps=2), []
    plain = RepairedBatches.__call__

    def noting(self: RepairedBatches, step: int, slope_at: Any) -> Any:
        found, gradients = plain(self, step, slope_at)
        means.append(found.values)
        return found, gradients

    images = collection(3)
    facts = facts_for(images, Adjacency.ADD_REMOVE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RepairedBatches, "__call__", noting)
        first = run_world(Dpaf(), config, facts, images)
        run_world(Dpaf(), config, facts, images.subset(torch.arange(2)), transcript=first.outputs)
    return means[0], means[2]


def test_one_step_more_than_planned_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tiny_plan(make_images(), "dpaf", **ALL)
    monkeypatch.setattr(checkpointing, "last_step", lambda *_, planned, **__: planned + 1)
    with pytest.raises(BudgetExceeded):
        execute(make_images(), plan, tmp_path / "run")
    assert not (tmp_path / "run" / "release").exists()


def test_two_releases_on_a_batch_of_which_one_is_priced_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = AggregationSettings.charges

    def without_gradient(self: AggregationSettings, facts: Any, noise_multiplier: float) -> Any:
        classifier, (_, count) = plain(self, facts, noise_multiplier)
        return [classifier, (self.terms(facts).event(noise_multiplier, facts.adjacency), count)]

    monkeypatch.setattr(AggregationSettings, "charges", without_gradient)
    with pytest.raises(BudgetExceeded, match="Nothing was released"):
        execute(make_images(), tiny_plan(make_images(), "dpaf", **ALL), tmp_path / "run")
    assert not (tmp_path / "run" / "release").exists()


def world(images: Any, *, transcript: Any = None, **options: Any) -> tuple[Any, dict[str, Tensor]]:
    """A fit without noise that is shown a given transcript: its door, and the generator it made."""
    made = []

    class Keeping(Dpaf):
        def fit(self, *arguments: Any) -> Any:
            made.append(super().fit(*arguments))

    facts = facts_for(images, Adjacency.ADD_REMOVE)
    door = run_world(Keeping(), config_of(**options), facts, images, transcript=transcript)
    return door, made[0].state_dict()


@pytest.mark.parametrize("options", [{}, {"topagg": 7}, {"asymmetry": 1, "critic_steps": 2}], ids=str)
def test_given_the_same_releases_the_generator_is_the_same_whatever_the_private_images_are(
    options: dict[str, Any],
) -> None:
    """Everything but the releases is post-processing: no label, loss or count of the data reaches the generator."""
    door, made = world(make_images((20, 9, 3)), **options)
    other, same = world(make_images((2, 9, 30), seed=1), transcript=door.outputs, **options)
    assert all(torch.equal(made[name], same[name]) for name in made)
    assert any(not torch.equal(a.values, b.values) for a, b in zip(door.captures, other.captures, strict=True))


# --- what it does ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accounting", ["none", "published"])
@pytest.mark.parametrize(
    "options",
    [{"layout": "C1-C1-C1"}, {"activation": "tanh"}, {"kept_share": 1.0}, {"topagg": 20}, {"asymmetry": 1},
     {"critic_steps": 4}],
    ids=str,
)  # fmt: skip
def test_every_ablation_of_the_paper_can_be_turned_on(accounting: str, options: dict[str, Any], tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, "dpaf", accounting=accounting, epsilon=None if accounting == "none" else 5.0, **options)
    model = execute(images, plan, tmp_path / "run", allow_published=True)
    assert bool(model.sample(4).pixels.any())


@pytest.fixture
def public(tmp_path: Path) -> str:
    """Colour images of another size and with more classes than the private ones."""
    draws = np.random.default_rng(0)
    pixels = draws.integers(0, 256, (30, 12, 12, 3), dtype=np.uint8)
    np.savez(tmp_path / "public.npz", x=pixels, y=np.arange(30) % 5)
    return str(tmp_path / "public.npz")


def test_critic_and_generator_can_start_from_public_images_at_no_cost(public: str, tmp_path: Path) -> None:
    images = make_images()
    for transfer in ("critic", "both"):
        options = {**ALL, "transfer": transfer, "public_images": public, "public_steps": 3}
        plan = tiny_plan(images, "dpaf", **options)
        model = execute(images, plan, tmp_path / transfer)
        assert model.privacy.record.charged == steps(plan.planned) == steps(tiny_plan(images, "dpaf", **ALL).planned)
        assert {dpaf.PUBLIC, dpaf.APART} <= set(model.claim.assumptions)
        verify(tmp_path / transfer)


@pytest.mark.parametrize(("transfer", "moved"), [("none", False), ("critic", False), ("both", True)])
def test_the_generator_is_kept_after_public_images_only_where_it_is_to_be(
    transfer: str, moved: bool, public: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[list[Tensor]] = []
    plain = dpaf.compete

    def noting(config: Any, adversary: Any, *others: Any, **options: Any) -> None:
        if options["name"] == "adversary":
            begun.append([value.detach().clone() for value in adversary.generator.parameters()])
            begun.append([value.detach().clone() for value in adversary.critic.before_average()])
        plain(config, adversary, *others, **options)

    monkeypatch.setattr(dpaf, "compete", noting)
    world(make_images())
    options = {} if transfer == "none" else {"public_images": public, "public_steps": 2}
    world(make_images(), transfer=transfer, **options)
    assert any(not torch.equal(a, b) for a, b in zip(begun[0], begun[2], strict=True)) == moved
    critic_moved = any(not torch.equal(a, b) for a, b in zip(begun[1], begun[3], strict=True))
    assert critic_moved == (transfer != "none")


@pytest.mark.parametrize("options", [{"transfer": "critic"}, {"public_images": "mnist"}], ids=str)
def test_a_transfer_without_public_images_or_the_other_way_round_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="Give both"):
        config_of(**options)


def test_the_critic_takes_its_first_convolutions_from_the_classifier_and_keeps_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[str, list[Tensor]] = {}

    def noting(name: str, plain: Any) -> Any:
        def wrapped(config: Any, *parts: Any, **options: Any) -> None:
            plain(config, *parts, **options)
            network = parts[0] if name == "pretrain" else parts[0].critic
            seen[name] = [value.detach().clone() for value in network.conv1.parameters()]

        return wrapped

    for name in ("pretrain", "compete"):
        monkeypatch.setattr(dpaf, name, noting(name, getattr(dpaf, name)))
    world(make_images((20, 9, 3)))
    assert all(torch.equal(a, b) for a, b in zip(seen["pretrain"], seen["compete"], strict=True))


# --- what its parts are told -----------------------------------------------------------------------------------------


def parts_of_a_fit(**options: Any) -> tuple[Any, DpafConfig, Adversary, Any]:
    """The door of a fit, and what its last game was played with."""
    seen: list[Any] = []
    plain = dpaf.compete

    def noting(config: DpafConfig, adversary: Adversary, batches: Any, *others: Any, **named: Any) -> None:
        seen[:] = [config, adversary, batches]
        plain(config, adversary, batches, *others, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpaf, "compete", noting)
        door, _ = world(make_images((20, 9, 3)), **options)
    return door, *seen


@pytest.mark.parametrize("construction", ["repaired", "published"])
def test_the_critic_is_told_the_noise_that_the_door_adds(construction: str) -> None:
    """Means of generated images get as much, or it would learn to see noise; that of a class by its own count."""
    door, config, adversary, batches = parts_of_a_fit(construction=construction)
    added = config.noises(1.0)[1] * door.captures[config.classifier_steps].allowed
    assert batches.noise_std == pytest.approx(added, rel=1e-6)
    if config.published:
        assert adversary.noise_std.tolist() == pytest.approx([added / config.expected_batch], rel=1e-6)
    else:
        counts = batches.counts.after(torch.zeros(3), config.steps)
        assert adversary.noise_std.tolist() == pytest.approx((added / counts).tolist(), rel=1e-5)
        assert len(set(adversary.noise_std.tolist())) == 3


def test_gradients_of_generated_images_are_taken_at_noisy_means_where_those_of_real_ones_are() -> None:
    assert parts_of_a_fit()[2].noisy_slopes
    assert not parts_of_a_fit(construction="published")[2].noisy_slopes


def test_labels_of_generated_images_are_even_and_as_published_those_of_the_private_ones() -> None:
    assert parts_of_a_fit()[2].class_shares.tolist() == [1, 1, 1]
    assert parts_of_a_fit(construction="published")[2].class_shares.tolist() == [20, 9, 3]


def test_the_owner_sees_how_the_critic_scores_both_kinds_of_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dpaf, "HISTORY_EVERY", 2)
    execute(make_images(), tiny_plan(make_images(), "dpaf", **ALL), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "vault" / "history.jsonl").read_text().splitlines()]
    assert {line["name"] for line in lines} == {f"critic's score of {of} means" for of in ("real", "generated")}
    assert {line["step"] for line in lines} == {2, 4}


def test_the_generator_is_taught_once_for_so_many_steps_of_the_critic(monkeypatch: pytest.MonkeyPatch) -> None:
    taught: list[int] = []
    monkeypatch.setattr(Adversary, "teach", lambda self: taught.append(1))
    world(make_images((20, 9, 3)), steps=4, critic_steps=2)
    assert len(taught) == 2


def test_layers_that_learn_without_a_clip_have_a_rate_of_their_own_as_published() -> None:
    for construction, wanted in (("repaired", [0.5, 0.5]), ("published", [0.5, 0.01])):
        config = config_of(construction=construction, classifier_rate=0.5, hidden_rate=0.01)
        classifier = config.classifier(MNIST).drawn(named_generator(0, "classifier"))
        groups = config.rates(classifier)
        assert [group["lr"] for group in groups] == wanted
        assert [len(group["params"]) for group in groups] == [2, len(list(classifier.parameters())) - 2]


def test_noise_lowers_the_rates_that_a_fit_learns_at(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"classifier_rate": 1e3, "body_rate": 1e3}
    used: list[float] = []
    plain = dpaf.pretrain

    def noting(config: DpafConfig, *others: Any) -> None:
        used.append(config.classifier_rate)
        plain(config, *others)

    monkeypatch.setattr(dpaf, "pretrain", noting)
    _, config, adversary, _ = parts_of_a_fit(**asked)
    assert used[0] < 1
    assert config.body_rate == adversary.body_rate < 1


# --- after a crash ---------------------------------------------------------------------------------------------------


def test_a_fit_that_crashed_does_not_buy_its_releases_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpaf, "steps_between", lambda *_: 2)
    images, run = make_images(), tmp_path / "run"
    plan = tiny_plan(images, "dpaf", **ALL)

    def dies(message: str, done: int, total: int) -> None:
        if (message, done) == (dpaf.DOING, 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(images, plan, run, progress=dies, noise=SeededNoise(0))
    done: list[tuple[int, int]] = []
    model = resume(images, run, progress=lambda message, *at: done.append(at) if dpaf.DOING in message else None)
    # Two of the three batches before the crash are in the checkpoint; the third is lost, and so the last step is.
    assert done[0] == (2, 3)
    assert done[-1] == (3, 3)
    assert model.privacy.record.charged == steps(plan.planned)


def test_a_fit_that_was_stopped_after_a_checkpoint_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every draw but the secret ones goes on where it was; without noise, and with everybody in every sample."""
    monkeypatch.setattr(dpaf, "steps_between", lambda *_: 1)
    images = make_images()
    everybody = {"expected_batch": 20, "accounting": "none", "topagg": 7, "kept_share": 1.0}
    plan = tiny_plan(images, "dpaf", **everybody)

    def dies(message: str, done: int, total: int) -> None:
        if (message, done) == (dpaf.DOING, 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(images, plan, tmp_path / "stopped", progress=dies, allow_published=True)
    stopped = resume(images, tmp_path / "stopped", allow_published=True)
    whole = execute(images, plan, tmp_path / "whole", allow_published=True)
    assert torch.equal(stopped.sample(6, seed=0).pixels, whole.sample(6, seed=0).pixels)


def test_as_published_a_collection_without_records_of_any_class_has_even_labels(tmp_path: Path) -> None:
    images = make_images()
    nobody = ImageSet(
        spec=images.spec, pixels=images.pixels, labels=images.labels, valid=torch.zeros(len(images), dtype=torch.bool)
    )
    terms = config_of(construction="published").terms(facts_for(images, Adjacency.ADD_REMOVE))
    private = ClippedGradients(nobody, terms, device=torch.device("cpu"))
    assert private_shares(private).tolist() == [1.0] * images.spec.num_classes


def test_a_published_fit_that_crashed_ends_where_either_of_its_releases_is_used_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dpaf, "steps_between", lambda *_: 3)
    images, run = make_images(), tmp_path / "run"
    plan = tiny_plan(images, "dpaf", accounting="published", expected_batch=10, steps=8)

    def dies(message: str, done: int, total: int) -> None:
        if (message, done) == (dpaf.DOING, 4):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(images, plan, run, progress=dies, allow_published=True)
    # Kept: 3 batches and 1 gradient. Lost: a batch, and the gradient after it; so one gradient, of two batches, less.
    done: list[int] = []
    model = resume(
        images, run, allow_published=True,
        progress=lambda message, at, _: done.append(at) if message.startswith(dpaf.DOING) else None,
    )  # fmt: skip
    assert (done[0], done[-1]) == (3, 6)
    assert model.privacy.record.charged <= steps(plan.planned)


def test_a_published_fit_that_crashed_goes_on_with_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, sources, plain = make_images(), [], Door._noisy

    def watched(self: Door, *arguments: Any) -> Tensor:
        sources.append(type(self.noise))
        if len(sources) == 4:
            raise KeyboardInterrupt
        return plain(self, *arguments)

    monkeypatch.setattr(Door, "_noisy", watched)
    with pytest.raises(KeyboardInterrupt):
        execute(images, tiny_plan(images, "dpaf", accounting="published"), tmp_path / "run", allow_published=True)
    resume(images, tmp_path / "run", allow_published=True)
    assert set(sources) == {NoiseSource}
    assert len(sources) > 4


def test_a_fit_that_diverges_says_so_and_what_to_change(tmp_path: Path) -> None:
    images = make_images()
    plan = tiny_plan(images, "dpaf", head_rate=1e6, body_rate=1e6, steps=40)
    with pytest.raises(RunError, match=r"diverged\n.*stays charged.*--head-rate"):
        execute(images, plan, tmp_path / "run")


def test_the_release_holds_the_generator_alone(tmp_path: Path) -> None:
    images = make_images()
    model = execute(images, tiny_plan(images, "dpaf", **ALL), tmp_path / "run")
    names = set(model._module.state_dict())
    assert not any("conv1" in name or "dense" in name for name in names)
    config = json.loads((model.folder / "config.json").read_text())["config"]
    assert config["construction"] == "repaired"
