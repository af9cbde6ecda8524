"""Stand-ins for a GPU, so that vLLM's own planner runs without one.

Nothing here answers a question about memory: every figure in a row comes from vLLM's own classes. The stand-ins
only say which card this is (capability, name, bytes), that its kernels exist, and that the other ranks do.

Import this before any model code of vLLM. Works with vllm 0.28 to 0.33.
"""

from __future__ import annotations

import collections
import importlib.machinery
import os
import sys
import types
from typing import Any

os.environ.update(
    CUDA_VISIBLE_DEVICES="",  # Triton accepts having no driver only when the list is set and empty
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_ALLOW_LONG_MAX_MODEL_LEN="1",
    VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    OMP_NUM_THREADS="1",  # a forked child must not wait for the parent's threads
    TOKENIZERS_PARALLELISM="false",
)

import torch
import torch.utils._device

CARDS: dict[str, tuple[tuple[int, int], str, float]] = {
    # catalogue id: compute capability, name, GiB that the driver shows
    "H100-80GB": ((9, 0), "NVIDIA H100 80GB HBM3", 79.19),
    "H200-141GB": ((9, 0), "NVIDIA H200", 139.8),
    "A100-80GB": ((8, 0), "NVIDIA A100-SXM4-80GB", 79.25),
    "L40S": ((8, 9), "NVIDIA L40S", 44.4),
    "B200": ((10, 0), "NVIDIA B200", 178.35),
}

COMPILED_EXTENSIONS = (
    "vllm._C",
    "vllm._C_stable_libtorch",
    "vllm._moe_C",
    "vllm._moe_C_stable_libtorch",
    "vllm._qutlass_C",
    "vllm._flashmla_C",
    "vllm._flashmla_extension_C",
    "vllm._flashkda_C",
    "vllm._deepselect_C",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
    "vllm.third_party.flashmla.flash_mla_interface",
    "vllm.third_party.deep_gemm",
)
KERNEL_NAMESPACES = ("_C", "_C_stable_libtorch", "_moe_C", "_C_cache_ops", "_C_custom_ar", "_C_cuda_utils")
KERNEL_NAMESPACES += (
    "_flashmla_C",
    "_flashmla_extension_C",
    "_vllm_fa2_C",
    "_vllm_fa3_C",
    "_qutlass_C",
    "_flashkda_C",
)
CONSTRUCTORS = ("arange", "empty", "empty_like", "empty_strided", "full", "linspace", "ones", "rand", "randn")
CONSTRUCTORS += ("tensor", "zeros", "zeros_like")
UNUSED_PACKAGES = ("torchvision", "torchaudio", "torchcodec", "cutlass", "cuda", "tilelang", "quack")


class _AnythingMeta(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __call__(cls, *args: Any, **_: Any) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) else cls

    def __getitem__(cls, _: Any) -> Any:
        return cls


class _Anything(metaclass=_AnythingMeta):
    """An object whose attributes and results are itself: a base class, a decorator that changes nothing."""


class _StandInModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything


