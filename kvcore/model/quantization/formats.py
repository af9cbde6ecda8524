"""Storage formats of one byte an element and more: the bytes of one linear layer or one set of experts, on one
rank, as the engine allocates them.

A format knows nothing of names, checkpoints or deployments: the fold in `kvcore.memory.weights` hands it the shape
that one rank stores. Sizes are those of the parameters before post-processing, which repacks them in place; what
loading drops or adds for good is in `experts_loading_bytes`.
"""

from __future__ import annotations

from enum import StrEnum
from math import gcd

from msgspec import Struct
from msgspec.structs import replace

from kvcore.base.units import ceil_div

FLOAT32_BYTES = 4
SMALLEST_BLOCK = 32
"""Smallest side of a block of experts, whose blocks are refined."""


class LinearShape(Struct, frozen=True, kw_only=True):
    """A linear layer on one rank. `outputs` are the rows of each fused part; `element_bytes` the model's dtype."""

    in_features: int
    outputs: tuple[int, ...]
    element_bytes: int

    @property
    def out_features(self) -> int:
        """Rows of all parts."""
        return sum(self.outputs)


class ExpertsShape(Struct, frozen=True, kw_only=True):
    """The routed experts on one rank: `num_experts` of `intermediate_size` features each.

    `is_cut`: several ranks share one expert.
    """

    num_experts: int
    hidden_size: int
    intermediate_size: int
    element_bytes: int
    gated: bool = True
    bias: bool = False
    is_cut: bool = False

    @property
    def shards(self) -> int:
        """Gate and up, or up alone."""
        return 2 if self.gated else 1

    @property
    def elements(self) -> int:
        """Elements of all weights of all experts."""
        return self.num_experts * (self.shards + 1) * self.hidden_size * self.intermediate_size

    @property
    def rows(self) -> int:
        """Rows of the matrices of one expert."""
        return self.shards * self.intermediate_size + self.hidden_size

    @property
    def bias_bytes(self) -> int:
        """Bytes of the biases, where the model has them."""
        return self.num_experts * self.rows * self.element_bytes if self.bias else 0


class Side(StrEnum):
    """The input or the output features of a weight."""

    INPUTS = "inputs"
    OUTPUTS = "outputs"


class Misfit(Struct, frozen=True, kw_only=True):
    """Features on one rank that are no multiple of a block or group of the format."""

    side: Side
    features: int
    multiple: int


class Format(Struct, frozen=True):
    """How the weights of a linear layer, or of the routed experts, are stored.

    A format gives the bytes of a matrix, and those that a layer and an expert have once. Unless it overrides that,
    loading leaves it as it is and any shape fits.
    """

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        """Bytes of one matrix: its weights, with the scales and zero points of its rows, groups or blocks."""
        raise NotImplementedError

    def once_a_layer_bytes(self, shape: LinearShape) -> int:
        """Bytes of a linear layer besides its matrix."""
        return 0

    def once_an_expert_bytes(self, shape: ExpertsShape) -> int:
        """Bytes of the experts besides their matrices and the model's own biases."""
        return 0

    def linear_bytes(self, shape: LinearShape) -> int:
        """Bytes of the weight and its scales, without the bias."""
        weight = self.matrix_bytes(shape.out_features, shape.in_features, shape.element_bytes)
        return weight + self.once_a_layer_bytes(shape)

    def experts_bytes(self, shape: ExpertsShape) -> int:
        """Bytes of all weights, scales and biases."""
        hidden, intermediate = shape.hidden_size, shape.intermediate_size
        up = self.matrix_bytes(shape.shards * intermediate, hidden, shape.element_bytes)
        down = self.matrix_bytes(hidden, intermediate, shape.element_bytes)
        return shape.num_experts * (up + down + self.once_an_expert_bytes(shape)) + shape.bias_bytes

    def experts_loading_bytes(self, shape: ExpertsShape) -> int:
        """Bytes that post-processing adds for good (negative: drops)."""
        return 0

    def linear_misfit(self, shape: LinearShape, cut: Side | None) -> Misfit | None:
        """The misfit that the engine refuses, tensor parallelism having cut one side; None where the shape fits."""
        return None

    def experts_misfit(self, shape: ExpertsShape, *, refines: bool) -> Misfit | None:
        """The misfit of experts; `refines`: blocks are cut where experts are."""
        return None

    @property
    def expert_tiles(self) -> tuple[int, int]:
        """Multiples that hidden and intermediate size of the experts are padded to."""
        return 1, 1


class Unquantized(Format, frozen=True, kw_only=True):
    """Weights in the model's dtype.

    Source: vllm/model_executor/layers/linear.py:UnquantizedLinearMethod (0.32).

    Example:
        >>> Unquantized().linear_bytes(LinearShape(in_features=4096, outputs=(4096, 1024), element_bytes=2))
        41943040
    """

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        return rows * inputs * element_bytes


UNQUANTIZED = Unquantized()


