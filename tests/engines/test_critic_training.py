"""Critics trained as a stack end as they would one by one, and no shard can reach another's critic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from bar_images import bars
from devices import NEEDS_CUDA
from plain_critics import PlainCritic, spec_of
from small_stacks import BATCH, CONV, COUNT, DENSE, SIZES, SPEC, pool, shards_of, shared_batch, stack_of
from torch import Tensor

import veilset.engines.critic_training as engine
from veilset.data.spec import ImageSet, to_bytes
from veilset.engines import critic_memory
from veilset.engines.critic_memory import bytes_kept, bytes_of_one
from veilset.engines.critic_training import CriticStack, PooledFakes, critic_losses
from veilset.engines.shard_batches import ImageShards, ShardBatches
from veilset.errors import ConfigError
from veilset.nets.critics import Critics, dense_critics
from veilset.randomness import named_generator

STEPS = 4
both = pytest.mark.parametrize("net", [CONV, DENSE], ids=["conv", "dense"])


def trained(**options: Any) -> CriticStack:
    stack = stack_of(**options)
    stack.train(pool(), STEPS)
    return stack


def same(first: CriticStack, second: CriticStack, which: list[int]) -> list[int]:
    """Of the critics `which`, those whose weights, moments and vectors are the same to the last bit."""
    names = first.state.keys()
    return [k for k in which if all(torch.equal(first.state[n][k], second.state[n][k]) for n in names)]


def close(found: Tensor, expected: Tensor, within: float = 1e-5) -> bool:
    return bool((found - expected).norm() <= within * expected.norm())


def steps_of_one(stack: CriticStack, number: int, critic: PlainCritic) -> None:
    """The same training by torch's own Adam, with the batches this shard draws."""
    optimiser = torch.optim.Adam(critic.parameters(), lr=1e-4, betas=(0.5, 0.9))
    for step in range(STEPS):
        drawn = stack.shards.draw(torch.tensor([number]), torch.tensor([step]), BATCH, 2)
        fake = pool()(drawn.labels, drawn.chances[..., 1:])
        critic.iterate()
        optimiser.zero_grad()
        critic.loss(drawn.images[0], fake[0], drawn.labels[0], drawn.chances[0, :, 0].float()).backward()
        optimiser.step()


@both
def test_weights_after_some_steps_are_those_of_critics_trained_one_by_one(net: Critics) -> None:
    fresh, stack = stack_of(net), trained(net=net)
    images, labels = shared_batch()
    gradients = stack.image_gradients(images, labels)
    for number in (0, 2, 3, 4):
        critic = PlainCritic(net, fresh.state["weights"], fresh.state["vectors"], number)
        start = critic.row()
        steps_of_one(stack, number, critic)
        moved = critic.row() - start
        assert float(moved.abs().max()) > 2e-4
        assert close(stack.state["weights"][number], critic.row())
        assert close(stack.state["weights"][number] - start, moved, within=2e-3)
        images.requires_grad_()
        (expected,) = torch.autograd.grad(-critic(images, labels).mean(), images)
        assert close(gradients[number], expected)


@both
def test_losses_and_their_gradients_are_those_of_critics_one_by_one(net: Critics) -> None:
    stack = stack_of(net)
    drawn = stack.shards.draw(torch.arange(COUNT), torch.zeros(COUNT, dtype=torch.int64), BATCH, 2)
    fake, mix = pool()(drawn.labels, drawn.chances[..., 1:]), drawn.chances[..., 0].float()
    weights = stack.state["weights"].requires_grad_()
    vectors = net.iterated(weights, stack.state["vectors"])
    ready = net.ready(weights, vectors, torch.float32)
    losses = critic_losses(net, ready, drawn.images, fake, drawn.labels, mix)
    (gradients,) = torch.autograd.grad(losses.sum(), weights)
    for number in range(COUNT):
        critic = PlainCritic(net, weights, stack.state["vectors"], number)
        critic.iterate()
        loss = critic.loss(drawn.images[number], fake[number], drawn.labels[number], mix[number])
        loss.backward()
        assert losses[number].item() == pytest.approx(loss.item(), rel=1e-5)
        parts = [value.grad.flatten() for value in critic.parameters() if value.grad is not None]
        assert close(gradients[number], torch.cat(parts))


