"""`kvcore check` on a folder of sixty manifests from a shell, the interpreter's own start included.

Kinds and models differ from file to file; every third does not start, and is given a patch.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TURNS = 3
FILES = 60
LIMIT_S = 3.0
MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-32B", "Qwen/Qwen3-14B", "meta-llama/Llama-3.1-8B-Instruct")
CARDS = ("NVIDIA-L40S", "NVIDIA-L4", "NVIDIA-H100-80GB-HBM3")
POD = """apiVersion: apps/v1
kind: Deployment
metadata: {{name: d{at}}}
spec:
  replicas: 2
  template:
    spec:
      nodeSelector: {{nvidia.com/gpu.product: {card}}}
      containers:
      - name: engine
        image: vllm/vllm-openai:v0.33.0
        args: [--model={model}, --max-model-len={length}, --tensor-parallel-size=1]
        resources: {{limits: {{nvidia.com/gpu: 1}}}}
"""
COMPOSE = """services:
  s{at}:
    image: vllm/vllm-openai:v0.30.0
    ipc: host
    command: --model {model} --max-model-len {length}
    deploy: {{resources: {{reservations: {{devices: [{{driver: nvidia, count: 1}}]}}}}}}
"""
VALUES = """servingEngineSpec:
  modelSpec:
  - name: v{at}
    repository: vllm/vllm-openai
    tag: v0.19.0
    modelURL: {model}
    requestGPU: 1
    nodeSelectorTerms:
    - matchExpressions: [{{key: nvidia.com/gpu.product, operator: In, values: [{card}]}}]
    vllmConfig: {{maxModelLen: {length}}}
"""
SHELL = (
    "#!/bin/bash\nMODEL={model}\nexec vllm serve $MODEL --max-model-len {length} --enable-prefix-caching\n"
)
KINDS = (("yaml", POD), ("compose.yaml", COMPOSE), ("values.yaml", VALUES), ("sh", SHELL))


def written(folder: Path, others: Path | None = None) -> int:
    """Sixty files: those of a folder, if one is given, and made ones to fill up."""
    given = sorted(path for path in others.iterdir() if path.is_file())[:FILES] if others is not None else []
    for path in given:
        (folder / path.name).write_bytes(path.read_bytes())
    for at in range(FILES - len(given)):
        ending, text = KINDS[at % len(KINDS)]
        length = 40960 if at % 3 else 8192
        filled = text.format(
            at=at, model=MODELS[at % len(MODELS)], card=CARDS[at % len(CARDS)], length=length
        )
        (folder / f"made-{at}.{ending}").write_text(filled, "utf-8")
    return FILES


def seconds(folder: Path) -> float:
    """From the start of the program to its end."""
    command = [sys.executable, "-m", "kvcore", "check", str(folder), "--accelerator", "L40S-48GB", "--json"]
    start = time.perf_counter()
    subprocess.run(command, capture_output=True, check=False)
    return time.perf_counter() - start


def main() -> None:
    """Prints the median; a folder of manifests as argument is taken first, and filled up."""
    others = Path(sys.argv[1]) if __name__ == "__main__" and len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory() as name:
        count = written(Path(name), others)
        median = statistics.median(seconds(Path(name)) for _ in range(TURNS))
    print(f"manifests: kvcore check of {count} files in {median:.2f} s (at most {LIMIT_S:g} s)")


if __name__ == "__main__":
    main()