class TensorScaled(Format, frozen=True, kw_only=True):
    """One byte a weight and one float32 scale a fused part; with `static_input` also an activation scale.

    Source: vllm/model_executor/layers/quantization/fp8.py:Fp8LinearMethod, Fp8MoEMethod (0.32).

    Example:
        >>> TensorScaled(static_input=True).linear_bytes(
        ...     LinearShape(in_features=64, outputs=(64, 64), element_bytes=2))
        8208
    """

    static_input: bool = False

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        return rows * inputs

    def once_a_layer_bytes(self, shape: LinearShape) -> int:
        return FLOAT32_BYTES * len(shape.outputs) * (1 + self.static_input)

    def once_an_expert_bytes(self, shape: ExpertsShape) -> int:
        return FLOAT32_BYTES * (shape.shards + 1 + 2 * self.static_input)


class ChannelScaled(Format, frozen=True, kw_only=True):
    """One byte a weight (FP8 or INT8) and one float32 scale an output row; `input_bytes` more a layer.

    `static_input`: an activation scale a fused part.

    Source: vllm/model_executor/layers/quantization/compressed_tensors/schemes/compressed_tensors_w8a8_fp8.py,
    compressed_tensors_w8a8_int8.py (0.32).
    """

    input_bytes: int = 0
    static_input: bool = False

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        return rows * (inputs + FLOAT32_BYTES)

    def once_a_layer_bytes(self, shape: LinearShape) -> int:
        return self.input_bytes + FLOAT32_BYTES * self.static_input * len(shape.outputs)

    def once_an_expert_bytes(self, shape: ExpertsShape) -> int:
        return 2 * FLOAT32_BYTES * self.static_input


class BlockScaled(Format, frozen=True, kw_only=True):
    """One byte a weight and one scale a block of `rows` × `columns`.

    Experts whose slice is no multiple of the block take a finer block, the greatest common divisor when that is at
    least 32; without one the block stays and the last is partial.

    Source: vllm/model_executor/layers/quantization/utils/fp8_utils.py:create_fp8_scale_parameter,
    layers/fused_moe/oracle/fp8.py:refine_fp8_moe_block_shape (0.32).

    Example:
        >>> BlockScaled(rows=128, columns=128).linear_bytes(
        ...     LinearShape(in_features=256, outputs=(192,), element_bytes=2)) - 256 * 192
        16
    """

    rows: int
    columns: int
    scale_bytes: int = FLOAT32_BYTES
    is_made_while_loading: bool = False
    """Whether it is made of a 16-bit checkpoint; then any shape is cut into blocks."""

    def matrix_bytes(self, rows: int, inputs: int, element_bytes: int) -> int:
        return rows * inputs + self.scale_bytes * ceil_div(rows, self.rows) * ceil_div(inputs, self.columns)

    def experts_bytes(self, shape: ExpertsShape) -> int:
        finer = 0 if self._takes(shape) else self._finer(shape)
        block = replace(self, rows=finer, columns=finer) if finer else self
        hidden, intermediate = shape.hidden_size, shape.intermediate_size
        up = shape.shards * block.matrix_bytes(intermediate, hidden, shape.element_bytes)
        down = block.matrix_bytes(hidden, intermediate, shape.element_bytes)
        return shape.num_experts * (up + down) + shape.bias_bytes

    def linear_misfit(self, shape: LinearShape, cut: Side | None) -> Misfit | None:
        """Cut inputs, and outputs that are cut or fused with others (the last one excepted) are whole blocks.

        Source: vllm/model_executor/layers/quantization/fp8.py:Fp8LinearMethod.create_weights (0.9.2),
        quantization/utils/fp8_utils.py:validate_fp8_block_shape (0.11.0, 0.33.0).
        """
        if self.is_made_while_loading:
            return None
        if cut is Side.INPUTS and shape.in_features % self.columns:
            return Misfit(side=Side.INPUTS, features=shape.in_features, multiple=self.columns)
        whole = shape.outputs if cut is Side.OUTPUTS else shape.outputs[:-1]
        for features in whole:
            if features % self.rows:
                return Misfit(side=Side.OUTPUTS, features=features, multiple=self.rows)
        return None

    def experts_misfit(self, shape: ExpertsShape, *, refines: bool) -> Misfit | None:
        """Experts are whole blocks, or where blocks are refined, whole ones of a finer block.

        Source: vllm/model_executor/layers/quantization/fp8.py:Fp8MoEMethod.create_weights (0.9.2, 0.28.0, 0.33.0),
        layers/fused_moe/oracle/fp8.py:refine_fp8_moe_block_shape (0.29.0).
        """
        size = shape.intermediate_size
        if self.is_made_while_loading or self._takes(shape) or (refines and self._finer(shape)):
            return None
        side, multiple = (Side.OUTPUTS, self.rows) if size % self.rows else (Side.INPUTS, self.columns)
        return Misfit(side=side, features=size, multiple=multiple)

    def _takes(self, shape: ExpertsShape) -> bool:
        size = shape.intermediate_size
        return size % self.rows == 0 and (not shape.is_cut or size % self.columns == 0)

    def _finer(self, shape: ExpertsShape) -> int:
        """The side of the finer block; 0 where there is none."""
        block = gcd(self.rows, self.columns, shape.intermediate_size, shape.hidden_size)
        return block if block >= SMALLEST_BLOCK else 0
