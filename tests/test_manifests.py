"""Files that people deploy, each kind by a small one of our own: what is found in them, "
"and what is named as unknown."""

from typing import Any

import pytest

from kvcore.manifests.files import Read, Source, read_files
from kvcore.manifests.workload import Workload
from kvcore.preflight.outcome import Outcome, check_files

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: chat}
spec:
  replicas: 3
  template:
    spec:
      initContainers:
      - {name: fetch, image: "busybox:1", command: [sh, -c, "echo vllm serve no/model"]}
      containers:
      - name: proxy
        image: nginx:1.27
      - name: engine
        image: registry.example.org/vllm/vllm-openai:v0.19.0
        command: [vllm, serve]
        args: ["$(MODEL)", "--max-model-len=16k", "--max-num-seq", "8", "--max-num-seqs=16", "--api-key", "hidden-one"]
        env:
        - {name: OWNER, value: example}
        - {name: MODEL, value: "$(OWNER)/model"}
        - {name: HF_TOKEN, value: hidden-two}
        - name: VLLM_API_KEY
          valueFrom: {secretKeyRef: {name: keys, key: vllm}}
        resources:
          limits: {memory: 96Gi, nvidia.com/gpu: "2"}
        volumeMounts: [{name: shm, mountPath: /dev/shm}]
      volumes:
      - {name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}
      nodeSelector: {nvidia.com/gpu.product: NVIDIA-L40S, kubernetes.io/arch: amd64}
