"""Storage formats of less than one byte an element: packed integers, 4-bit floats with their group scales."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from kvcore.model.quantization.formats import (
    FLOAT32_BYTES,
    UNQUANTIZED,
    ExpertsShape,
    FormatBase,
    LinearShape,
    Misfit,
    Side,
)
from kvcore.units import ceil_div, round_up

INT32_BITS = 32
INT32_BYTES = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedInteger(FormatBase):
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
    """Inputs that are cut have to be whole groups: AWQ; other kernels of integers take what is left of one."""

    def linear_bytes(self, shape: LinearShape) -> int:
        groups = self._groups(shape.in_features)
        rows = shape.out_features
        weight = self._packed(shape.in_features) * rows * INT32_BYTES
        zeros = groups * self._packed(rows) * INT32_BYTES
        order = 2 * shape.in_features * INT32_BYTES if self.activation_order else 0
        return weight + zeros + groups * rows * shape.element_bytes + order

    def experts_bytes(self, shape: ExpertsShape) -> int:
        if self._falls_back(shape):
            return self._fallback_bytes(shape)
        hidden, intermediate = shape.hidden_size, shape.intermediate_size
        up_rows = shape.shards * intermediate
        weights = (self._packed(hidden) * up_rows + self._packed(intermediate) * hidden) * INT32_BYTES
        up_groups, down_groups = self._groups(hidden), self._groups(intermediate)
        scales = (up_groups * up_rows + down_groups * hidden) * shape.element_bytes
        zeros = (up_groups * self._packed(up_rows) + down_groups * self._packed(hidden)) * INT32_BYTES
        return shape.num_experts * (weights + scales + zeros) + self._expert_bias_bytes(shape)

    def _packed(self, elements: int) -> int:
        return elements * self.bits // INT32_BITS

    def experts_loading_bytes(self, shape: ExpertsShape) -> int:
        if shape.bias or self._falls_back(shape):
            return 0
        return -self._expert_bias_bytes(shape)

    def linear_misfit(self, shape: LinearShape, cut: Side | None) -> Misfit | None:
        """Cut inputs are whole groups.

        Source: vllm/model_executor/layers/quantization/awq.py:AWQLinearMethod.create_weights (0.8.5, 0.23.0),
        auto_awq.py (0.33.0).
        """
        whole = self.group_size <= 0 or shape.in_features % self.group_size == 0
        if whole or cut is not Side.INPUTS or not self.keeps_groups:
            return None
        return Misfit(side=Side.INPUTS, features=shape.in_features, multiple=self.group_size)

    def _groups(self, in_features: int) -> int:
        return 1 if self.group_size == -1 else in_features // self.group_size

    def _expert_bias_bytes(self, shape: ExpertsShape) -> int:
        if not (self.expert_bias or shape.bias):
            return 0
        rows = shape.shards * shape.intermediate_size + shape.hidden_size
        return shape.num_experts * rows * shape.element_bytes

    def _falls_back(self, shape: ExpertsShape) -> bool:
        aligned = self.group_size <= 0 or shape.intermediate_size % self.group_size == 0
        return not (aligned and shape.hidden_size % 128 == 0 and self.group_size in (-1, 32, 64, 128))

    def _fallback_bytes(self, shape: ExpertsShape) -> int:
        group = self.group_size if self.group_size > 0 else gcd(shape.intermediate_size, shape.hidden_size)
        while group > 32 and (shape.intermediate_size % group or shape.hidden_size % group):
            group //= 2
        hidden, intermediate = shape.hidden_size, shape.intermediate_size
        packing = 8 // self.bits
        up_rows = shape.shards * intermediate
        scales = (up_rows * (hidden // group) + hidden * (intermediate // group)) * shape.element_bytes
        zeros = 0
        if self.zero_points:
            zeros = (up_rows // packing) * (hidden // group) + (hidden // packing) * (intermediate // group)
        return shape.elements // packing + shape.num_experts * (scales + zeros)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackQuantized(FormatBase):
    """compressed-tensors `pack-quantized`: packed int32 rows, 16-bit scales a group, and the unpacked shape.

    Source: vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_wNa16.py,
    compressed_tensors_moe/compressed_tensors_moe_wna16.py (0.32).
    """

    bits: int
    group_size: int
    symmetric: bool = True

    def linear_bytes(self, shape: LinearShape) -> int:
        groups = self._groups(shape.in_features)
        rows = shape.out_features
        weight = rows * ceil_div(shape.in_features * self.bits, INT32_BITS) * INT32_BYTES
        zeros = 0 if self.symmetric else ceil_div(rows * self.bits, INT32_BITS) * groups * INT32_BYTES
        stored_shape = 2 * 8
        return weight + zeros + rows * groups * shape.element_bytes + stored_shape

    def experts_bytes(self, shape: ExpertsShape) -> int:
        packing = INT32_BITS // self.bits
        hidden, intermediate = shape.hidden_size, shape.intermediate_size
        up_rows = shape.shards * intermediate
        up_groups, down_groups = self._groups(hidden), self._groups(intermediate)
        weight = (up_rows * (hidden // packing) + hidden * (intermediate // packing)) * INT32_BYTES
        scales = (up_rows * up_groups + hidden * down_groups) * shape.element_bytes
        zeros = 0
        if not self.symmetric:
            zeros = ((up_rows // packing) * up_groups + (hidden // packing) * down_groups) * INT32_BYTES
        stored_shapes = 2 * 2 * shape.element_bytes
        return shape.num_experts * (weight + scales + zeros + stored_shapes) + shape.bias_bytes

    def _groups(self, in_features: int) -> int:
        return 1 if self.group_size == -1 else in_features // self.group_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Nvfp4(FormatBase):
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

    def linear_bytes(self, shape: LinearShape) -> int:
        rows, parts = shape.out_features, len(shape.outputs)
        per_row = shape.in_features // 2 + shape.in_features // self.group_size
        input_bytes = shape.element_bytes if self.is_weight_only else FLOAT32_BYTES
        return rows * per_row + parts * (FLOAT32_BYTES + input_bytes * self.input_scale)

    def experts_bytes(self, shape: ExpertsShape) -> int:
        hidden, intermediate = shape.hidden_size, shape.intermediate_size
        up_row = hidden // 2 + hidden // self.group_size
        down_row = intermediate // 2 + intermediate // self.group_size
        weights = shape.num_experts * (shape.shards * intermediate * up_row + hidden * down_row)
        scales = 2 * shape.num_experts * (shape.shards + 1)
        return weights + FLOAT32_BYTES * scales + shape.bias_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Mxfp8(FormatBase):
    """One byte a weight and one byte of scale a group of 32 inputs.

    Source: vllm/model_executor/layers/quantization/modelopt.py:KMxfp8Static, ModelOptMxFp8FusedMoE (0.32).
    """

    group_size: int = 32

    def linear_bytes(self, shape: LinearShape) -> int:
        return shape.out_features * (shape.in_features + shape.in_features // self.group_size)

    def experts_bytes(self, shape: ExpertsShape) -> int:
        return shape.elements + shape.elements // self.group_size + shape.bias_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Mxfp4(FormatBase):
    """Half a byte a weight and one byte of scale a group of 32 inputs; experts are padded to the kernel's tiles.

    The engine leaves linear layers of these checkpoints in the model's dtype unless `linears`.

    Source: vllm/model_executor/layers/quantization/mxfp4.py:GptOssMxfp4MoEMethod,
    layers/fused_moe/oracle/mxfp4.py:mxfp4_round_up_hidden_size_and_intermediate_size (0.32).
    """

    hidden_multiple: int = 1
    intermediate_multiple: int = 1
    linears: bool = False
    group_size: int = 32

    @property
    def expert_tiles(self) -> tuple[int, int]:
        return self.hidden_multiple, self.intermediate_multiple

    def linear_bytes(self, shape: LinearShape) -> int:
        if not self.linears:
            return UNQUANTIZED.linear_bytes(shape)
        return shape.out_features * (shape.in_features // 2 + shape.in_features // self.group_size)

    def experts_bytes(self, shape: ExpertsShape) -> int:
        hidden = round_up(shape.hidden_size, self.hidden_multiple)
        intermediate = round_up(shape.intermediate_size, self.intermediate_multiple)
        up = shape.shards * intermediate * (hidden // 2 + hidden // self.group_size)
        down = hidden * (intermediate // 2 + intermediate // self.group_size)
        bias = 2 * (shape.shards * intermediate + hidden) if shape.bias else 0
        return shape.num_experts * (up + down + bias)


@dataclass(frozen=True, kw_only=True, slots=True)
class BitsPerWeight(FormatBase):
    """A rate known only on average: bitsandbytes with its block scales, GGUF by the type of a tensor.

    Source: bits of the block layouts of llama.cpp (ggml-common.h) and of bitsandbytes (4-bit blocks of 64 inputs).

    Example:
        >>> BitsPerWeight(bits=4.5).linear_bytes(LinearShape(in_features=256, outputs=(64,), element_bytes=2))
        9216
    """

    bits: float

    def linear_bytes(self, shape: LinearShape) -> int:
        return round(shape.out_features * shape.in_features * self.bits / 8)

    def experts_bytes(self, shape: ExpertsShape) -> int:
        return round(shape.elements * self.bits / 8) + shape.bias_bytes