class _StandInFinder:
    """Gives an empty module for the packages that a model file imports and the planner never calls.

    Who only asks whether a package is there (importlib.util.find_spec) gets the truth: it is not.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        del path, target
        if name.split(".")[0] not in UNUSED_PACKAGES and not name.startswith("vllm.vllm_flash_attn.cute"):
            return None
        frame = sys._getframe(1)
        while frame is not None and "importlib" in frame.f_code.co_filename:
            if frame.f_globals.get("__name__") == "importlib.util":
                return None
            frame = frame.f_back
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> types.ModuleType:
        return _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        del module


class _Kernel:
    """A compiled kernel: "is this supported" is answered with yes, and no result is ever used."""

    def __call__(self, *_: Any, **__: Any) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class _Kernels(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Kernel()


def _install_modules() -> None:
    for name in COMPILED_EXTENSIONS:
        sys.modules[name] = _StandInModule(name)
    sys.meta_path.append(_StandInFinder())  # last: what is really installed wins
    for namespace in KERNEL_NAMESPACES:
        setattr(torch.ops, namespace, _Kernels(namespace))
    register_fake = torch.library.register_fake

    def register_fake_of_real_kernels(name: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(name, str) and name.startswith("_"):
            return lambda function: function
        return register_fake(name, *args, **kwargs)

    torch.library.register_fake = register_fake_of_real_kernels


def _install_cuda() -> None:
    class Inert:
        def __init__(self, *_: Any, **__: Any) -> None: ...
        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

    torch.cuda.Stream = torch.cuda.Event = Inert
    torch.cuda.current_stream = lambda *_, **__: Inert()
    torch.cuda.set_device = lambda *_, **__: None
    torch.cuda.current_device = lambda: "cuda:0"
    torch.accelerator.empty_cache = torch.accelerator.synchronize = lambda *_, **__: None
    # The meta device context recognises constructors by identity: let it note them before they are wrapped.
    torch.utils._device._device_constructors()
    tolist = torch.Tensor.tolist  # of ALiBi slopes, which are values and not shapes
    torch.Tensor.to = _meta_for_cuda(torch.Tensor.to)
    torch.Tensor.tolist = lambda self: [0.0] * self.numel() if self.is_meta else tolist(self)
    for name in CONSTRUCTORS:
        setattr(torch, name, _on_meta_when_cuda(getattr(torch, name)))


def _on_meta_when_cuda(constructor: Any) -> Any:
    def construct(*args: Any, **kwargs: Any) -> Any:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "meta"
            kwargs.pop("pin_memory", None)
        return constructor(*args, **kwargs)

    return construct


def _is_cuda(device: Any) -> bool:
    return isinstance(device, str | torch.device) and str(device).startswith("cuda")


def _meta_for_cuda(to: Any) -> Any:
    def move(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = "meta"
        return to(self, *("meta" if _is_cuda(each) else each for each in args), **kwargs)

    return move


def _install_platform(card: str, devices: int) -> None:
    import vllm.platforms as platforms

    # The wheel calls itself a CPU build; asked as on a CUDA machine, Triton imports and kernels register.
    platforms.vllm_version_matches_substr = lambda _: False
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    capability, name, memory_gib = CARDS[card]

    class FakeCuda(NonNvmlCudaPlatform):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(*capability)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return name

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return int(memory_gib * (1 << 30))

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return True

        @classmethod
        def device_count(cls) -> int:
            return devices

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return 132

        @classmethod
        def is_integrated_gpu(cls, device_id: int = 0) -> bool:
            return False

        @classmethod
        def is_pin_memory_available(cls) -> bool:
            return False

        @classmethod
        def set_device(cls, device: Any) -> None: ...

        @classmethod
        def get_cuda_runtime_major(cls) -> int:
            return 12

        @classmethod
        def get_device_communicator_cls(cls) -> str:
            return "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"

    platforms._current_platform = FakeCuda()


def install_for_import() -> None:
    """Make an older release importable next to the newest one's libraries, as far as its planner needs it."""
    global UNUSED_PACKAGES
    UNUSED_PACKAGES += (
        "gguf",
        "diskcache",
        "mistral_common",
        "openai_harmony",
        "intel_extension_for_pytorch",
    )
    _install_modules()
    from transformers import AutoConfig

    register = AutoConfig.register
    AutoConfig.register = lambda name, config, exist_ok=False: register(name, config, exist_ok=True)


