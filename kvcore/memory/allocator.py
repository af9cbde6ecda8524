"""What PyTorch's caching allocator counts for a tensor: a block is not always cut to size.

"Model loading took" is a difference of allocated bytes, and a block that is not split counts whole. So a model whose
matrices are no multiples of 2 MiB loads a little larger than its parameters.
"""

from __future__ import annotations

from typing import Final

from kvcore.units import MIB, round_up

MIN_BLOCK_BYTES: Final = 512
SMALL_BYTES: Final = 1 * MIB
"""Up to here tensors share small segments; a remainder above it is split off and used again."""
SHARED_SEGMENT_BYTES: Final = 20 * MIB
"""Tensors above SMALL_BYTES and below OWN_SEGMENT_BYTES share segments of this size."""
OWN_SEGMENT_BYTES: Final = 10 * MIB
"""From here on a tensor has a segment of its own, a multiple of SEGMENT_STEP_BYTES."""
SEGMENT_STEP_BYTES: Final = 2 * MIB
"""Source of all five: pytorch c10/cuda/CUDACachingAllocator.cpp (2.3 to 2.11), kMinBlockSize and following."""


def allocated_bytes(tensor_bytes: int, max_split_bytes: int | None = None) -> int:
    """Bytes that the allocator counts for one tensor of `tensor_bytes`.

    Blocks are multiples of 512 bytes. A segment of its own is rounded up to 2 MiB; what is left over counts too when
    it is at most 1 MiB, or when the tensor is at least `max_split_bytes`. Of a shared segment the last tensor takes
    such a rest; here every tensor in it takes an equal share.

    Source: pytorch c10/cuda/CUDACachingAllocator.cpp:should_split, get_allocation_size (2.3 to 2.11).

    Example:
        >>> allocated_bytes(135_790_592) - 135_790_592, allocated_bytes(25_690_112) - 25_690_112
        (524288, 0)
    """
    if tensor_bytes <= 0:
        return 0
    block = round_up(tensor_bytes, MIN_BLOCK_BYTES)
    if block <= SMALL_BYTES:
        return block
    if block < OWN_SEGMENT_BYTES:
        count = SHARED_SEGMENT_BYTES // block
        rest = SHARED_SEGMENT_BYTES - count * block
        return block + (rest // count if rest <= SMALL_BYTES else 0)
    rest = round_up(block, SEGMENT_STEP_BYTES) - block
    is_whole = rest <= SMALL_BYTES or (max_split_bytes is not None and block >= max_split_bytes)
    return block + (rest if is_whole else 0)
