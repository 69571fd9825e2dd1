"""Every shard draws its own batches: nothing about another shard can shift them."""

from __future__ import annotations

import pytest
import torch
from plain_critics import spec_of

from veilset.data.spec import ImageSet
from veilset.engines.shard_batches import ImageShards
from veilset.errors import DataError

SPEC = spec_of(8, 8, 1, classes=4)
CPU = torch.device("cpu")


def numbered(count: int, valid: torch.Tensor | None = None) -> ImageSet:
    """Images that show their own row number."""
    pixels = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(count, *SPEC.shape).contiguous()
    given = {} if valid is None else {"valid": valid}
    return ImageSet(spec=SPEC, pixels=pixels, labels=torch.arange(count) % 4, **given)


def rows_drawn(shards: ImageShards, number: int, step: int = 0, batch: int = 64) -> torch.Tensor:
    drawn = shards.draw(torch.tensor([number]), torch.tensor([step]), batch, 1)
    return (drawn.images[0, :, 0, 0, 0] * 255).round().long()


def test_a_shard_draws_all_its_records_and_no_others() -> None:
    shard_of = torch.tensor([2, 0, 0, 2, 3, 0, 2, 2])
    shards = ImageShards(numbered(8), shard_of, 4, seed=0, device=CPU)
    for number in (0, 2, 3):
        mine = (shard_of == number).nonzero().flatten()
        assert torch.equal(rows_drawn(shards, number).unique(), mine)


def test_an_image_comes_with_its_label() -> None:
    shards = ImageShards(numbered(20), torch.arange(20) % 3, 3, seed=0, device=CPU)
    drawn = shards.draw(torch.arange(3), torch.zeros(3, dtype=torch.int64), 16, 1)
    assert torch.equal((drawn.images[:, :, 0, 0, 0] * 255).round().long() % 4, drawn.labels)


def test_records_are_drawn_equally_often() -> None:
    shards = ImageShards(numbered(7), torch.zeros(7, dtype=torch.int64), 1, seed=0, device=CPU)
    counts = rows_drawn(shards, 0, batch=7000).bincount(minlength=7)
    assert int((counts - 1000).abs().max()) < 150  # five standard deviations


def test_null_records_are_never_drawn() -> None:
    valid = torch.tensor([True, False, True, True])
    shards = ImageShards(numbered(4, valid), torch.tensor([0, 0, 0, 1]), 2, seed=0, device=CPU)
    assert shards.sizes.tolist() == [2, 1]
    assert rows_drawn(shards, 0).unique().tolist() == [0, 2]


def test_an_empty_shard_draws_black_images() -> None:
    shards = ImageShards(numbered(5).subset(torch.arange(1, 5)), torch.tensor([0, 0, 2, 2]), 4, seed=0, device=CPU)
    assert shards.sizes.tolist() == [2, 0, 2, 0]
    assert rows_drawn(shards, 1).unique().tolist() == rows_drawn(shards, 3).unique().tolist() == [0]
    nothing = ImageShards(numbered(0), torch.zeros(0, dtype=torch.int64), 2, seed=0, device=CPU)
    assert rows_drawn(nothing, 1).unique().tolist() == [0]


def test_steps_shards_and_seeds_have_draws_of_their_own() -> None:
    def chances(seed: int, number: int, step: int) -> tuple[float, ...]:
        shards = ImageShards(numbered(8), torch.arange(8) % 2, 2, seed=seed, device=CPU)
        drawn = shards.draw(torch.tensor([number]), torch.tensor([step]), 4, 2)
        return tuple(drawn.chances.flatten().tolist())

    several = [chances(*case) for case in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]]
    assert len(set(several)) == 4
    assert chances(0, 0, 0) == several[0]


def test_other_streams_draw_from_the_same_images_and_leave_the_first_ones_as_they_were() -> None:
    shards = ImageShards(numbered(9), torch.arange(9) % 3, 3, seed=0, device=CPU)
    before = rows_drawn(shards, 1)
    others = [rows_drawn(shards.with_streams(name), 1) for name in ("one", "two", "one")]
    assert torch.equal(others[0], others[2])
    assert not torch.equal(others[0], others[1])
    assert not torch.equal(others[0], before)
    assert others[0].unique().tolist() == [1, 4, 7]
    assert torch.equal(rows_drawn(shards, 1), before)


def test_draws_do_not_depend_on_which_shards_draw_together() -> None:
    shards = ImageShards(numbered(9), torch.arange(9) % 3, 3, seed=0, device=CPU)
    together = shards.draw(torch.tensor([2, 0, 1]), torch.tensor([5, 6, 7]), 8, 2)
    alone = shards.draw(torch.tensor([1]), torch.tensor([7]), 8, 2)
    assert torch.equal(together.images[2], alone.images[0])
    assert torch.equal(together.chances[2], alone.chances[0])


@pytest.mark.parametrize("shard_of", [[0, 1], [0, 1, 2], [0, 1, -1]])
def test_a_record_without_a_shard_is_refused(shard_of: list[int]) -> None:
    with pytest.raises(DataError, match="a shard from 0 to 1 for every record"):
        ImageShards(numbered(3), torch.tensor(shard_of), 2, seed=0, device=CPU)
