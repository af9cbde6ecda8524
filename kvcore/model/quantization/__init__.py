"""Storage formats: how many bytes a module takes on a rank, and which modules stay in the model's dtype.

`formats` and `packed` are the arithmetic; `modules` asks lists of names, by `patterns`; one reader a family of files;
`read.read_quantization` chooses the reader; the fold over weights asks its `scheme.Quantization`.
"""

from kvcore.model.quantization.read import agree, read_quantization
from kvcore.model.quantization.scheme import NOT_QUANTIZED, Quantization

__all__ = ["NOT_QUANTIZED", "Quantization", "agree", "read_quantization"]