@both
@pytest.mark.parametrize("changed", [0, 1, 3], ids=["to many", "its first one", "to one"])
@pytest.mark.parametrize("workspace", [None, 1], ids=["at once", "in pieces"])
def test_another_record_in_one_shard_changes_no_other_critic_by_a_bit(
    net: Critics, changed: int, workspace: int | None
) -> None:
    grown = tuple(size + (number == changed) for number, size in enumerate(SIZES))
    before = trained(net=net, workspace=workspace)
    after = trained(net=net, sizes=grown, workspace=workspace)
    assert same(before, after, list(range(COUNT))) == [number for number in range(COUNT) if number != changed]
    images, labels = shared_batch()
    moved = (before.image_gradients(images, labels) != after.image_gradients(images, labels)).flatten(1).any(1)
    assert moved.nonzero().flatten().tolist() == [changed]


def one_stream_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(self: ImageShards, which: Tensor, steps: Tensor, batch: int, numbers: int) -> Any:
        stream = named_generator(int(steps[0]), "all")
        orders = [torch.randperm(int(size), generator=stream) for size in self.sizes]  # a longer shard draws more
        picked = [
            order[torch.arange(batch) % max(1, len(order))] if len(order) else order.new_zeros(batch)
            for order in orders
        ]
        rows = (torch.stack(picked) + self.starts[:, None])[which]
        chances = torch.rand(self.count, batch, numbers, generator=stream)[which]
        return ShardBatches(self.pixels[rows] / 255.0, self.labels[rows], chances)

    monkeypatch.setattr(ImageShards, "draw", draw)


def one_norm_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = engine.adam
    monkeypatch.setattr(
        engine, "adam", lambda weights, gradients, *rest: plain(weights, gradients / gradients.norm(), *rest)
    )


def real_images_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = engine.critic_losses

    def losses(net: Critics, ready: Any, real: Tensor, *rest: Tensor) -> Tensor:
        return plain(net, ready, real - real.mean(), *rest)

    monkeypatch.setattr(engine, "critic_losses", losses)


