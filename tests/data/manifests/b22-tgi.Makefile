MODEL ?= Qwen/Qwen3-8B
TP ?= 2
PORT := 8000
VLLM := .venv/bin/vllm
.PHONY: serve bench
serve:
	$(VLLM) serve $(MODEL) --port $(PORT) \
	  --tensor-parallel-size $(TP) --max-model-len 16384 $(EXTRA)
docker:
	docker run --gpus all vllm/vllm-openai:v0.10.1 --model $(MODEL) --max-model-len 4096
bench:
	$(VLLM) bench serve --model $(MODEL)
