"""vllm-ascend: vLLM's plug-in for Ascend NPUs."""