"""


def read(*files: str, names: tuple[str, ...] = ()) -> Read:
    given = names or tuple(f"file{index}" for index in range(len(files)))
    return read_files(Source(name, text) for name, text in zip(given, files, strict=True))


def only(*files: str, names: tuple[str, ...] = ()) -> Workload:
    found = read(*files, names=names)
    assert not found.problems, found.problems
    (workload,) = found.workloads
    return workload


def test_a_deployment_gives_all_that_it_says() -> None:
    found = read(DEPLOYMENT)
    (one,) = found.workloads
    assert (one.name, one.engine, one.release, one.model) == ("chat", "vllm", "0.19.0", "example/model")
    assert one.request == {"max_model_len": 16000, "max_num_seqs": 16}
    assert (one.card, one.gpus, one.replicas) == ("NVIDIA-L40S", 2, 3)
    assert (one.host_memory_gib, one.shm_gib) == (96, 8)
    assert one.place.line == 13
    assert {(other.name, other.role) for other in found.others} == {
        ("proxy", "sidecar"),
        ("fetch", "init container"),
    }


def test_no_secret_is_kept() -> None:
    assert "hidden" not in repr(read(DEPLOYMENT))


def test_no_login_of_an_address_is_shown() -> None:
    text = (
        "export LMCACHE_REMOTE_URL=redis://me:hidden@cache:6379\n"
        "vllm serve a/b --otlp-traces-endpoint http://x:hidden@y\n"
    )
    one = only(text)
    assert "LMCACHE_REMOTE_URL" in one.environment
    assert "hidden" not in repr((one.environment, one.extra))


SCRIPT_ARGUMENTS = {"tensor_parallel_size": 4, "max_model_len": 8192, "enforce_eager": True}
FILES: dict[str, tuple[str, tuple[str | None, str | None, str | None], dict[str, Any]]] = {
    "shell": (
        'M=a/b\nTP=${TP:-4}\nFLAGS=(--max-model-len 8192)\n[ "$EAGER" = no ] || FLAGS+=(--enforce-eager)\n'
        'echo "vllm serve other/model"\n# vllm serve c/d --max-num-seqs 1\n'
        'exec uv run vllm serve "$M" -tp "$TP" "${FLAGS[@]}" $MORE \\\n# --max-num-seqs 2\n'
        "vllm bench serve --model a/b\n",
        (None, None, "a/b"), SCRIPT_ARGUMENTS,
    ),
    "docker run": (
        "docker run --rm --gpus '\"device=0,1\"' --shm-size 4g -e VLLM_USE_V1=1 vllm/vllm-openai:v0.11.0 \\\n"
        "  --model a/b --served-model-name x y --max-model-len 8192",
        (None, "0.11.0", "a/b"), {"max_model_len": 8192},
    ),
    "another project's tag": (
        "docker run lmcache/vllm-openai:v0.3.5 a/b --max-model-len 8192", (None, None, "a/b"), {"max_model_len": 8192}
    ),
    "compose": (
        "x-base: &base\n  image: ${IMAGE:-vllm/vllm-openai:v0.30.0}\n  shm_size: 2gb\n"
        "services:\n  llm:\n    <<: *base\n"
        "    entrypoint: [bash, -c, 'exec vllm serve $${E:+--enforce-eager} \"$$@\"', --]\n"
        "    command: [--model, a/b, --tensor-parallel-size, '${TP:-4}', --max-model-len, '${LEN-8192}']\n",
        ("llm", "0.30.0", "a/b"), {"tensor_parallel_size": 4, "max_model_len": 8192},
    ),
    "KServe": (
        "apiVersion: serving.kserve.io/v1alpha1\nkind: LLMInferenceService\nmetadata: {name: big}\nspec:\n"
        "  model: {uri: 'hf://a/b', name: a/b}\n"
        "  parallelism: {tensor: 2, data: 8, dataLocal: 4, expert: true}\n"
        "  template:\n    containers:\n    - name: main\n      image: ghcr.io/llm-d/llm-d-cuda:v0.9.0\n"
        "      env: [{name: VLLM_ADDITIONAL_ARGS, value: --max-model-len 8192 --enforce-eager}]\n",
        ("big", None, "a/b"),
        {"tensor_parallel_size": 2, "data_parallel_size": 8, "enable_expert_parallel": True, "max_model_len": 8192,
         "enforce_eager": True},
    ),
    "InferenceService": (
        "apiVersion: serving.kserve.io/v1beta1\nkind: InferenceService\nmetadata: {name: i}\nspec:\n"
        "  predictor:\n    model:\n"
        "      modelFormat: {name: huggingface}\n"
        "      args: [--model_id=a/b, --model_name=q, --max-model-len=8192]\n",
        ("i", None, "a/b"), {"max_model_len": 8192},
    ),
    "production-stack": (
        "servingEngineSpec:\n  modelSpec:\n  - name: m\n    repository: vllm/vllm-openai\n"
        "    tag: v0.9.2\n    modelURL: a/b\n"
        "    requestGPU: 2\n    vllmConfig: {tensorParallelSize: 2, maxModelLen: 8192, "
        "extraArgs: ['--enforce-eager']}\n",
        ("m", "0.9.2", "a/b"), {"tensor_parallel_size": 2, "max_model_len": 8192, "enforce_eager": True},
    ),
    "modelservice": (
        "modelArtifacts: {uri: 'hf://a/b', name: a/b}\ndecode:\n  parallelism: {tensor: 2}\n  containers:\n"
        "  - {name: vllm, image: 'ghcr.io/llm-d/llm-d-cuda:v0.8.1', modelCommand: vllmServe, "
        "args: ['--max-model-len=8192']}\n",
        ("decode", None, "a/b"), {"tensor_parallel_size": 2, "max_model_len": 8192},
    ),
    "Ray": (
        "applications:\n- args:\n    llm_configs:\n"
        "    - model_loading_config: {model_id: q, model_source: a/b}\n"
        "      accelerator_type: L4\n      engine_kwargs: {max_model_len: 8192, enforce_eager: true}\n",
        ("q", None, "a/b"), {"max_model_len": 8192, "enforce_eager": True},
    ),
    "Dynamo": (
        "apiVersion: nvidia.com/v1alpha1\nkind: DynamoGraphDeployment\nmetadata: {name: g}\nspec:\n"
        "  backendFramework: vllm\n"
        "  services:\n    Frontend: {componentType: frontend}\n    Worker:\n      componentType: worker\n"
        "      resources: {limits: {gpu: '2'}}\n      extraPodSpec:\n        mainContainer:\n"
        "          image: nvcr.io/nvidia/ai-dynamo/vllm-runtime:1.4.0\n          command: [/bin/bash, -c]\n"
        "          args: ['exec python3 -m dynamo.vllm --model a/b --tensor-parallel-size 2']\n",
        ("Worker", None, "a/b"), {"tensor_parallel_size": 2},
    ),
    "KAITO": (
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata:\n  inference_config.yaml: |\n    vllm:\n"
        "      max-model-len: 8192\n---\napiVersion: kaito.sh/v1beta1\nkind: Workspace\nmetadata: {name: w}\n"
        "resource: {instanceType: g5.8xlarge}\ninference: {preset: {name: phi-4}, config: c}\n",
        ("w", None, "phi-4"), {"max_model_len": 8192},
    ),
    "SkyPilot": (
        "envs: {M: a/b}\nresources: {accelerators: 'H100:4', "
        "image_id: 'docker:vllm/vllm-openai:v0.10.0'}\nnum_nodes: 2\n"
        "run: |\n  vllm serve $M --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE \\\n"
        "    --pipeline-parallel-size $SKYPILOT_NUM_NODES\n",
        (None, "0.10.0", "a/b"), {"tensor_parallel_size": 4, "pipeline_parallel_size": 2},
    ),
    "llama-swap": (
        "models:\n  q:\n    cmd: |\n      docker run --rm -p ${PORT}:8000\n"
        "      vllm/vllm-openai:v0.27.1\n      --model a/b\n",
        ("q", "0.27.1", "a/b"), {},
    ),
    "the engine's own config": (
        "model: a/b\nmax-model-len: 8192\nno-enable-prefix-caching: true\n", (None, None, "a/b"),
        {"max_model_len": 8192, "enable_prefix_caching": False},
    ),
    "systemd": (
        "[Unit]\nDescription=x\n[Service]\nEnvironment=IMAGE=vllm/vllm-openai:v0.16.0\n"
        "ExecStart=/usr/bin/docker run --name m \\\n  ${IMAGE} --model a/b --max-num-seqs 4\n",
        (None, "0.16.0", "a/b"), {"max_num_seqs": 4},
    ),
    "supervisord": (
        "[program:a]\ncommand=/venv/bin/python3 -m vllm.entrypoints.openai.api_server --model a/b "
        "--max-num-seqs 4\n",
        ("a", None, "a/b"), {"max_num_seqs": 4},
    ),
    "Python": (
        "from vllm import LLM, SamplingParams\nimport os\nNAME = 'a/b'\n"
        "llm = LLM(NAME, tensor_parallel_size=int(os.environ.get('TP', '2')), "
        "dtype='half' if True else 'auto')\n"
        "params = SamplingParams(max_tokens=9)\n",
        (None, None, "a/b"), {"tensor_parallel_size": 2, "dtype": "half"},
    ),
    "dstack": (
        "type: service\nname: d\nimage: vllm/vllm-openai:v0.19.0\nenv: [M=a/b, HF_TOKEN]\ncommands:\n"
        "- vllm serve $M --tensor-parallel-size $DSTACK_GPUS_NUM\nresources: {gpu: 'H100:2'}\n",
        ("d", "0.19.0", "a/b"), {"tensor_parallel_size": 2},
    ),
    "GPUStack": (
        "- name: g\n  source: huggingface\n  huggingface_repo_id: a/b\n  backend: vLLM\n"
        "  backend_parameters: [--max-model-len=8192, --tensor-parallel-size 2]\n  backend_version: 0.10.0\n",
        ("g", "0.10.0", "a/b"), {"max_model_len": 8192, "tensor_parallel_size": 2},
    ),
    "Terraform": (
        'locals {\n  args = ["a/b", "--max-model-len", "8k"]\n}\nresource "kubernetes_deployment" "llm" {\n  spec {\n'
        '    container {\n      image = "vllm/vllm-openai:v0.23.0"\n'
        '      args = concat(local.args, ["--enforce-eager"])\n'
        '      # args = ["c/d"]\n    }\n  }\n}\n',
        ("kubernetes_deployment", "0.23.0", "a/b"), {"max_model_len": 8000, "enforce_eager": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_a_kind_of_file(kind: str) -> None:
    text, named, request = FILES[kind]
    one = only(text)
    assert (one.name, one.release, one.model) == named
    assert one.request == request
    assert one.undefined == ()
    assert one.place.file == "file0"
    assert 1 <= one.place.line <= text.count("\n") + 1


def test_limits_of_a_docker_run() -> None:
    one = only(FILES["docker run"][0])
    assert (one.gpus, one.shm_gib, one.served_name, dict(one.environment)) == (
        2,
        4,
        "x",
        {"VLLM_USE_V1": "1"},
    )


def test_a_unit_finds_its_script_and_its_variables_come_first() -> None:
    unit = "[Service]\nEnvironment=SEQS=3\nExecStart=/bin/bash %h/run-it.sh\n"
    script = "SEQS=${SEQS:-64}\nvllm serve a/b --max-num-seqs $SEQS\n"
    one = only(unit, script, names=("x.service", "run-it.sh"))
    assert (one.model, one.request) == ("a/b", {"max_num_seqs": 3})


def test_a_template_takes_its_values() -> None:
    template = (
        'apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: {{ include "x.name" . }}\nspec:\n'
        "  template:\n    spec:\n"
        '      containers:\n      - name: c\n        image: "{{ .Values.image.repository }}'
        ':{{ .Values.image.tag }}"\n'
        '        args: ["--model={{ .Values.model }}", "--max-model-len={{ .Values.len }}"]\n'
        "        resources:\n          {{- toYaml .Values.resources | nindent 10 }}\n"
    )
    values = (
        "image: {repository: vllm/vllm-openai, tag: v0.19.1}\nmodel: a/b\n"
        "resources: {limits: {nvidia.com/gpu: 1}}\n"
    )
    one = only(template, values, names=("t.yaml", "values.yaml"))
    assert (one.release, one.model, one.gpus) == ("0.19.1", "a/b", 1)
    assert one.request == {"max_model_len": None}
    assert ".Values.len" in one.undefined


def test_a_template_in_a_folder_hides_no_other_file() -> None:
    template = "apiVersion: v1\nkind: Service\nmetadata: {name: {{ .Values.name }}}\n"
    compose = "services:\n  llm: {image: 'vllm/vllm-openai:v0.19.0', command: --model a/b --max-num-seqs 2}\n"
    values = "services: {type: ClusterIP}\nname: x\n"
    names = ("chart/templates/t.yaml", "compose.yaml", "chart/values.yaml")
    assert only(template, compose, values, names=names).request == {"max_num_seqs": 2}


def test_a_base_config_stands_under_a_service() -> None:
    service = (
        "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceService\nmetadata: {name: s}\nspec:\n"
        "  baseRefs: [{name: b}]\n"
        "  model: {name: a/b}\n  template: {containers: [{name: main, "
        "resources: {limits: {nvidia.com/gpu: 1}}}]}\n"
    )
    base = (
        "apiVersion: serving.kserve.io/v1alpha2\nkind: LLMInferenceServiceConfig\nmetadata: {name: b}\n"
        "spec:\n  template:\n"
        "    containers:\n    - name: main\n      image: x/llm-d-cuda:v1\n"
        "      resources: {limits: {memory: 32Gi}}\n"
        "      env: [{name: VLLM_ADDITIONAL_ARGS, value: '--block-size 64'}]\n"
    )
    one = only(service, base)
    assert (one.model, one.request, one.gpus, one.host_memory_gib) == ("a/b", {"block_size": 64}, 1, 32)


def test_nodes_of_one_engine_are_one_workload() -> None:
    pod = (
        "      spec:\n        containers:\n        - name: c\n          image: vllm/vllm-openai:v0.20.0\n"
        "          command: [sh, -c, 'vllm serve a/b -tp 8 --nnodes $(LWS_GROUP_SIZE) --node-rank {rank}']\n"
    )
    text = (
        "apiVersion: leaderworkerset.x-k8s.io/v1\nkind: LeaderWorkerSet\nmetadata: {name: l}\nspec:\n"
        "  replicas: 1\n"
        "  leaderWorkerTemplate:\n    size: 2\n    leaderTemplate:\n"
        + pod.replace("{rank}", "0")
        + "    workerTemplate:\n"
        + pod.replace("{rank}", "1")
    )
    one = only(text)
    assert (one.name, one.nodes, one.replicas) == ("l", 2, 1)


def test_other_engines_are_named_and_not_read_as_vllm() -> None:
    found = read(
        "services:\n  a: {image: 'lmsysorg/sglang:v0.5.9', "
        "command: 'python3 -m sglang.launch_server --model-path a/b --tp 2'}\n"
        "  b: {image: 'ghcr.io/huggingface/text-generation-inference:3', command: --model-id a/b}\n"
        "  c: {image: 'ghcr.io/open-webui/open-webui:main'}\n"
        "  d: {image: 'postgres:17', command: postgres -c a=b}\n"
    )
    assert [(one.engine, one.release) for one in found.workloads] == [("sglang", "0.5.9")]
    assert found.workloads[0].request["tp_size"] == 2
    assert {other.role for other in found.others} == {"client", "engine tgi", "unknown"}


def test_a_value_that_is_none_is_told() -> None:
    one = only("vllm serve a/b --max-model-len many --gpu-memory-utilization 0.8")
    assert one.unusable == ("--max-model-len many",)
    assert one.request == {"gpu_memory_utilization": 0.8}


# -- bad input


def test_one_broken_document_loses_no_other() -> None:
    found = read(DEPLOYMENT + "---\na: [1\n---\n" + DEPLOYMENT)
    assert len(found.workloads) == 2
    (problem,) = found.problems
    assert problem.error.code == "manifest-not-yaml"
    assert 30 <= problem.line <= 31


def test_aliases_do_not_multiply() -> None:
    bomb = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))])
    assert read(bomb, names=("a.yaml",)).workloads == ()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: &a\n  b: *a\n", "manifest-cyclic"),
        ("a: " + "[" * 5000, "manifest-too-deep"),
        ("- " * 5000 + "x", "manifest-too-deep"),
        ("a: [" + "1," * 300_000 + "1]", "manifest-too-many-values"),
        ("a: *b\n", "manifest-not-yaml"),
        ("a: 1\n" * 1_000_000, "manifest-too-large"),
    ],
)
def test_what_cannot_be_read_is_coded(text: str, code: str) -> None:
    (problem,) = read(text, names=("a.yaml",)).problems
    assert problem.error.code == code
    assert problem.error.next_step


def test_bytes_are_no_text() -> None:
    (problem,) = read_files([Source("a.yaml", b"\x00\x01\x02" * 40)]).problems
    assert problem.error.code == "manifest-not-text"


def test_python_that_does_not_parse() -> None:
    (problem,) = read("from vllm import LLM\nLLM(", names=("a.py",)).problems
    assert problem.error.code == "manifest-not-python"


def test_arguments_that_a_program_adds_to_a_dictionary_count() -> None:
    text = (
        "from vllm import LLM\n"
        'given = dict(model="Qwen/Qwen3-8B")\n'
        'given["tensor_parallel_size"] = 2\n'
        'given.update(max_model_len=4096, dtype="half")\n'
        'given.update({"dtype": "bfloat16"})\n'
        'given.setdefault("dtype", "float16")\n'
        "given[[1]] = given.setdefault([2], 3)\n"
        "LLM(**given)\n"
    )
    (one,) = read_files([Source("serve.py", text)]).workloads
    assert one.request == {"tensor_parallel_size": 2, "max_model_len": 4096, "dtype": "bfloat16"}


ARGUMENTS = """\
import os
from vllm import AsyncEngineArgs, AsyncLLMEngine
args: AsyncEngineArgs = AsyncEngineArgs(model="a/b", max_model_len=2048)
args.max_model_len = 8 * 1024
args.tensor_parallel_size = 4
if os.path.exists("/fast"):
    args.max_num_seqs = 512
