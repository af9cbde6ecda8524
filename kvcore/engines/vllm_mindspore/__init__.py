"""vllm-mindspore: vLLM's plug-in that runs models in MindSpore on Ascend NPUs, and does not profile."""
