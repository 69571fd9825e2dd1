"""Every row of the accounting table of the method notes (section 0), to three digits. Delta is 1e-5 unless said.

Each id names the paper and the setting. The rows marked WBK were computed with autodp 0.2.3.1 as the papers did.
"""

import math

import pytest
from autodp import rdp_acct, rdp_bank
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent, rdp

from veilset.engines.published_accounting import (
    calibrate_classic_gaussian,
    calibrate_sampled_gaussian,
    calibrate_wbk,
    classic_epsilon,
    classic_gaussian_epsilon,
    sampled_gaussian_epsilon,
    wbk_epsilon,
    wbk_renyi,
)
from veilset.errors import ConfigError
from veilset.privacy.gaussian import gaussian_mu

DELTA = 1e-5
GS_WGAN_RELEASES = 20_000 * 32

THREE_DIGITS = 5e-3
"""Half a unit of the third digit of a value that starts with 1: the table gives no more."""

WBK_ROWS = [
    pytest.param(1.07, 1 / 1000, GS_WGAN_RELEASES, 9.993, id="GS-WGAN central, published epsilon 10"),
    pytest.param(1.07, 1 / 250, GS_WGAN_RELEASES, 60.6, id="GS-WGAN central, K=250"),
    pytest.param(1.07, 1 / 500, GS_WGAN_RELEASES, 23.8, id="GS-WGAN central, K=500"),
    pytest.param(1.07, 1 / 1500, GS_WGAN_RELEASES, 6.30, id="GS-WGAN central, K=1500"),
    *[
        pytest.param(1.07, 1 / 1000, thousands * 32_000, epsilon, id=f"GS-WGAN central, {thousands}k iterations")
        for thousands, epsilon in [(1, 1.98), (2, 2.84), (5, 4.62), (10, 6.73), (15, 8.45)]
    ],
    *[
        pytest.param(noise, 1 / 1000, GS_WGAN_RELEASES, epsilon, id=f"GS-WGAN central, sigma={noise}")
        for noise, epsilon in [
            (0.8, 15.0),
            (0.9, 12.4),
            (1.0, 10.8),
            (1.2, 8.98),
            (1.5, 6.47),
            (2.0, 4.48),
            (3.0, 2.81),
        ]
    ],
    pytest.param(0.61135, 1 / 2543, 640_000, 9.999, id="DPAC CelebA, published epsilon 10"),
    pytest.param(2.1, 0.01, 30_000, 10.10, id="DP-CGAN as a baseline of GS-WGAN"),
    pytest.param(0.588, 1 / 120, 600, 10.02, id="DP-MERF v1 as a baseline"),
    pytest.param(0.686, 1 / 120, 2_040, 9.999, id="DP-MERF autoencoder as a baseline"),
]


@pytest.mark.parametrize(("noise", "rate", "count", "epsilon"), WBK_ROWS)
def test_subsampling_without_replacement_gives_the_papers_epsilon(
    noise: float, rate: float, count: int, epsilon: float
) -> None:
    assert wbk_epsilon(noise, rate, count, DELTA) == pytest.approx(epsilon, rel=THREE_DIGITS)


@pytest.mark.parametrize(("noise", "rate", "count", "epsilon"), WBK_ROWS[::3])
def test_subsampling_without_replacement_agrees_with_autodp(
    noise: float, rate: float, count: int, epsilon: float
) -> None:
    accountant = rdp_acct.anaRDPacct()
    accountant.compose_subsampled_mechanism(lambda a: rdp_bank.RDP_gaussian({"sigma": noise}, a), rate, coeff=count)
    assert wbk_epsilon(noise, rate, count, DELTA) == pytest.approx(accountant.get_eps(DELTA), rel=1e-4)


@pytest.mark.parametrize(
    ("epsilon", "noise"),
    [(1, 8.95), (2, 4.13), (4, 2.19), (6, 1.59), (8, 1.30), (10, 1.069), (12, 0.922), (15, 0.800)],
    ids=lambda value: f"GS-WGAN code accounting {value}",
)
def test_noise_for_a_target_follows_the_code_of_gs_wgan(epsilon: float, noise: float) -> None:
    found = calibrate_wbk(epsilon, 1 / 1000, GS_WGAN_RELEASES, DELTA)
    assert found == pytest.approx(noise, rel=THREE_DIGITS)
    assert epsilon * (1 - 1e-4) <= wbk_epsilon(found, 1 / 1000, GS_WGAN_RELEASES, DELTA) <= epsilon


def test_gs_wgan_central_is_priced_at_order_four() -> None:
    def epsilon_at(order: int) -> float:
        return classic_epsilon(
            lambda a: GS_WGAN_RELEASES * wbk_renyi(int(a), 1e-3, lambda b: b / (2 * 1.07**2)), DELTA, [order]
        )

    assert min(range(2, 20), key=epsilon_at) == 4


def test_gs_wgan_federated_was_published_without_amplification() -> None:
    # GS-WGAN federated: T=30000, B=32, K=866, delta 1.15e-3; the paper prints 5.99e2.
    assert classic_gaussian_epsilon(1.07, 30_000 * 32 / 866, 1.15e-3) == pytest.approx(598.6, rel=1e-4)