@pytest.mark.parametrize("sabotage", [one_stream_for_all, one_norm_for_all, real_images_of_all])
def test_the_check_of_isolation_notices_what_ties_critics_to_each_other(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    assert same(trained(), trained(sizes=(6, *SIZES[1:])), [2, 3, 4]) == []


@both
@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_pieces_give_what_all_at_once_gives(net: Critics, at_once: int) -> None:
    whole, pieces = stack_of(net), stack_of(net)
    pieces.at_once = at_once
    for stack in (whole, pieces):
        stack.train(pool(), STEPS)
    for name, value in whole.state.items():
        assert close(pieces.state[name].double(), value.double())
    assert close(pieces.image_gradients(*shared_batch()), whole.image_gradients(*shared_batch()))


def test_a_small_workspace_means_few_critics_at_once() -> None:
    assert stack_of().at_once == COUNT
    assert stack_of(workspace=1).at_once == 1
    assert 1 < stack_of(workspace=bytes_of_one(CONV, BATCH, torch.float32) * 3).at_once < COUNT


@pytest.mark.parametrize("at_once", [1, 2])
def test_a_look_keeps_no_more_gradients_in_images_than_a_workspace_holds(at_once: int) -> None:
    images, labels = shared_batch()
    kept: list[int] = []

    def brightness(gradients: Tensor) -> Tensor:
        kept.append(len(gradients))
        return gradients.sum((2, 3, 4))

    whole, pieces = trained(), trained()
    pieces.workspace = engine.COPIES_OF_A_LOOK * at_once * images.numel() * images.element_size()
    found = pieces.image_gradients(images, labels, of=brightness)
    assert close(found, whole.image_gradients(images, labels).sum((2, 3, 4)))
    assert max(kept) == at_once < COUNT
    kept.clear()
    whole.at_once = at_once  # nor at more critics than are trained at once: their activations take room, too
    assert close(whole.image_gradients(images, labels, of=brightness), found)
    assert max(kept) == at_once


def test_the_critic_of_an_empty_shard_is_never_trained_and_asks_for_nothing() -> None:
    stack = trained()
    fresh = stack_of()
    assert torch.equal(stack.state["weights"][1], fresh.state["weights"][1])
    gradients = stack.image_gradients(*shared_batch())
    assert not gradients[1].any()
    assert gradients[[0, 2, 3, 4]].flatten(1).any(1).all()


def test_a_collection_without_images_trains_nothing() -> None:
    stack = trained(sizes=(0, 0))
    assert torch.equal(stack.state["weights"], stack_of(sizes=(0, 0)).state["weights"])
    assert not stack.image_gradients(*shared_batch()).any()


def test_a_resumed_training_ends_as_an_uninterrupted_one() -> None:
    first = stack_of()
    first.train(pool(), 1)
    kept = first.state_dict()
    first.train(pool(), 1)  # must not change what was kept
    second = CriticStack(CONV, shards_of(), batch=BATCH, draws=named_generator(1, "other"))
    second.load_state_dict(kept)
    second.train(pool(), STEPS - 1)
    assert same(second, trained(), list(range(COUNT))) == list(range(COUNT))


@pytest.mark.parametrize("lost", ["weights", "steps"])
def test_a_state_of_other_critics_is_refused(lost: str) -> None:
    stack = stack_of()
    state = stack.state_dict()
    for wrong in ({**state, lost: state[lost][:1]}, {name: value for name, value in state.items() if name != lost}):
        with pytest.raises(ConfigError, match="the state of critics"):
            stack.load_state_dict(wrong)


def test_with_a_new_adam_critics_keep_what_they_have_learned_and_nothing_else() -> None:
    stack = trained()
    stack.renew_adam()
    assert torch.equal(stack.state["weights"], trained().state["weights"])
    assert torch.equal(stack.state["vectors"], trained().state["vectors"])
    assert not any(stack.state[name].any() for name in ("first moments", "second moments", "steps"))


def test_redrawn_critics_are_new_and_the_others_as_they_were() -> None:
    stack = trained()
    stack.redraw(named_generator(0, "new critics"), torch.tensor([3, 0]))
    assert same(stack, trained(), list(range(COUNT))) == [1, 2, 4]
    weights, vectors = CONV.draw(2, named_generator(0, "new critics"))
    assert torch.equal(stack.state["weights"][[3, 0]], weights)
    assert torch.equal(stack.state["vectors"][[3, 0]], vectors)
    assert not any(stack.state[name][[3, 0]].any() for name in ("first moments", "second moments", "steps"))


def test_critics_may_learn_by_another_loss_and_at_another_rate() -> None:
    def larger_scores_of_real_images(
        net: Critics, ready: Any, real: Tensor, fake: Tensor, labels: Tensor, mix: Tensor
    ) -> Tensor:
        return -net.scores(ready, real, labels).mean(1)

    moved = []
    for rate in (1e-4, 1e-3):
        stack = CriticStack(CONV, shards_of(), batch=BATCH, draws=named_generator(0, "critics"), rate=rate)
        stack.train(pool(), 1, losses=larger_scores_of_real_images)
        moved.append(stack.state["weights"] - stack_of().state["weights"])
    assert close(moved[1], 10 * moved[0], within=1e-3)
    plain = stack_of()
    plain.train(pool(), 1)
    assert not close(moved[0], plain.state["weights"] - stack_of().state["weights"], within=0.1)


def test_critics_on_a_small_device_are_trained_a_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = COUNT * bytes_kept(CONV) + 5 * bytes_of_one(CONV, BATCH, torch.float32)
    monkeypatch.setattr(critic_memory, "memory_of", lambda device: memory)
    assert stack_of().at_once == 2
    assert close(trained().state["weights"], trained(workspace=1 << 28).state["weights"], within=1e-6)


def test_one_critic_can_be_trained_and_asked_alone() -> None:
    stack = stack_of()
    one = torch.tensor([2])
    stack.train(pool(), STEPS, one)
    assert same(stack, stack_of(), list(range(COUNT))) == [0, 1, 3, 4]
    assert stack.state["steps"].tolist() == [0, 0, STEPS, 0, 0]
    assert close(stack.state["weights"][2], trained().state["weights"][2], within=1e-6)
    images, labels = shared_batch()
    assert close(stack.image_gradients(images, labels, one)[0], stack.image_gradients(images, labels)[2])


def test_critics_may_be_asked_in_any_order() -> None:
    stack = trained()
    which = torch.tensor([4, 0, 2])
    stack.at_once = 2
    assert close(
        stack.image_gradients(*shared_batch(), which), stack.image_gradients(*shared_batch())[which], within=1e-6
    )
    assert stack.image_gradients(*shared_batch(), which[:0]).shape == (0, 7, *SPEC.shape)


def test_asking_changes_nothing() -> None:
    stack = trained()
    before = stack.state_dict()
    stack.image_gradients(*shared_batch())
    assert all(torch.equal(before[name], value) for name, value in stack.state.items())


def test_a_critic_that_is_not_a_number_any_more_keeps_it_to_itself() -> None:
    stack, whole = stack_of(), trained()
    stack.state["weights"][2] = torch.nan
    stack.train(pool(), STEPS)
    assert same(stack, whole, list(range(COUNT))) == [0, 1, 3, 4]
    assert torch.isnan(stack.image_gradients(*shared_batch())).flatten(1).any(1).tolist() == [
        k == 2 for k in range(COUNT)
    ]


def test_training_in_half_precision_goes_the_same_way() -> None:
    fresh, single, half = stack_of(), trained(), stack_of()
    half.dtype = torch.bfloat16  # as on CUDA
    half.train(pool(), STEPS)
    assert half.state["weights"].dtype == torch.float32
    moved, expected = ((stack.state["weights"] - fresh.state["weights"])[[0, 2, 3, 4]] for stack in (half, single))
    assert float(torch.cosine_similarity(moved, expected).min()) > 0.8


def test_fakes_of_a_pool_have_the_labels_asked_for() -> None:
    marked = PooledFakes(torch.arange(3.0)[:, None, None, None, None].expand(3, 8, *SPEC.shape))
    labels = torch.tensor([[2, 0], [1, 1]])
    chances = torch.tensor([[0.0, 0.999999], [0.3, 0.5]], dtype=torch.float64)[..., None]
    assert torch.equal(marked(labels, chances)[:, :, 0, 0, 0].long(), labels)


def test_critics_learn_to_tell_real_images_from_fakes() -> None:
    images, labels = bars(60)
    net = dense_critics(spec_of(12, 12, 1, classes=2), 16)
    records = ImageSet(spec=net.spec, pixels=to_bytes(images), labels=labels)
    shards = ImageShards(records, torch.arange(60) % 3, 3, seed=0, device=torch.device("cpu"))
    stack = CriticStack(net, shards, batch=16, draws=named_generator(0, "critics"))
    fakes = PooledFakes(torch.rand(2, 50, 1, 12, 12, generator=named_generator(0, "fakes")))
    stack.train(fakes, 200)
    ready = net.ready(stack.state["weights"], stack.state["vectors"], torch.float32)
    other, labels = bars(40, seed=9)
    of_real = net.scores(ready, other, labels).mean(1)
    of_fake = net.scores(ready, fakes.pool[1, :40], torch.ones(40, dtype=torch.int64)).mean(1)
    assert (of_real > of_fake + 0.3).all()


@NEEDS_CUDA
@pytest.mark.parametrize("at_once", [COUNT, 2])
def test_steps_of_a_cuda_graph_train_as_plain_ones_and_keep_shards_apart(at_once: int) -> None:
    stacks = [stack_of(device="cuda"), stack_of(device="cuda"), stack_of(sizes=(6, *SIZES[1:]), device="cuda")]
    graphed, plain, grown = stacks
    for stack in stacks:
        stack.at_once = at_once
    plain._bench(-(-COUNT // -(-COUNT // at_once)), critic_losses).take_step.plain_only = True
    for stack in stacks:
        stack.train(pool("cuda"), 12)
    assert all(bench.take_step.graph is not None for bench in graphed.benches.values())
    assert same(graphed, grown, list(range(COUNT))) == [1, 2, 3, 4]
    assert close(graphed.state["weights"], plain.state["weights"], within=1e-4)
    single = stack_of()
    start = single.state_dict()["weights"]
    single.train(pool(), 12)
    moved, expected = graphed.state["weights"].cpu() - start, single.state["weights"] - start
    assert float(torch.cosine_similarity(moved, expected)[[0, 2, 3, 4]].min()) > 0.8
    images, labels = shared_batch()
    assert torch.isfinite(graphed.image_gradients(images.cuda(), labels.cuda())).all()
