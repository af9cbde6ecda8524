"""Storage formats: how many bytes a module takes on a rank, and which modules stay in the model's dtype.

`formats`, `packed` are the arithmetic; `names` matches ignore lists; one reader a family of checkpoints;
`read.read_quantization` chooses the reader; `scheme.Quantization` is what the fold over weights asks.
"""

from kvcore.model.quantization.read import agree, read_quantization
from kvcore.model.quantization.scheme import NOT_QUANTIZED, Quantization

__all__ = ["NOT_QUANTIZED", "Quantization", "agree", "read_quantization"]
