import pytest
import torch

from veilset.evaluate import copies
from veilset.evaluate.copies import duplicate_counts, exact_copies, nearest_real, quantiles, real_to_real
from veilset.randomness import named_generator


def noise(count, name="noise"):
    return torch.randint(0, 256, (count, 1, 8, 8), dtype=torch.uint8, generator=named_generator(0, name))


def test_duplicates_are_counted_byte_by_byte():
    images = noise(5)
    repeated = torch.cat([images, images[:2], images[:1]])
    assert duplicate_counts(repeated) == {"num_unique": 5, "num_duplicates": 3, "largest_group": 3}
    nearly = images.clone()
    nearly[0, 0, 0, 0] ^= 1
    assert duplicate_counts(torch.cat([images, nearly]))["num_duplicates"] == 4


def test_a_latent_space_of_few_codes_shows_as_duplicates():
    codes = torch.randint(0, 64, (1000,), generator=named_generator(0, "codes"))
    counts = duplicate_counts(noise(64)[codes])
    assert counts["num_unique"] == 64
    assert counts["num_duplicates"] == 936


def test_exact_copies_of_real_images_are_found_and_near_misses_are_not():
    real = noise(50)
    synthetic = torch.cat([real[:3], noise(7, "other")])
    assert exact_copies(synthetic, real) == 3
    synthetic[0, 0, 0, 0] ^= 1
    assert exact_copies(synthetic, real) == 2


def test_the_distance_to_the_nearest_real_image_is_euclidean_over_pixels_from_0_to_1():
    real = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    real[1] = 255
    synthetic = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    synthetic[0, 0, 0, :4] = 255
    assert nearest_real(synthetic, real).tolist() == pytest.approx([2.0, 0.0])


def test_a_memoriser_lies_closer_to_real_images_than_they_lie_to_each_other():
    real = noise(100)
    memorised = (real[:20].int() + 1).clamp_max(255).to(torch.uint8)
    honest = real_to_real(real, named_generator(0, "references"))
    assert len(honest) == 100
    assert float(nearest_real(memorised, real).max()) < 0.1 * float(honest.min())


@pytest.mark.parametrize("chunk", [1, 64 * 7, 64 * 1000])
def test_distances_do_not_depend_on_how_the_images_are_cut_into_pieces(monkeypatch, chunk):
    real, synthetic = noise(23), noise(11, "other")
    vectors = [images.double().flatten(1) / 255 for images in (synthetic, real)]
    monkeypatch.setattr(copies, "CHUNK_VALUES", chunk)
    torch.testing.assert_close(nearest_real(synthetic, real), torch.cdist(*vectors).min(1).values, rtol=1e-6, atol=1e-6)
    among = torch.cdist(vectors[1], vectors[1]).fill_diagonal_(torch.inf).min(1).values
    honest = real_to_real(real, named_generator(0, "references"))
    torch.testing.assert_close(honest.sort().values, among.sort().values, rtol=1e-6, atol=1e-6)
    assert nearest_real(real, real.flip(0)).tolist() == [0.0] * 23


def test_large_images_are_converted_piece_by_piece_and_never_all_at_once(monkeypatch):
    converted = []
    vectors = copies._vectors
    monkeypatch.setattr(
        copies, "_vectors", lambda pixels, device: converted.append(pixels.numel()) or vectors(pixels, device)
    )
    monkeypatch.setattr(copies, "CHUNK_VALUES", 640)
    nearest_real(noise(50), noise(200, "other"))
    assert max(converted) <= 640


def test_quantiles_are_named_and_ascend():
    found = quantiles(torch.arange(101.0))
    assert found["0.0"] == 0
    assert found["0.5"] == 50
    assert found["0.95"] == 95
    assert list(found.values()) == sorted(found.values())
