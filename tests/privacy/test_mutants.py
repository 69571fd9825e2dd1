"""A12, the mutation gate: deliberate faults in the kernel, each caught by a named check that passes without the fault.

The faults are in `mutants`. If one survives, the checks have rotted.
"""

import inspect
import math
from collections.abc import Callable
from pathlib import Path

import account_checks
import checks
import mutants
import pytest

from veilset.errors import VeilsetError

FINDINGS = (AssertionError, pytest.fail.Exception, VeilsetError)
"""A failed assertion, a refusal that did not come, or the kernel's own alarm; a TypeError would be a broken mutant."""
Check = Callable[..., None]


MUTANTS: list[tuple[mutants.Mutant, Check]] = [
    (mutants.scaled_noise(0.0), checks.check_released_noise),
    (mutants.scaled_noise(0.5), checks.check_released_noise),
    (mutants.scaled_noise(0.5), checks.check_matched_filter),
    (mutants.scaled_noise(math.sqrt(0.5)), checks.check_matched_filter),
    (mutants.scaled_noise(0.99), checks.check_released_noise),
    (mutants.repeated_noise, checks.check_released_noise),
    (mutants.uniform_noise, checks.check_released_noise),
    (mutants.noise_in_floats_off_the_grid, checks.check_released_noise),
    (mutants.rows_noised_one_by_one, checks.check_released_rows_noise),
    (mutants.same_nonce, checks.check_noise_unique),
    (mutants.same_key, checks.check_noise_unique),
    (mutants.no_new_key_after_fork, checks.check_noise_after_fork),
    (mutants.seeded_noise_passes_as_private, checks.check_test_noise_is_refused),
    (mutants.clip_after_sum, checks.check_released_sensitivity),
    (mutants.clip_per_block, checks.check_sensitivity),
    (mutants.shards_summed_as_records, checks.check_shard_sums),
    (mutants.clip_by_the_longest_row, checks.check_rows_alone),
    (mutants.norm_depends_on_the_batch, checks.check_rows_alone),
    (mutants.replace_priced_as_add_remove, checks.check_sensitivity),
    (mutants.replace_priced_as_add_remove, checks.check_released_noise),
    (mutants.every_row_counts_as_nonnegative, checks.check_sensitivity),
    (mutants.non_finite_rows_pass, checks.check_sensitivity),
    (mutants.float_sums, checks.check_exact_sums),
    (mutants.realised_rate, checks.check_draws_price_the_declared_rate),
    (mutants.fixed_size_batches, checks.check_sampler),
    (mutants.draws_can_be_used_again, checks.check_a_draw_feeds_one_release),
    (mutants.only_the_first_release_on_a_draw_is_priced, checks.check_releases_on_one_draw_are_priced_together),
    (
        mutants.releases_on_a_draw_are_not_compared_with_those_foreseen,
        checks.check_releases_on_one_draw_are_priced_together,
    ),
    (mutants.dropped_events, account_checks.check_every_release_is_counted),
    (mutants.charge_after_noise, account_checks.check_charge_precedes_noise),
    (mutants.no_fsync, account_checks.check_synced_before_return),
    (mutants.one_release_beyond_the_plan, account_checks.check_plan_is_the_limit),
    (mutants.reserve_without_a_crash, account_checks.check_plan_is_the_limit),
    (mutants.resume_forgets, account_checks.check_resume_keeps_charges),
    (mutants.forks_share_prepaid_steps, account_checks.check_fork_cannot_spend_twice),
    (mutants.chain_not_checked, account_checks.check_chain),
    (mutants.epsilon_rounded_down, account_checks.check_prices_round_up),
    (mutants.amplified_before_composed, account_checks.check_hidden_index_price),
    (mutants.mean_number_of_touches, account_checks.check_random_index_price),
    (mutants.lost_chances, account_checks.check_two_kinds_of_random_index_price),
]


def run(check: Check, folder: Path) -> None:
    folder.mkdir()
    check(folder) if "folder" in inspect.signature(check).parameters else check()


@pytest.mark.parametrize(
    ("mutant", "check"), MUTANTS, ids=[f"{m.__qualname__.split('.')[0]}-{c.__name__}" for m, c in MUTANTS]
)
def test_every_fault_is_caught_by_a_check_that_passes_without_it(
    mutant: mutants.Mutant, check: Check, tmp_path: Path
) -> None:
    run(check, tmp_path / "clean")
    with pytest.MonkeyPatch.context() as patch:
        mutant(patch)
        with pytest.raises(FINDINGS):
            run(check, tmp_path / "mutated")
    run(check, tmp_path / "clean again")


def test_there_are_at_least_fourteen_faults() -> None:
    assert len({mutant.__qualname__ for mutant, _ in MUTANTS}) >= 14


def test_every_check_is_proven_to_bite() -> None:
    known = {
        check
        for module in (checks, account_checks)
        for name, check in vars(module).items()
        if name.startswith("check_")
    }
    helpers = {checks.check_standard_normal, checks.check_poisson}
    assert known - helpers == {check for _, check in MUTANTS}
