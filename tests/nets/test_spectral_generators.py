"""The paper's generator: its size, its norms, and that a forward pass leaves no trace."""

from __future__ import annotations

import pytest
import torch
from plain_critics import spec_of

from veilset.nets.spectral_generators import SpectralGenerator, SpectralNorm, coin_flips
from veilset.randomness import initialise, named_generator


def generator_of(height: int, width: int, channels: int, **options: int) -> SpectralGenerator:
    generator = SpectralGenerator(spec_of(height, width, channels), **{"latent_size": 3, "channels": 8, **options})
    initialise(generator, named_generator(0, "weights"))
    return generator


def test_it_has_as_many_weights_as_the_papers_code() -> None:
    with torch.device("meta"):
        generator = SpectralGenerator(spec_of(28, 28, 1, classes=10), latent_size=10, channels=256)
    assert sum(weight.numel() for weight in generator.parameters()) == 3_826_177


@pytest.mark.parametrize(
    ("shape", "padding"), [((28, 28, 1), 0), ((32, 32, 3), 1), ((8, 8, 1), 1), ((13, 9, 3), 0), ((8, 40, 1), 0)]
)
def test_images_of_any_size_come_out_and_the_last_layer_is_padded_where_no_pixel_can_be_spared(
    shape: tuple[int, int, int], padding: int
) -> None:
    generator = generator_of(*shape)
    generator.iterate(1)
    images = generator.sample(torch.tensor([0, 1, 2]), named_generator(0, "latents")).detach()
    assert images.shape == (3, *generator.spec.shape)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    assert generator.to_image.padding == (padding, padding)


def test_power_iteration_brings_the_largest_singular_value_of_every_layer_to_one() -> None:
    generator = generator_of(8, 8, 1)
    generator.iterate(300)
    layers = [layer for layer in generator.modules() if isinstance(layer, SpectralNorm)]
    assert len(layers) == 5
    for layer in layers:
        assert float(torch.linalg.matrix_norm(layer.normed().detach().flatten(1), 2)) == pytest.approx(1.0, abs=2e-3)


@pytest.mark.parametrize("training", [True, False])
def test_a_forward_pass_changes_nothing(training: bool) -> None:
    generator = generator_of(8, 8, 1).train(training)
    before = {name: value.clone() for name, value in generator.state_dict().items()}
    first = generator.sample(torch.tensor([0, 1]), named_generator(0, "latents"))
    assert torch.equal(generator.sample(torch.tensor([0, 1]), named_generator(0, "latents")), first)
    assert all(torch.equal(before[name], value) for name, value in generator.state_dict().items())


def test_singular_vectors_are_buffers_that_are_saved_and_not_trained() -> None:
    generator = generator_of(8, 8, 1)
    assert not any(name.endswith(("left", "right")) for name, _ in generator.named_parameters())
    generator.iterate(3)
    other = SpectralGenerator(generator.spec, latent_size=3, channels=8)
    other.load_state_dict(generator.state_dict())
    images = [one.sample(torch.tensor([2]), named_generator(0, "latents")) for one in (generator, other)]
    assert torch.equal(*images)


def test_an_image_depends_on_its_own_latents_and_label_alone() -> None:
    generator = generator_of(8, 8, 1).train()
    latents = coin_flips(torch.rand(6, 3, generator=named_generator(0, "latents")))
    labels = torch.arange(6) % 3
    together = generator(latents, labels)
    alone = torch.cat([generator(latents[row : row + 1], labels[row : row + 1]) for row in range(6)])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


def test_latents_are_fair_coins() -> None:
    flips = coin_flips(torch.rand(100, 100, generator=named_generator(0, "latents")))
    assert set(flips.unique().tolist()) == {0.0, 1.0}
    assert float(flips.mean()) == pytest.approx(0.5, abs=0.02)  # four standard deviations


def test_its_weights_can_be_trained_after_several_power_iterations() -> None:
    generator = generator_of(8, 8, 1)
    images = generator.sample(torch.tensor([0, 1]), named_generator(0, "latents"))
    generator.iterate(2)
    images.sum().backward()
    assert all(weight.grad is not None and torch.isfinite(weight.grad).all() for weight in generator.parameters())
