"""Peak memory of a whole sketch fit on generated images that stay on disk: it should not grow with their number.

python benchmarks/memory.py --kinds npz folder --numbers 60000 1000000

Each fit runs in a process of its own; the figure is the most memory that process ever held, with Python and torch.
"""

from __future__ import annotations

import argparse
import json
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch

import veilset
from veilset.data import stream

SIDE, CLASSES, PIECE = 28, 10, 10_000
SETTINGS = {
    "networks": 2, "width": 4, "rounds": 1, "latent_size": 4, "channels": 16, "steps": 20, "images_per_class": 4,
}  # fmt: skip
"""A small bank and a short training: the pass over the images is what is measured."""
EPSILON = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=tuple(MAKERS), default=list(MAKERS))
    parser.add_argument("--numbers", nargs="+", type=int, default=[60_000, 1_000_000])
    parser.add_argument("--load", action="store_true", help="read the images into memory first, to compare")
    parser.add_argument("--results", type=Path, default=results.RESULTS)
    parser.add_argument("--commit", help="where there is no git checkout")
    parser.add_argument("--fit", type=Path, help=argparse.SUPPRESS)  # what the processes are started with
    options = parser.parse_args()
    torch.set_num_threads(1)  # on a busy machine threads would only wait for each other
    if options.fit:
        print(json.dumps(fit(options.fit, load=options.load)))
        return
    for kind in options.kinds:
        for number in options.numbers:
            record(kind, number, options)


def record(kind: str, number: int, options: argparse.Namespace) -> None:
    """Makes the images, measures one fit and removes the images, last: a million files take minutes to remove."""
    with tempfile.TemporaryDirectory(prefix="veilset-memory-") as place:
        started = time.perf_counter()
        images = MAKERS[kind](Path(place), number)
        print(f"made {number} images as {kind} in {time.perf_counter() - started:.0f} s", flush=True)
        found = measured(images, load=options.load)
        how = "read from" if options.load else "left in"
        results.append(
            options.results, method="sketch", dataset=f"generated {SIDE}x{SIDE}", accounting="proven",
            claim=found["claim"], epsilon_target=EPSILON,
            protocol=f"{number} images {how} {WORDS[kind]}, one fit",
            settings=SETTINGS, metric="peak-memory-mb", values=[found["megabytes"]], seeds=[0],
            seconds=found["seconds"], device=results.device_name(torch.device("cpu")), commit=options.commit,
        )  # fmt: skip


def measured(images: Path, *, load: bool) -> dict[str, Any]:
    words = [sys.executable, __file__, "--fit", str(images), *(["--load"] if load else [])]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def fit(path: Path, *, load: bool) -> dict[str, Any]:
    """One fit, on images that are left on disk however few they are, or on images in memory."""
    started = time.perf_counter()
    images = veilset.load(path) if load else stream(path, in_memory=0)
    model = veilset.fit(images, method="sketch", epsilon=EPSILON, device="cpu", declared_size=60_000, **SETTINGS)
    seconds = time.perf_counter() - started
    return {"megabytes": peak_megabytes(), "seconds": seconds, "claim": model.claim.to_json()}


def peak_megabytes() -> float:
    """VmHWM of this process; unlike ru_maxrss it holds nothing of the process that started this one."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit("this benchmark needs a system with /proc")


def pieces(number: int) -> Iterator[np.ndarray]:
    """Random images, some thousands at a time; smoothed once, so that they pack as pictures do."""
    draws = np.random.default_rng(0)
    for start in range(0, number, PIECE):
        noise = draws.integers(0, 256, (min(PIECE, number - start), SIDE, SIDE), dtype=np.uint16)
        yield ((noise + np.roll(noise, 1, 1) + np.roll(noise, 1, 2)) // 3).astype(np.uint8)


def make_npz(place: Path, number: int) -> Path:
    """An archive that is not packed, written piece by piece."""
    path = place / "images.npz"
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("x.npy", "w", force_zip64=True) as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": (number, SIDE, SIDE)}
            np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
            for piece in pieces(number):
                file.write(piece.tobytes())
        with archive.open("y.npy", "w") as file:
            np.lib.format.write_array(file, (np.arange(number) % CLASSES).astype(np.uint8))
    return path


def make_folder(place: Path, number: int) -> Path:
    """One PNG file an image, in a folder for each class."""
    root = place / "images"
    for label in range(CLASSES):
        (root / str(label)).mkdir(parents=True)
    for row, image in enumerate(image for piece in pieces(number) for image in piece):
        with open(f"{root}/{row % CLASSES}/image-{row:08}.png", "wb") as file:
            file.write(png(image))
    return root


def png(image: np.ndarray) -> bytes:
    """A grey image as a PNG file; written out here because Pillow's writer takes several times as long."""
    rows = np.pad(image, ((0, 0), (1, 0)))  # every row starts with the number of its filter, 0
    header = struct.pack(">IIBBBBB", image.shape[1], image.shape[0], 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 1)), (b"IEND", b""))
    sizes_and_sums = ((struct.pack(">I", len(data)), kind + data) for kind, data in parts)
    chunks = (size + body + struct.pack(">I", zlib.crc32(body)) for size, body in sizes_and_sums)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


MAKERS = {"npz": make_npz, "folder": make_folder}
WORDS = {"npz": "an .npz file", "folder": "a folder of PNG files"}

if __name__ == "__main__":
    main()
