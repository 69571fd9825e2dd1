"""The page beside a sketch: five sentences whose numbers are those of its claim."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from contract.cases import make_images
from sketch_cases import measured

from veilset.sketch_card import sketch_sentences
from veilset.sketch_release import open_sketch


def sentences(path: Path) -> list[str]:
    config = json.loads((path / "release" / "config.json").read_text())
    return sketch_sentences(config, open_sketch(path).claim)


@pytest.mark.parametrize("name", ["first", "merged", "second"])
def test_there_are_five_sentences(name: str, made: Path) -> None:
    assert len(sentences(made / name)) == 5


def test_rounds_and_parts_are_told(made: Path) -> None:
    assert "rounds" not in sentences(made / "first")[0]
    assert "2 such sums" in sentences(made / "second")[0]
    assert "2 parts with different people" in sentences(made / "merged")[0]


def test_under_replace_and_for_people_the_words_change(tmp_path: Path) -> None:
    images = make_images(per_user=3)
    measured(tmp_path / "a", images, adjacency="replace", unit="user", images_per_user=3)
    told = sentences(tmp_path / "a")
    assert "private for replacing all images of one person" in told[1]
    assert "with k images" not in told[1]
    assert "of those used" in told[2]


def test_a_void_claim_is_said_first(made: Path) -> None:
    config = json.loads((made / "first" / "release" / "config.json").read_text())
    void = replace(open_sketch(made / "first").claim, epsilon=None, stamps=("NOT PRIVATE: a test",))
    assert sketch_sentences(config, void)[0] == "NOT PRIVATE: a test"
    assert "differentially private" not in " ".join(sketch_sentences(config, void))
