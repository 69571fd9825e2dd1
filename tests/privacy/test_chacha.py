"""Test vectors of RFC 8439: section 2.3.2, section 2.4.2 and appendix A.1."""

import struct

import pytest
import torch
from devices import NEEDS_CUDA

from veilset.privacy import chacha
from veilset.privacy.chacha import keystream_words

CPU = torch.device("cpu")
COUNTING_KEY = bytes(range(32))

VECTORS = [
    pytest.param(
        COUNTING_KEY, "000000090000004a00000000", 1,
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
        id="RFC 8439 section 2.3.2",
    ),
    pytest.param(
        COUNTING_KEY, "000000000000004a00000000", 1,
        "224f51f3401bd9e12fde276fb8631ded8c131f823d2c06e27e4fcaec9ef3cf78"
        "8a3b0aa372600a92b57974cded2b9334794cba40c63e34cdea212c4cf07d41b7"
        "69a6749f3f630f4122cafe28ec4dc47e26d4346d70b98c73f3e9c53ac40c5945"
        "398b6eda1a832c89c167eacd901d7e2bf363",
        id="RFC 8439 section 2.4.2",
    ),
    pytest.param(
        bytes(32), "00" * 12, 0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
        id="RFC 8439 appendix A.1, vector 1",
    ),
    pytest.param(
        bytes(32), "00" * 12, 1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
        id="RFC 8439 appendix A.1, vector 2",
    ),
    pytest.param(
        bytes(31) + b"\x01", "00" * 12, 1,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
        id="RFC 8439 appendix A.1, vector 3",
    ),
    pytest.param(
        b"\x00\xff" + bytes(30), "00" * 12, 2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
        id="RFC 8439 appendix A.1, vector 4",
    ),
    pytest.param(
        bytes(32), "00" * 11 + "02", 0,
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
        id="RFC 8439 appendix A.1, vector 5",
    ),
]  # fmt: skip


@pytest.fixture(params=["library", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to make the stream: the `cryptography` package, and torch integers (as on a GPU)."""
    if request.param == "torch":
        monkeypatch.setattr(chacha, "_library_words", lambda *_: None)
    return request.param


def stream(key: bytes, nonce: bytes, num_bytes: int, counter: int) -> bytes:
    words = keystream_words(key, nonce, -(-num_bytes // 4), CPU, counter=counter).tolist()
    return struct.pack(f"<{len(words)}I", *words)[:num_bytes]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize(("key", "nonce", "counter", "expected"), VECTORS)
def test_the_stream_is_that_of_the_standard(key: bytes, nonce: str, counter: int, expected: str) -> None:
    assert stream(key, bytes.fromhex(nonce), len(expected) // 2, counter).hex() == expected


@pytest.mark.parametrize("num_words", [0, 1, 15, 16, 17, 1000])
@pytest.mark.parametrize("counter", [0, 1, 77, 2**31, 2**32 - 70])
def test_library_and_torch_give_identical_bits(num_words: int, counter: int, monkeypatch: pytest.MonkeyPatch) -> None:
    key, nonce = bytes(range(7, 39)), bytes(range(12))
    by_library = keystream_words(key, nonce, num_words, CPU, counter=counter)
    monkeypatch.setattr(chacha, "_library_words", lambda *_: None)
    monkeypatch.setattr(chacha, "_CHUNK_BLOCKS", 9)  # so that chunks join inside this small stream
    by_torch = keystream_words(key, nonce, num_words, CPU, counter=counter)
    assert by_library.dtype == by_torch.dtype == torch.int64
    assert torch.equal(by_library, by_torch)


@NEEDS_CUDA
@pytest.mark.parametrize("num_words", [1, 1000, 930_000, 16 * (chacha._CHUNK_BLOCKS + 3)])
def test_compiled_for_cuda_the_stream_has_the_same_bits(num_words: int) -> None:
    key, nonce = bytes(range(7, 39)), bytes(range(12))
    on_cuda = keystream_words(key, nonce, num_words, torch.device("cuda"), counter=5)
    assert torch.equal(on_cuda.cpu(), keystream_words(key, nonce, num_words, CPU, counter=5))


@pytest.mark.usefixtures("path")
def test_a_stream_continues_at_its_counter() -> None:
    whole = stream(COUNTING_KEY, bytes(12), 64 * 6, 0)
    assert stream(COUNTING_KEY, bytes(12), 64 * 4, 2) == whole[128:]


@pytest.mark.parametrize(
    ("key", "nonce", "words", "counter"),
    [(bytes(31), bytes(12), 1, 0), (bytes(32), bytes(8), 1, 0), (bytes(32), bytes(12), 17, 2**32 - 1)],
    ids=["short key", "short nonce", "past the last block"],
)
def test_misuse_is_refused(key: bytes, nonce: bytes, words: int, counter: int) -> None:
    with pytest.raises(ValueError):
        keystream_words(key, nonce, words, CPU, counter=counter)
