"""The ChaCha20 stream cipher (RFC 8439), vectorised in torch integers: the same bits on CPU and GPU.

On the CPU the `cryptography` package computes the same stream faster and is used where it is installed; on a GPU the
stream is made where the noise is needed. Both give identical bytes (tested against the vectors of RFC 8439).
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_CONSTANTS = struct.unpack("<4I", b"expand 32-byte k")
_COLUMNS_AND_DIAGONALS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
_CHUNK_BLOCKS = 1 << 18


def keystream_words(key: bytes, nonce: bytes, num_words: int, device: torch.device, *, counter: int = 0) -> Tensor:
    """The first `num_words` 32-bit words of the stream, as int64 values in [0, 2^32)."""
    if len(key) != 32 or len(nonce) != 12:
        raise ValueError("ChaCha20 takes a 32-byte key and a 12-byte nonce")
    num_blocks = -(-num_words // 16)
    if counter + num_blocks > 1 << 32:
        raise ValueError("one nonce gives at most 2^32 blocks; draw in smaller pieces")
    if device.type == "cpu" and (words := _library_words(key, nonce, num_blocks, counter)) is not None:
        return words[:num_words]
    pieces = [
        _blocks(key, nonce, start, min(_CHUNK_BLOCKS, counter + num_blocks - start), device)
        for start in range(counter, counter + num_blocks, _CHUNK_BLOCKS)
    ]
    return torch.cat(pieces)[:num_words] if pieces else torch.empty(0, dtype=torch.int64, device=device)


def _library_words(key: bytes, nonce: bytes, num_blocks: int, counter: int) -> Tensor | None:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    except ImportError:
        return None
    cipher = Cipher(algorithms.ChaCha20(key, struct.pack("<I", counter) + nonce), mode=None)
    stream = bytearray(cipher.encryptor().update(bytes(64 * num_blocks)))
    if not stream:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(stream, dtype=torch.int32).to(torch.int64) & _WORD


def _blocks(key: bytes, nonce: bytes, counter: int, num_blocks: int, device: torch.device) -> Tensor:
    """`num_blocks` consecutive blocks of 16 words each (RFC 8439, section 2.3)."""
    initial = torch.empty(16, num_blocks, dtype=torch.int64, device=device)
    initial[:4] = torch.tensor(_CONSTANTS, device=device)[:, None]
    initial[4:12] = torch.tensor(struct.unpack("<8I", key), device=device)[:, None]
    initial[12] = torch.arange(counter, counter + num_blocks, device=device)
    initial[13:] = torch.tensor(struct.unpack("<3I", nonce), device=device)[:, None]
    state = list(initial.unbind(0))
    for _ in range(10):
        for a, b, c, d in _COLUMNS_AND_DIAGONALS:
            _quarter_round(state, a, b, c, d)
    return ((torch.stack(state) + initial) & _WORD).T.reshape(-1)


def _quarter_round(state: list[Tensor], a: int, b: int, c: int, d: int) -> None:
    for left, right, target, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[left] = (state[left] + state[right]) & _WORD
        mixed = state[target] ^ state[left]
        state[target] = ((mixed << bits) | (mixed >> (32 - bits))) & _WORD
