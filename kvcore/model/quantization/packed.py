"""Storage formats of less than one byte an element: packed integers, 4-bit floats with their group scales."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd

from msgspec.structs import replace

from kvcore.base.units import ceil_div, round_up
from kvcore.model.quantization.formats import (
    FLOAT32_BYTES,
    UNQUANTIZED,
    ExpertsShape,
    Format,
    LinearShape,
    Misfit,
    Side,
)

INT32_BITS = 32
INT32_BYTES = 4


class PackedInteger(Format, frozen=True, kw_only=True):
    """AWQ and GPTQ: integers packed into int32, 16-bit scales and packed zero points a group of inputs.

    `group_size` -1 is one group a row. `expert_bias`: GPTQ experts get zero biases, dropped after loading when the
    checkpoint has none. `activation_order`: an int32 order a column, twice.

    Source: vllm/model_executor/layers/quantization/auto_gptq.py, auto_awq.py (0.32); for experts whose slice is no
    multiple of the group moe_wna16.py:MoeWNA16Method (0.32); activation order gptq_marlin.py (0.19).

    Example:
        >>> PackedInteger(bits=4, group_size=128).linear_bytes(
        ...     LinearShape(in_features=256, outputs=(64,), element_bytes=2))
        8512
    """

    bits: int
    group_size: int
    zero_points: bool = True
    expert_bias: bool = False
    activation_order: bool = False
    keeps_groups: bool = False
    """Whether cut inputs must be whole groups: in AWQ; other integer kernels take part of one."""

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        groups = groups_of(inputs, self.group_size)
        zeros = groups * self._packed(rows) * INT32_BYTES
        return self._packed(inputs) * rows * INT32_BYTES + zeros + groups * rows * element_bytes

    def once_a_layer_bytes(self, shape: LinearShape) -> int:
        return 2 * shape.in_features * INT32_BYTES if self.activation_order else 0

    def once_an_expert_bytes(self, shape: ExpertsShape) -> int:
        return shape.rows * shape.element_bytes if self.expert_bias and not shape.bias else 0

    def experts_bytes(self, shape: ExpertsShape) -> int:
        return self._fallback_bytes(shape) if self._falls_back(shape) else Format.experts_bytes(self, shape)

    def experts_loading_bytes(self, shape: ExpertsShape) -> int:
        return 0 if self._falls_back(shape) else -shape.num_experts * self.once_an_expert_bytes(shape)

    def linear_misfit(self, shape: LinearShape, cut: Side | None) -> Misfit | None:
        """Cut inputs are whole groups.

        Source: vllm/model_executor/layers/quantization/awq.py:AWQLinearMethod.create_weights (0.8.5, 0.23.0),
        auto_awq.py (0.33.0).
        """
        whole = self.group_size <= 0 or shape.in_features % self.group_size == 0
        if whole or cut is not Side.INPUTS or not self.keeps_groups:
            return None
        return Misfit(side=Side.INPUTS, features=shape.in_features, multiple=self.group_size)

    def _packed(self, elements: int) -> int:
        return elements * self.bits // INT32_BITS

    def _falls_back(self, shape: ExpertsShape) -> bool:
        aligned = self.group_size <= 0 or shape.intermediate_size % self.group_size == 0
        return not (aligned and shape.hidden_size % 128 == 0 and self.group_size in (-1, 32, 64, 128))

    def _fallback_bytes(self, shape: ExpertsShape) -> int:
        hidden, intermediate = shape.hidden_size, shape.intermediate_size
        group = self.group_size if self.group_size > 0 else gcd(intermediate, hidden)
        while group > 32 and (intermediate % group or hidden % group):
            group //= 2
        packing = 8 // self.bits
        up_rows = shape.shards * intermediate
        scales = (up_rows * (hidden // group) + hidden * (intermediate // group)) * shape.element_bytes
        zeros = 0
        if self.zero_points:
            zeros = (up_rows // packing) * (hidden // group) + (hidden // packing) * (intermediate // group)
        return shape.elements // packing + shape.num_experts * (scales + zeros)


class PackQuantized(Format, frozen=True, kw_only=True):
    """compressed-tensors `pack-quantized`: packed int32 rows, 16-bit scales a group, and the unpacked shape.

    Source: vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_wNa16.py,
    compressed_tensors_moe/compressed_tensors_moe_wna16.py (0.32).
    """

    bits: int
    group_size: int
    symmetric: bool = True

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        packing = INT32_BITS // self.bits
        return self._bytes(rows, inputs, element_bytes, lambda elements: elements // packing)

    def linear_bytes(self, shape: LinearShape) -> int:
        weight = self._bytes(
            shape.out_features,
            shape.in_features,
            shape.element_bytes,
            lambda elements: ceil_div(elements * self.bits, INT32_BITS),
        )
        return weight + 2 * 8

    def once_an_expert_bytes(self, shape: ExpertsShape) -> int:
        return 2 * 2 * shape.element_bytes

    def _bytes(self, rows: int, inputs: int, element_bytes: int, packed: Callable[[int], int]) -> int:
        groups = groups_of(inputs, self.group_size)
        zeros = 0 if self.symmetric else packed(rows) * groups * INT32_BYTES
        return rows * packed(inputs) * INT32_BYTES + zeros + rows * groups * element_bytes


class Nvfp4(Format, frozen=True, kw_only=True):
    """Half a byte a weight, an FP8 scale a group of inputs, a float32 scale a part, and one for the activations.

    Source: vllm/model_executor/layers/quantization/modelopt.py:KNvfp4Static, ModelOptNvFp4FusedMoE;
    compressed_tensors/schemes/compressed_tensors_w4a4_nvfp4.py (0.32).

    Example:
        >>> Nvfp4().linear_bytes(LinearShape(in_features=64, outputs=(32,), element_bytes=2))
        1160
    """

    group_size: int = 16
    input_scale: bool = True
    is_weight_only: bool = False
    """The scale for the activations is then read in the model's dtype and dropped.

    Source: vllm/model_executor/layers/quantization/modelopt.py:_DropInputScale (0.32)."""

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        return rows * (inputs // 2 + inputs // self.group_size)

    def once_a_layer_bytes(self, shape: LinearShape) -> int:
        input_bytes = shape.element_bytes if self.is_weight_only else FLOAT32_BYTES
        return len(shape.outputs) * (FLOAT32_BYTES + input_bytes * self.input_scale)

    def once_an_expert_bytes(self, shape: ExpertsShape) -> int:
        return FLOAT32_BYTES * 2 * (shape.shards + 1)


class Mxfp8(Format, frozen=True, kw_only=True):
    """One byte a weight and one byte of scale a group of 32 inputs.

    Source: vllm/model_executor/layers/quantization/modelopt.py:KMxfp8Static, ModelOptMxFp8FusedMoE (0.32).
    """

    group_size: int = 32

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        return rows * (inputs + inputs // self.group_size)

    def experts_bytes(self, shape: ExpertsShape) -> int:
        return shape.elements + shape.elements // self.group_size + shape.bias_bytes


class Mxfp4(Format, frozen=True, kw_only=True):
    """Half a byte a weight and one byte of scale a group of 32 inputs; experts are padded to the kernel's tiles.

    The engine leaves linear layers of these checkpoints in the model's dtype unless `linears`.

    Source: vllm/model_executor/layers/quantization/mxfp4.py:GptOssMxfp4MoEMethod,
    layers/fused_moe/oracle/mxfp4.py:mxfp4_round_up_hidden_size_and_intermediate_size (0.32).
    """

    expert_tiles: tuple[int, int] = (1, 1)
    linears: bool = False
    group_size: int = 32

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        return rows * (inputs // 2 + inputs // self.group_size)

    def linear_bytes(self, shape: LinearShape) -> int:
        return Format.linear_bytes(self if self.linears else UNQUANTIZED, shape)

    def experts_bytes(self, shape: ExpertsShape) -> int:
        padded = replace(
            shape,
            hidden_size=round_up(shape.hidden_size, self.expert_tiles[0]),
            intermediate_size=round_up(shape.intermediate_size, self.expert_tiles[1]),
            element_bytes=2,
        )
        return Format.experts_bytes(self, padded)


class BitsPerWeight(Format, frozen=True, kw_only=True):
    """A rate known only on average: bitsandbytes with its block scales, GGUF by the type of a tensor.

    Source: bits of the block layouts of llama.cpp (ggml-common.h) and of bitsandbytes (4-bit blocks of 64 inputs).

    Example:
        >>> BitsPerWeight(bits=4.5).linear_bytes(LinearShape(in_features=256, outputs=(64,), element_bytes=2))
        9216
    """

    bits: float

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        return round(rows * inputs * self.bits / 8)

    def experts_bytes(self, shape: ExpertsShape) -> int:
        return round(shape.elements * self.bits / 8) + shape.bias_bytes


def groups_of(inputs: int, group_size: int) -> int:
    """Groups of inputs, of which -1 is the whole row."""
    return 1 if group_size == -1 else inputs // group_size
