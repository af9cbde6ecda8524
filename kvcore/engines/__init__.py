"""The engines: vLLM's answers, what the plug-ins change of them, and the registry of all."""
