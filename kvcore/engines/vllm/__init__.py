"""vLLM itself, on cards of NVIDIA, AMD, Intel and others."""
