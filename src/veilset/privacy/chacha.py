"""The ChaCha20 stream cipher (RFC 8439), vectorised in torch integers: the same bits on CPU and GPU.

On the CPU the `cryptography` package is faster, and used where it is installed; both give identical bytes (tested).
"""

from __future__ import annotations

import struct

import torch
from torch import Tensor

from veilset.compilation import fused_on_cuda

_WORD = 0xFFFFFFFF
_COLUMNS_AND_DIAGONALS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip
_CHUNK_BLOCKS = 1 << 18


def keystream_words(key: bytes, nonce: bytes, num_words: int, device: torch.device, *, counter: int = 0) -> Tensor:
    """The first `num_words` 32-bit words of the stream, as int64 values in [0, 2^32)."""
    if len(key) != 32 or len(nonce) != 12:
        raise ValueError("ChaCha20 takes a 32-byte key and a 12-byte nonce")
    if not num_words:
        return torch.empty(0, dtype=torch.int64, device=device)
    end = counter + (num_blocks := -(-num_words // 16))
    if end > 1 << 32:
        raise ValueError("one nonce gives at most 2^32 blocks; draw in smaller pieces")
    if device.type == "cpu" and (words := _library_words(key, nonce, num_blocks, counter)) is not None:
        return words[:num_words]
    starts = range(counter, end, _CHUNK_BLOCKS)
    pieces = [_blocks(key, nonce, start, min(_CHUNK_BLOCKS, end - start), device) for start in starts]
    return torch.cat(pieces)[:num_words]


def _library_words(key: bytes, nonce: bytes, num_blocks: int, counter: int) -> Tensor | None:
    try:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    except ImportError:
        return None
    cipher = Cipher(algorithms.ChaCha20(key, struct.pack("<I", counter) + nonce), mode=None)
    stream = bytearray(cipher.encryptor().update(bytes(64 * num_blocks)))
    return torch.frombuffer(stream, dtype=torch.int32).to(torch.int64) & _WORD


def _blocks(key: bytes, nonce: bytes, counter: int, num_blocks: int, device: torch.device) -> Tensor:
    """`num_blocks` consecutive blocks of 16 words each (RFC 8439, section 2.3)."""
    made = 1 << (num_blocks - 1).bit_length()  # the rest is thrown away: a kernel is compiled for each size
    words = struct.unpack("<16I", b"expand 32-byte k" + key + bytes(4) + nonce)
    start = torch.tensor(words, pin_memory=device.type == "cuda").to(device, non_blocking=True)  # kept till it is read
    state = initial = start[:, None].repeat(1, made)
    initial[12] = torch.arange(counter, counter + made, device=device)
    for _ in range(10):
        state = _double_round(state)
    return ((state + initial) & _WORD)[:, :num_blocks].T.reshape(-1)


@fused_on_cuda
def _double_round(words: Tensor) -> Tensor:
    state = list(words.unbind(0))
    for a, b, c, d in _COLUMNS_AND_DIAGONALS:
        for left, right, target, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[left] = (state[left] + state[right]) & _WORD
            mixed = state[target] ^ state[left]
            state[target] = ((mixed << bits) | (mixed >> (32 - bits))) & _WORD
    return torch.stack(state)
