"""Your own images: a folder with one sub-folder per class, a model, and synthetic images back as a folder.

python examples/your_own_folder.py photos/ --size 32 --epsilon 3
"""

from __future__ import annotations

import argparse
from pathlib import Path

import veilset
from veilset.data import write_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--epsilon", type=float, required=True)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("synthetic"))
    options = parser.parse_args()

    images = veilset.load(options.photos, size=(options.size, options.size), fit="crop")
    model = veilset.fit(images, epsilon=options.epsilon)
    print(model.claim)
    write_folder(model.sample(1000, seed=0), options.out)
    print(f"wrote 1000 synthetic images to {options.out}")


if __name__ == "__main__":
    main()