def install_npu() -> None:
    """Make vllm-ascend importable without a card: `torch_npu` has everything and does nothing.

    After transformers, which looks for it.
    """
    import transformers  # noqa: F401

    for name in (
        "torch_npu",
        "torch_npu.npu",
        "torch_npu.npu.streams",
        "torch_npu._C",
        "torchair",
        "torchair.scope",
    ):
        sys.modules[name] = _StandInModule(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    torch.npu = sys.modules["torch_npu.npu"]
    torch.ops.npu = _Kernels("npu")


def install(card: str, devices: int = 1024) -> None:
    """Make this process look like one rank of a machine with that card."""
    _install_modules()
    _install_cuda()
    _install_platform(card, devices)
    import vllm.utils.import_utils as import_utils

    import_utils.has_deep_gemm = import_utils.has_tilelang = lambda: True  # the CUDA wheel brings them
    # What the kernels of MXFP4 experts make of them is expert_kernels.toml's; without it they are built for Marlin.
    import_utils.has_triton_kernels = lambda: False
    import vllm.model_executor.models.registry as registry

    # Architectures are inspected in a subprocess, which would start without the stand-ins.
    registry._run_in_subprocess = lambda function: function()
    from vllm.model_executor.layers.fused_moe.expert_map_manager import ExpertMapManager

    ExpertMapManager.get_compressed_map_string = lambda _: ""  # a line of log that reads values
    import vllm.distributed.parallel_state as parallel_state
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    parallel_state.in_the_same_node_as = lambda group, source_rank=0: [True] * group.size()
    parallel_state._node_count = lambda group: 1
    MessageQueue.create_from_process_group = classmethod(lambda *_, **__: None)


def kv_cache_configs(config: Any, specs: list[dict[str, Any]], available: list[int]) -> Any:
    """The engine's own planner: until 0.32 one call, from 0.33 the groups first and then the sizes."""
    try:
        import vllm.v1.core.kv_cache_planning as planner
    except ImportError:
        import vllm.v1.core.kv_cache_utils as planner

        return planner.get_kv_cache_configs(config, specs, available)
    groups = planner.get_global_kv_cache_groups(config, specs)
    config.adjust_dcp_kv_cache_interleave_size(groups)
    return planner.get_kv_cache_configs(config, specs, available, groups)


class AnyTokenizer:
    """Every text is the one token 0. Some classes look up a special token while they are built."""

    def __init__(self) -> None:
        self.vocab: dict[str, int] = collections.defaultdict(int)

    def encode(self, *_: Any, **__: Any) -> list[int]:
        return [0]


def stand_in_for_tokenizers() -> None:
    """Give the model classes a tokenizer; a config.json has none with it."""
    import vllm.tokenizers

    vllm.tokenizers.cached_tokenizer_from_config = lambda *_, **__: AnyTokenizer()


def join_process_group(rank: int, world_size: int) -> None:
    """A process group in which every other rank exists on paper only."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    new_group = torch.distributed.new_group

    def new_fake_group(*args: Any, **kwargs: Any) -> Any:
        return new_group(*args, **{**kwargs, "backend": "fake"})

    torch.distributed.new_group = new_fake_group


class _Attributes(dict[str, Any]):
    """A nested object of a config, read by attribute, written as JSON."""

    def __getattr__(self, name: str) -> Any:
        try:
            return _with_attributes(self[name])
        except KeyError:
            raise AttributeError(name) from None


def _with_attributes(value: Any) -> Any:
    return _Attributes(value) if isinstance(value, dict) else value


WITHOUT_BYTES = {
    "initializer_factor": 1.0,
    "layer_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "layernorm_epsilon": 1e-5,
    "rms_norm_eps": 1e-6,
}
"""Keys that no byte depends on and the catalogue therefore leaves out; model code reads some of them."""


CLASS_NAMES = {
    "gte": "GteConfig",
    "new": "NewConfig",
    "nomic_bert": "NomicBertConfig",
    "xlm-roberta-flash": "XLMRobertaFlashConfig",
}
"""Class names of configs that the engine's model classes expect, by model_type."""


def admit_config(config: dict[str, object]) -> None:
    """Let transformers read a config whose class comes as code next to the checkpoint: its keys as they stand.

    The engine reads such a config by key too. No default of the missing code is known, so none is filled in.
    """
    from transformers import AutoConfig, PreTrainedConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from vllm.transformers_utils.config import _CONFIG_REGISTRY

    for inner in config.values():
        if isinstance(inner, dict) and "model_type" in inner:
            admit_config(inner)
    name = config.get("model_type")
    if not isinstance(name, str) or name in CONFIG_MAPPING or name in _CONFIG_REGISTRY:
        return

    class AsWritten(PreTrainedConfig):
        model_type = name

        def __init__(self, **keys: Any) -> None:
            keys = {**WITHOUT_BYTES, "rope_theta": 10000.0, **keys}
            if keys.get("use_sliding_window") is False:  # as the classes do that such a class derives from
                keys["sliding_window"] = None
            if "num_layers" in keys:
                keys.setdefault("num_hidden_layers", keys["num_layers"])
            if name.startswith("bailing"):
                keys.setdefault("head_dim", None)
            if "block_configs" in keys:
                keys["block_configs"] = [_with_attributes(block) for block in keys["block_configs"]]
            for key, value in keys.items():
                if key.endswith("_config") and key != "quantization_config" and isinstance(value, dict):
                    inner = value.get("model_type")
                    keys[key] = (
                        AutoConfig.for_model(**value)
                        if inner
                        else PreTrainedConfig(**(WITHOUT_BYTES | value))
                    )
            vars(self).update(keys)  # the base class reads some while it is being set up
            super().__init__(**keys)

    AsWritten.__name__ = CLASS_NAMES.get(name, "AsWritten")
    AutoConfig.register(name, AsWritten)
