"""The figures of gradient norms are made of two private runs and say what clipping did to them."""

from __future__ import annotations

from pathlib import Path

import norms
import pytest
import results
import torch

from benchmarks.toys import tiny
from veilset.engines.per_sample_gradients import PerSampleGradients
from veilset.nets.classifiers import ConvNet
from veilset.randomness import named_generator

SMALL = ["shards=2", "warm_up=1", "critic_width=16", "critic_batch=2", "images_per_step=2", "channels=16"]
COUNT = 3


def test_two_runs_give_two_figures_and_lines_that_say_what_was_clipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(norms.datasets, "load", tiny)
    monkeypatch.setattr(norms, "GAN_BATCH", 8)
    monkeypatch.setattr(norms, "NORMS_EVERY", 2)
    monkeypatch.setattr("veilset.engines.shard_teaching.NORMS_EVERY", 2)
    file = tmp_path / "results.jsonl"
    norms.main(["--steps", "4", "--set", *SMALL, "--device", "cpu", "--results", str(file), "--out", str(tmp_path)])
    for figure in ("gradient-norms.png", "norm-histograms.png"):
        assert (tmp_path / figure).read_bytes().startswith(b"\x89PNG")
    lines = results.read(file)
    assert {line["method"] for line in lines} == {"dp-sgd gan", "gs-wgan"}
    gan = [line for line in lines if line["method"] == "dp-sgd gan"]
    assert {line["settings"]["images"] for line in gan} == {"real", "generated"}
    assert all(line["epsilon_proven"] > 0 for line in gan)
    after = [line["mean"] for line in lines if line["metric"] == "gradient norm, after clipping"]
    assert len(after) == len(gan) / 4 + 2
    assert all(0 < value <= norms.GAN_CLIP for value in after)


def test_norms_are_pooled_over_steps_and_clipped_one_by_one() -> None:
    found = norms.Norms("a", 2.0, {20: [1.0, 3.0], 40: [5.0]}, {})
    assert found.before == [1.0, 3.0, 5.0]
    assert found.after == [1.0, 2.0, 2.0]
    before, after = found.panel().traces
    assert (before.steps, before.mean, before.sd) == ((20.0, 40.0), (2.0, 5.0), (1.0, 0.0))
    assert after.mean == (1.5, 2.0)


def test_the_discriminator_is_told_real_images_from_generated_ones() -> None:
    images = tiny("mnist", "train")
    network = ConvNet(images.spec, named_generator(0, "weights"), width=16)
    inputs, labels = torch.rand(COUNT, *images.spec.shape), torch.tensor([0, 1, 0])
    scores = network(inputs)[torch.arange(COUNT), labels]
    torch.testing.assert_close(norms.real_loss(network, inputs, labels), torch.log1p(torch.exp(-scores)))
    torch.testing.assert_close(norms.fake_loss(network, inputs, labels), torch.log1p(torch.exp(scores)))
    lengths = norms.lengths(PerSampleGradients(network, losses=norms.real_loss), inputs, labels)
    assert len(lengths) == COUNT