later = AsyncEngineArgs()
later.tensor_parallel_size = int(os.environ["CARDS"])
later.model = "c/d"
other = dict(model="e/f")
args = other
args.dtype = "float16"
engine = AsyncLLMEngine.from_engine_args(later)
"""


def test_arguments_that_a_program_sets_after_it_has_made_them_count() -> None:
    """The last of two counts; what only one branch sets is not known; a name that is given anew is let go."""
    one, other = read_files([Source("serve.py", ARGUMENTS)]).workloads
    assert one.request == {"max_model_len": 8192, "tensor_parallel_size": 4, "max_num_seqs": None}
    assert (one.undefined, one.place.line) == (("args.max_num_seqs",), 3)
    assert (other.model, other.request) == ("c/d", {"tensor_parallel_size": None})
    assert (other.undefined, other.place.line) == (("CARDS",), 8)


@pytest.mark.parametrize(
    ("runtime", "said", "gpus"),
    [("nvidia", "0,1", 2), ("nvidia", "all", "all"), ("nvidia", "none", None), ("nvidia", "${IDS}", None),
     ("nvidia", "GPU-1a, GPU-2b, GPU-2b", 2), ("runc", "0,1", None)],
)  # fmt: skip
def test_the_cards_that_nvidias_runtime_shows_a_service(
    runtime: str, said: str, gpus: int | str | None
) -> None:
    text = (
        "services:\n  llm:\n    image: vllm/vllm-openai:v0.19.0\n    command: --model a/b\n"
        f'    runtime: {runtime}\n    environment: {{NVIDIA_VISIBLE_DEVICES: "{said}"}}\n'
    )
    assert only(text).gpus == gpus


SBATCH = """#!/bin/bash
#SBATCH --nodes=2
#SBATCH --gpus-per-node=h100:4
{ray}
srun vllm serve Qwen/Qwen3-32B -tp $SLURM_GPUS_ON_NODE -pp $SLURM_NNODES
"""


def test_the_nodes_of_a_job_are_one_engines_only_where_ray_joins_them() -> None:
    for ray, nodes in (
        ("srun --nodes=1 ray start --head --block &", 2),
        ('ssh "n#1" "ray start --head"', 2),
        ("# ray start --head", 1),
        ("true # once: ray start --address=$A", 1),
    ):
        (one,) = read_files([Source("job.sbatch", SBATCH.format(ray=ray))]).workloads
        assert (one.nodes, one.gpus) == (nodes, 4)


def test_an_item_of_an_array_by_a_variable_that_nobody_defines_is_named() -> None:
    models = 'MODELS=(Qwen/Qwen3-8B Qwen/Qwen3-14B)\nvllm serve "${MODELS[$SLURM_ARRAY_TASK_ID]}"\n'
    found = check_files([Source("job.sbatch", "#!/bin/bash\n#SBATCH --gres=gpu:l4:1\n" + models)])
    (one,) = found.checked
    assert (one.outcome, one.workload.model) == (Outcome.CANNOT_BE_KNOWN, None)
    assert one.workload.undefined == ("SLURM_ARRAY_TASK_ID",)
    (said,) = one.reasons
    assert (said.code, said.params["names"]) == ("check-undefined", "SLURM_ARRAY_TASK_ID")
    assert only("SLURM_ARRAY_TASK_ID=1\n" + models, names=("a.sh",)).model == "Qwen/Qwen3-14B"
