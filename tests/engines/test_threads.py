import pytest
import torch

from veilset.engines.threads import one_thread


def fail_inside(seen: list[int]) -> None:
    with one_thread():
        seen.append(torch.get_num_threads())
        raise RuntimeError


def test_one_thread_is_used_inside_and_the_setting_restored_after_an_error() -> None:
    before, seen = torch.get_num_threads(), []
    torch.set_num_threads(2)
    try:
        with pytest.raises(RuntimeError):
            fail_inside(seen)
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(before)