@pytest.mark.parametrize(
    ("noise", "epsilon"), [(5.0, 0.980), (0.568, 9.998)], ids=["DP-MERF epsilon 1", "DP-MERF epsilon 10"]
)
def test_single_release_of_dp_merf(noise: float, epsilon: float) -> None:
    assert classic_gaussian_epsilon(noise, 1, DELTA) == pytest.approx(epsilon, abs=6e-4)
    assert calibrate_classic_gaussian(epsilon, DELTA) == pytest.approx(noise, rel=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "noise"), [(1.0, 3.731), (10.0, 0.4999)], ids=["analytic eps 1", "analytic eps 10"]
)
def test_analytic_gaussian_needs_less_noise_than_the_classic_one(epsilon: float, noise: float) -> None:
    # Balle and Wang 2018; the kernel's own calibration.
    assert 1 / gaussian_mu(epsilon, DELTA) == pytest.approx(noise, rel=2e-4)
    assert calibrate_classic_gaussian(epsilon, DELTA) > noise


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0, 500.0])
def test_calibrating_the_classic_gaussian_inverts_it(epsilon: float) -> None:
    noise = calibrate_classic_gaussian(epsilon, DELTA)
    assert classic_gaussian_epsilon(noise, 1, DELTA) == pytest.approx(epsilon, rel=1e-9)
    assert classic_gaussian_epsilon(noise, 1, DELTA) <= epsilon


SGM_ORDERS = [1 + x / 20 for x in range(1, 180)] + [float(a) for a in range(10, 256)]


def sampled_gaussian_rdp(noise: float, rate: float, count: int, orders: list[float]) -> dict[float, float]:
    """Renyi divergences of Poisson-sampled Gaussians under add/remove (Mironov, Talwar and Zhang 2019)."""
    accountant = rdp.RdpAccountant(orders)
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), count))
    return dict(zip(orders, accountant._rdp, strict=True))


def classic_sgm(noise: float, rate: float, count: int, delta: float, orders: list[float] = SGM_ORDERS) -> float:
    values = sampled_gaussian_rdp(noise, rate, count, orders)
    return classic_epsilon(lambda order: values[order], delta, orders)


def improved_sgm(noise: float, rate: float, count: int, delta: float) -> float:
    """Conversion of Canonne, Kamath and Steinke 2020: rdp + log((a-1)/a) - (log delta + log a) / (a-1)."""
    values = sampled_gaussian_rdp(noise, rate, count, SGM_ORDERS)
    return min(r + math.log1p(-1 / a) - math.log(delta * a) / (a - 1) for a, r in values.items())


@pytest.mark.parametrize(
    ("noise", "rate", "count", "epsilon"),
    [
        pytest.param(2.1, 0.01, 30_000, 4.61, id="DP-CGAN"),
        pytest.param(0.588, 1 / 120, 600, 7.82, id="DP-MERF v1"),
        pytest.param(0.686, 1 / 120, 2_040, 7.22, id="DP-MERF autoencoder"),
    ],
)
def test_poisson_accounting_of_the_baselines(noise: float, rate: float, count: int, epsilon: float) -> None:
    assert classic_sgm(noise, rate, count, DELTA) == pytest.approx(epsilon, rel=THREE_DIGITS)


def test_fed_avg_gan_was_published_with_almost_no_noise() -> None:
    # Fed-Avg GAN: z=0.01, q=10/866, T=1000, delta=1/866, order 2; the paper prints 9.99e6.
    assert classic_sgm(0.01, 10 / 866, 1_000, 1 / 866, [2.0]) == pytest.approx(9.991e6, rel=1e-4)


def test_private_set_generation_noise_for_epsilon_ten() -> None:
    # PSG: q=256/60000, 200000 steps (20 images per class, R=1000).
    rate, steps = 256 / 60_000, 200_000
    assert improved_sgm(1.214, rate, steps, DELTA) == pytest.approx(10, rel=THREE_DIGITS)
    assert classic_sgm(1.278, rate, steps, DELTA) == pytest.approx(10, rel=THREE_DIGITS)


@pytest.mark.parametrize(("noise", "count", "epsilon"), [(2.553, 20_000, 1.0), (0.966, 100_000, 10.0)])
def test_the_accountant_of_the_psg_code(noise: float, count: int, epsilon: float) -> None:
    # PSG, 10 images per class, q=256/60000: the noise of the authors' code for R=200 and R=1000.
    rate = 256 / 60_000
    assert sampled_gaussian_epsilon(noise, rate, count, DELTA) == pytest.approx(epsilon, rel=1e-3)
    assert sampled_gaussian_epsilon(noise, rate, count, DELTA) == pytest.approx(
        improved_sgm(noise, rate, count, DELTA), rel=1e-3
    )
    found = calibrate_sampled_gaussian(epsilon, rate, count, DELTA)
    assert found == pytest.approx(noise, rel=1e-3)
    assert sampled_gaussian_epsilon(found, rate, count, DELTA) == pytest.approx(epsilon, rel=1e-4)


def test_private_gans_revisited_epsilon() -> None:
    # Private GANs Revisited: sigma=1, q=128/60000, T=450000.
    assert improved_sgm(1.0, 128 / 60_000, 450_000, DELTA) == pytest.approx(9.97, rel=THREE_DIGITS)


def test_the_bound_never_exceeds_the_unsampled_release() -> None:
    for order in (2, 3, 8, 64, 256):
        for noise in (0.05, 1.0, 50.0):
            for rate in (1e-6, 0.01, 0.5, 1.0):
                assert 0 <= wbk_renyi(order, rate, lambda a, s=noise: a / (2 * s * s)) <= order / (2 * noise**2)


def test_huge_divergences_do_not_overflow() -> None:
    assert math.isfinite(wbk_renyi(256, 0.01, lambda a: 1e6 * a))


@pytest.mark.parametrize("order", [1, 2.5])
def test_orders_without_a_proof_are_refused(order: float) -> None:
    with pytest.raises(ConfigError):
        wbk_renyi(order, 0.1, lambda a: a)
