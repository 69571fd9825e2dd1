"""Deliberate faults in the kernel. Each mutant is a function that patches one in."""

import inspect
import json
import math
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from veilset.privacy import accounting, bounds, ledger, noise, release, sampling
from veilset.privacy.events import Event, PoissonSampled, Repeated

Mutant = Callable[[pytest.MonkeyPatch], None]


# --- noise -----------------------------------------------------------------------------------------------------------


def scaled_noise(factor: float) -> Mutant:
    def mutate(patch: pytest.MonkeyPatch) -> None:
        real = noise.NoiseSource.normal
        patch.setattr(noise.NoiseSource, "normal", lambda self, *args: real(self, *args) * factor)

    return mutate


def repeated_noise(patch: pytest.MonkeyPatch) -> None:
    """Every second coordinate carries its neighbour's noise: right variance, wrong dependence."""
    real = noise.NoiseSource.normal
    patch.setattr(
        noise.NoiseSource, "normal", lambda self, n, *a: real(self, (n + 1) // 2, *a).repeat_interleave(2)[:n]
    )


def uniform_noise(patch: pytest.MonkeyPatch) -> None:
    """Right variance, wrong law."""
    patch.setattr(
        noise.NoiseSource, "normal", lambda self, n, device="cpu": (self.uniform(n, device) - 0.5) * math.sqrt(12)
    )


def same_nonce(patch: pytest.MonkeyPatch) -> None:
    real = noise.keystream_words
    patch.setattr(noise, "keystream_words", lambda key, nonce, *rest: real(key, bytes(12), *rest))


def same_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(noise.NoiseSource, "_new_key", lambda self: bytes(32))


def no_new_key_after_fork(patch: pytest.MonkeyPatch) -> None:
    class Deaf(list[None]):
        def append(self, _: None) -> None:
            pass

    patch.setattr(noise, "FORKS", Deaf())
    patch.setattr(noise, "os", SimpleNamespace(getpid=lambda: 1, urandom=os.urandom))


def seeded_noise_passes_as_private(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(noise.SeededNoise, "reproducible", False)


def noise_in_floats_off_the_grid(patch: pytest.MonkeyPatch) -> None:
    def noisy(self: release.Door, grid_values: Tensor, grid_step: float, noise_std: float) -> Tensor:
        draw = self.noise.normal(grid_values.numel(), grid_values.device).reshape(grid_values.shape)
        return grid_values * grid_step + draw * noise_std

    patch.setattr(release.Door, "_noisy", noisy)


def rows_noised_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """GS-WGAN's own scale: the noise of one row, although all rows of a step may turn at once."""
    source = inspect.getsource(release.Door.release_rows).replace("* math.sqrt(max(len(rows), 1))", "")
    patch.setattr(release.Door, "release_rows", _compiled(source, "release_rows", vars(release)))


# --- bounds ----------------------------------------------------------------------------------------------------------


def _compiled(source: str, name: str, scope: dict) -> Callable:
    namespace = dict(scope)
    exec(inspect.cleandoc("\n" + source), namespace)
    return namespace[name]


def _bounded(rows: Tensor, bound: float, nonnegative: bool) -> bounds.Bounded:
    grid_rows = (rows.double() / (bound * bounds.GRID)).trunc().to(torch.int64)
    return bounds.Bounded(grid_rows, bound, nonnegative, bounds._MADE_HERE)


def clip_after_sum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bounds, "clip_rows", lambda rows, bound, nonnegative=False: _bounded(
        rows.double().nan_to_num(0).clamp(-1e6, 1e6), bound, nonnegative))  # fmt: skip
    real = release.Door.release_sum

    def release_sum(self: release.Door, total: bounds.GroupedSum, *args: object, **kwargs: object) -> Tensor:
        values = total.grid_total.double()
        total.grid_total = (values / max(float(values.norm()) * bounds.GRID, 1.0)).trunc().to(torch.int64)
        return real(self, total, *args, **kwargs)

    patch.setattr(release.Door, "release_sum", release_sum)


def clip_per_block(patch: pytest.MonkeyPatch) -> None:
    """Each half of a row gets the whole bound, as with per-layer clipping."""
    real = bounds.clip_rows

    def clip_rows(rows: Tensor, bound: float, *, nonnegative: bool = False) -> bounds.Bounded:
        flat = rows.flatten(1)
        halves = [real(half, bound, nonnegative=nonnegative).grid_rows for half in flat.tensor_split(2, dim=1)]
        return bounds.Bounded(torch.cat(halves, dim=1), bound, nonnegative, bounds._MADE_HERE)

    patch.setattr(bounds, "clip_rows", clip_rows)


def clip_by_the_longest_row(patch: pytest.MonkeyPatch) -> None:
    """Data-dependent scaling: bounded, but a row's result depends on its batch."""
    real = bounds.clip_rows

    def clip_rows(rows: Tensor, bound: float, *, nonnegative: bool = False) -> bounds.Bounded:
        longest = rows.flatten(1).norm(dim=1).max().clamp(min=1e-30)
        return real(rows / longest * bound, bound, nonnegative=nonnegative)

    patch.setattr(bounds, "clip_rows", clip_rows)


def norm_depends_on_the_batch(patch: pytest.MonkeyPatch) -> None:
    """As torch's own row sums do, whose rounding depends on the number of rows (exaggerated here)."""
    patch.setattr(bounds, "_row_sums", lambda values: values.sum(dim=1, keepdim=True) * (1 + 1e-4 / len(values)))


def replace_priced_as_add_remove(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(bounds, "sum_sensitivity", lambda bound, *_, **__: bound)


def shards_summed_as_records(patch: pytest.MonkeyPatch) -> None:
    """A record that is added does not add a row: it turns the one of its shard."""
    patch.setattr(bounds, "sum_shards", bounds.sum_rows)


def every_row_counts_as_nonnegative(patch: pytest.MonkeyPatch) -> None:
    real = bounds.sum_sensitivity
    patch.setattr(bounds, "sum_sensitivity", lambda bound, adjacency, nonnegative=False: real(
        bound, adjacency, nonnegative=True))  # fmt: skip


def non_finite_rows_pass(patch: pytest.MonkeyPatch) -> None:
    stand_in = SimpleNamespace(**{name: getattr(torch, name) for name in dir(torch)})
    stand_in.isfinite = lambda values: torch.ones_like(values, dtype=torch.bool)
    patch.setattr(bounds, "torch", stand_in)


def float_sums(patch: pytest.MonkeyPatch) -> None:
    def add(self: bounds.GroupedSum, rows: bounds.Bounded, groups: Tensor) -> None:
        if self.grid_total is None:
            self._row_bound, self._nonnegative = rows.bound, rows.nonnegative
            self._floats = torch.zeros(self.num_groups, *rows.grid_rows.shape[1:])
        self._floats.index_add_(0, groups, rows.grid_rows.float())
        self.grid_total = self._floats.to(torch.int64)

    patch.setattr(bounds.GroupedSum, "add", add)


# --- sampling --------------------------------------------------------------------------------------------------------


def realised_rate(patch: pytest.MonkeyPatch) -> None:
    real = sampling.poisson_draw

    def poisson_draw(num_records: int, rate: float, source: noise.NoiseSource, *_: object) -> sampling.Draw:
        indices = real(num_records, rate, source).indices
        share = max(len(indices), 1) / num_records
        return sampling.Draw.once(indices, lambda event, absence: PoissonSampled(share, event, absence))

    patch.setattr(sampling, "poisson_draw", poisson_draw)


def fixed_size_batches(patch: pytest.MonkeyPatch) -> None:
    def poisson_draw(num_records: int, rate: float, source: noise.NoiseSource, *_: object) -> sampling.Draw:
        indices = source.uniform(num_records).argsort()[: int(num_records * rate)]
        return sampling.Draw.once(indices, lambda event, absence: PoissonSampled(rate, event, absence))

    patch.setattr(sampling, "poisson_draw", poisson_draw)


def draws_can_be_used_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sampling.Draw, "once", lambda indices, price, feeds=(): sampling.Draw(indices, price))


def only_the_first_release_on_a_draw_is_priced(patch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(sampling.Draw.once.__func__).replace("Composed(feeds) if feeds else event", "event")
    source = source.replace("    @classmethod\n", "")
    patch.setattr(sampling.Draw, "once", classmethod(_compiled(source, "once", vars(sampling))))


def releases_on_a_draw_are_not_compared_with_those_foreseen(patch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(sampling.Draw.once.__func__).replace("waiting.pop(0) not in (None, event)", "False")
    source = source.replace("    @classmethod\n", "")
    patch.setattr(sampling.Draw, "once", classmethod(_compiled(source, "once", vars(sampling))))


# --- ledger ----------------------------------------------------------------------------------------------------------


def dropped_events(patch: pytest.MonkeyPatch) -> None:
    """Every block is written as one release fewer than it prepays."""
    real = ledger.ChainedFile.append

    def append(self: ledger.ChainedFile, entry: dict) -> None:
        charge = entry.get("charge", {})
        if charge.get("event") == "repeated":
            entry = {"charge": {**charge, "count": charge["count"] - 1}}
        real(self, entry)

    patch.setattr(ledger.ChainedFile, "append", append)


def charge_after_noise(patch: pytest.MonkeyPatch) -> None:
    real_charge, real_noisy = release.Door._charge, release.Door._noisy
    pending: list[tuple[tuple, dict]] = []
    patch.setattr(release.Door, "_charge", lambda self, *args, **kwargs: pending.append((args, kwargs)))

    def noisy(self: release.Door, *args: object) -> Tensor:
        result = real_noisy(self, *args)
        charge_args, charge_kwargs = pending.pop()
        real_charge(self, *charge_args, **charge_kwargs)
        return result

    patch.setattr(release.Door, "_noisy", noisy)


def no_fsync(patch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(ledger.ChainedFile.append).replace("os.fsync(self._file)", "pass")
    patch.setattr(ledger.ChainedFile, "append", _compiled(source, "append", vars(ledger)))


def one_release_beyond_the_plan(patch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(ledger.PrivacyLedger._charge_block)
    source = source.replace("steps(self.planned)[event] - self", "steps(self.planned)[event] + 1 - self")
    patch.setattr(ledger.PrivacyLedger, "_charge_block", _compiled(source, "_charge_block", vars(ledger)))


def reserve_without_a_crash(patch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(ledger.PrivacyLedger._charge_block).replace("and not self.resumed", "and False")
    patch.setattr(ledger.PrivacyLedger, "_charge_block", _compiled(source, "_charge_block", vars(ledger)))


def resume_forgets(patch: pytest.MonkeyPatch) -> None:
    real = ledger.PrivacyLedger.resume.__func__

    def resume(cls: type, path: Path) -> ledger.PrivacyLedger:
        book = real(cls, path)
        book._segments = [Counter() for _ in book._segments]
        return book

    patch.setattr(ledger.PrivacyLedger, "resume", classmethod(resume))


def forks_share_prepaid_steps(patch: pytest.MonkeyPatch) -> None:
    stand_in = SimpleNamespace(**{name: getattr(os, name) for name in dir(os)})
    stand_in.getpid = lambda: 1
    patch.setattr(ledger, "os", stand_in)
    patch.setattr(ledger, "FORKS", [])


def chain_not_checked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ledger, "read_chain", lambda lines: [json.loads(line)["entry"] for line in lines])


# --- accounting ------------------------------------------------------------------------------------------------------


def epsilon_rounded_down(patch: pytest.MonkeyPatch) -> None:
    real = accounting.gaussian_epsilon
    patch.setattr(accounting, "gaussian_epsilon", lambda mu, delta: math.floor(real(mu, delta) * 1e4) / 1e4)


def amplified_before_composed(patch: pytest.MonkeyPatch) -> None:
    """Composed(Sampled) instead of Sampled(Composed): the error of the GS-WGAN accounting."""
    real = accounting.steps

    def steps(event: Event) -> Counter[Event]:
        split: Counter[Event] = Counter()
        for step, times in real(event).items():
            if isinstance(step, PoissonSampled) and isinstance(step.event, Repeated):
                split[PoissonSampled(step.rate, step.event.event, step.absence)] += times * step.event.count
            else:
                split[step] += times
        return split

    patch.setattr(accounting, "steps", steps)


def mean_number_of_touches(patch: pytest.MonkeyPatch) -> None:
    """Prices the average number of touches instead of averaging delta over their number."""
    patch.setattr(
        accounting,
        "_touch_distribution",
        lambda times, step, own: {own * times / step.num_shards * accounting.single_mu_square(step.event): 1.0},
    )


def lost_chances(patch: pytest.MonkeyPatch) -> None:
    """Combinations of touches with the same cost overwrite each other (a bug this kernel once had)."""
    source = inspect.getsource(accounting._mu_squares).replace("joint.get(a + b, 0.0) + p * q", "p * q")
    patch.setattr(accounting, "_mu_squares", _compiled(source, "_mu_squares", vars(accounting)))
