"""Critics that have learned before the first release, each against a generator of its own. Vault side.

Critic and generator of a shard play their game on that shard alone: no sum runs over shards, and public draws have the
same shapes whatever the shards hold. Afterwards the generators are thrown away, which costs no privacy. One generator
for all would make every critic depend on every record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from veilset.engines.checkpointing import Checkpoints, read_checkpoint
from veilset.engines.critic_training import CriticStack, adam
from veilset.nets.spectral_generators import coin_flips
from veilset.nets.stacked_generators import Generators


@dataclass(frozen=True)
class LocalFakes:
    """Fakes for each critic from its own generator."""

    net: Generators
    weights: Tensor
    dtype: torch.dtype

    @property
    def numbers(self) -> int:
        return self.net.latent_size

    def __call__(self, labels: Tensor, chances: Tensor) -> Tensor:
        return self.net.images(self.weights, coin_flips(chances), labels, self.dtype)


def warm_start(
    critics: CriticStack,
    net: Generators,
    *,
    steps: int,
    critic_steps: int,
    draws: torch.Generator,
    checkpoints: Checkpoints,
    checkpoint_every: int,
    progress: Callable[[int, int], None],
) -> None:
    """Takes `steps` steps of each critic's generator, and before each of them `critic_steps` of the critic.

    As many critics as are in work at once play to the end before the next ones begin, so that generators need room for
    these alone. The critics go on with a new Adam (Chen et al. 2020, their code).
    """
    pieces = torch.arange(critics.shards.count, device=critics.device).split(critics.at_once)
    for number, some in enumerate(pieces):
        game = _Game(critics, net, some, draws)
        name = f"warm start {number}"
        with read_checkpoint(name):
            done = game.restore(checkpoints.load(name))
        for step in range(done, steps):
            critics.train(LocalFakes(net, game.local["weights"], critics.dtype), critic_steps, some)
            game.generator_step()
            if step + 1 == steps:
                checkpoints.save(name, {"step": torch.tensor(steps), **game.result()})
            elif (step + 1) % checkpoint_every == 0:
                checkpoints.save(name, {"step": torch.tensor(step + 1), **game.state()})
            progress(number * steps + step + 1, len(pieces) * steps)
    critics.renew_adam()


class _Game:
    """Some critics and their generators."""

    def __init__(self, critics: CriticStack, net: Generators, some: Tensor, draws: torch.Generator) -> None:
        self.critics, self.net, self.some, self.draws = critics, net, some, draws
        weights = net.draw(len(some), draws).to(critics.device)
        self.local = {
            "weights": weights,
            "first moments": torch.zeros_like(weights),
            "second moments": torch.zeros_like(weights),
            "steps": torch.zeros(len(some), dtype=torch.int64, device=critics.device),
        }

    def generator_step(self) -> None:
        """One step of every generator, on labels drawn evenly."""
        shape, device = (len(self.some), self.critics.batch), self.draws.device
        labels = torch.randint(self.net.spec.num_classes, shape, generator=self.draws, device=device)
        chances = torch.rand(*shape, self.net.latent_size, generator=self.draws, device=device)
        leaf = self.local["weights"].detach().requires_grad_()
        images = self.net.images(leaf, coin_flips(chances), labels, self.critics.dtype)
        state, critics = self.critics.state, self.critics.net
        with torch.no_grad():
            ready = critics.ready(state["weights"][self.some], state["vectors"][self.some], self.critics.dtype)
            wanted = critics.image_gradients(ready, images.detach(), labels) / -self.critics.batch
        (gradients,) = torch.autograd.grad(images, leaf, wanted)
        self.local["steps"] += 1
        adam(
            self.local["weights"],
            gradients,
            *(self.local[name] for name in ("first moments", "second moments", "steps")),
        )

    def state(self) -> dict[str, Tensor]:
        """All that the rest of the game depends on."""
        return {
            "draws": self.draws.get_state(),
            **{f"generators {name}": value for name, value in self.local.items()},
            **{f"critics {name}": value[self.some] for name, value in self.critics.state.items()},
        }

    def result(self) -> dict[str, Tensor]:
        """All that is left after the game."""
        names = ("draws", "critics weights", "critics vectors")
        return {name: value for name, value in self.state().items() if name in names}

    def restore(self, kept: Mapping[str, Tensor] | None) -> int:
        """Goes on where `kept` stood; returns the number of steps it had done."""
        if kept is None:
            return 0
        self.draws.set_state(kept["draws"].cpu())
        for name in kept.keys() - {"step", "draws"}:
            side, _, field = name.partition(" ")
            value = kept[name].to(self.critics.device)
            if side == "generators":
                self.local[field] = value
            else:
                self.critics.state[field][self.some] = value
        return int(kept["step"])
