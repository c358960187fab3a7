"""The IDX format of the MNIST family, plain or gzipped, read strictly.

A file is: two zero bytes, one byte for the type (8: unsigned byte), one byte for the number of
dimensions, each dimension as a big-endian uint32, then the values. Nothing may follow them.

Source: Y. LeCun, C. Cortes and C. Burges, "The MNIST database", section "File formats".
"""

import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from labcore.datasets.errors import DataError

UNSIGNED_BYTE = 8
GZIP = b"\x1f\x8b"
LARGEST = 64 * 2**20
"""Bytes read of any file, compressed or not: no file of the family is larger."""


def read_bytes(file: Path) -> bytes:
    """The content of a file, uncompressed if its first bytes, not its name, say gzip.

    Raises:
        DataError: the file cannot be read, is larger than `LARGEST`, or is damaged as a gzip file.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(LARGEST + 1)
    except OSError as error:
        raise DataError(f"The data file {file} cannot be read ({error.strerror}).") from error
    if content.startswith(GZIP):
        content = _gunzip(content, file)
    if len(content) > LARGEST:
        raise DataError(
            f"The data file {file} is not an IDX file of images or labels: expected at most "
            f"{LARGEST:,} bytes, found more."
        )
    return content


def _gunzip(content: bytes, file: Path) -> bytes:
    # As a bounded piece: a small foreign file may unpack to more than the memory holds.
    unzip = zlib.decompressobj(wbits=31)
    try:
        unpacked = unzip.decompress(content, LARGEST + 1)
    except zlib.error as error:
        raise DataError(
            f"The data file {file} is damaged: expected a whole gzip file, found one that does "
            f"not unpack ({error})."
        ) from error
    if len(unpacked) <= LARGEST and not unzip.eof:
        raise DataError(
            f"The data file {file} is truncated: expected a whole gzip file, found one that ends "
            f"after {len(content):,} bytes, in the middle of its data."
        )
    if unzip.unused_data:
        raise DataError(
            f"The data file {file} is damaged: expected one gzip file, found "
            f"{len(unzip.unused_data):,} more bytes after its end."
        )
    return unpacked


def parse(content: bytes, file: Path) -> Tensor:
    """The values of an IDX file of unsigned bytes: uint8, in the shape that its header gives.

    Args:
        content: the whole file, uncompressed.
        file: its name, for the error.

    Raises:
        DataError: the header is not that of such a file, or the length is not what it promises.
    """
    dimensions = content[3] if len(content) > 3 else 0
    start = 4 + 4 * dimensions
    if content[:3] != bytes([0, 0, UNSIGNED_BYTE]) or not dimensions or len(content) < start:
        raise DataError(
            f"The data file {file} is not an IDX file of unsigned bytes: expected it to begin with "
            f"00 00 08 and its dimensions, found {content[:4].hex(' ') or 'nothing'} "
            f"({len(content):,} bytes)."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    promised, found = math.prod(shape), len(content) - start
    if promised != found:
        state = "truncated" if found < promised else "damaged"
        raise DataError(
            f"The data file {file} is {state}: expected the {in_words(shape)} = {promised:,} "
            f"values that its header promises, found {found:,}."
        )
    # The copy is writable, as torch wants its memory.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[start:].view(shape)


def in_words(shape: tuple[int, ...]) -> str:
    """A shape as people write it: 60,000 × 28 × 28."""
    return " × ".join(f"{size:,}" for size in shape)
