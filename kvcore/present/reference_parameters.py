"""Every parameter that the source documents explain: meaning, memory, mistake, advice.

Documents: 000 tuning vllm-mindspore on Ascend, 001 Qwen3-32B on 8 × RTX 4090, 002 vLLM's parameters one by one,
004 an out-of-memory post-mortem of Llama-2-70B.
"""

from __future__ import annotations

from typing import Final

from kvcore.present.reference import Knob, Parameter
from kvcore.present.text import msg

PARAMETERS: Final = (
    Parameter(
        flag="--max-model-len",
        documents="000 · 002 · 004",
        field="max_model_len",
        knob=Knob.LENGTHS,
        meaning=msg("The most tokens of one request, prompt and answer together."),
        memory=msg(
            "Reserves nothing by itself. The pool has the same size; what changes is how many "
            "requests of the full length fit in it, and whether one fits at all: the engine stops at "
            "start when it does not."
        ),
        mistake=msg(
            "Set far above what requests need, “to be safe”. Then one long request may push others out, and "
            "the start may fail."
        ),
        advice=msg(
            "P99 of the prompts + max_tokens, rounded up. Above the model's own limit the engine refuses it."
        ),
    ),
    Parameter(
        flag="--gpu-memory-utilization",
        documents="000 · 002 · 004",
        field="gpu_memory_utilization",
        knob=Knob.SHARES,
        meaning=msg(
            "The share of the whole card that the engine may spend: weights, activations, graphs and KV cache "
            "together."
        ),
        memory=msg("All that is added goes to the KV cache, because the other parts stay as they are."),
        mistake=msg(
            "Read as the share for the KV cache, or set to 0.98 on a card that other processes use too."
        ),
        advice=msg(
            "0.90 to 0.95 on a card of its own. Lower it by what other processes use. When memory is "
            "short, shorten the context first."
        ),
    ),
    Parameter(
        flag="--tensor-parallel-size",
        documents="002 · 004",
        field="tensor_parallel_size",
        knob=Knob.SIZES,
        meaning=msg("GPUs that share every layer of one replica."),
        memory=msg(
            "Weights and KV heads are divided. Models with few KV heads copy them once there are more GPUs "
            "than heads; latent attention (MLA) keeps its cache whole on every GPU."
        ),
        mistake=msg("Chosen by the number of GPUs alone. It has to divide the attention heads of the model."),
        advice=msg(
            "The smallest size that fits with room for the requests; more replicas serve more than one replica "
            "on more GPUs."
        ),
    ),
    Parameter(
        flag="--pipeline-parallel-size",
        documents="002",
        field="pipeline_parallel_size",
        knob=Knob.PIPELINES,
        meaning=msg("Machines, or groups of GPUs, that each hold a part of the layers."),
        memory=msg(
            "Every stage stores its layers' weights and their share of the cache; the stage with the "
            "least memory to spare decides how many blocks there are."
        ),
        mistake=msg("Used inside one machine where tensor parallelism would be faster."),
        advice=msg(
            "For models that do not fit one machine: tensor parallel inside it, pipeline parallel between "
            "machines."
        ),
    ),
    Parameter(
        flag="--quantization",
        documents="002",
        field="quantization",
        knob=Knob.PRECISIONS,
        meaning=msg(
            "The storage format of the weights. Checkpoints that are already quantized need no flag."
        ),
        memory=msg(
            "Half or a quarter of the weight bytes; what is saved becomes KV cache. The cache itself is not "
            "quantized by it."
        ),
        mistake=msg("Named for a checkpoint of another format, or expected to shrink the KV cache."),
        advice=msg(
            "fp8 at load on cards that have it; AWQ or GPTQ checkpoints run through their Marlin "
            "kernels without a flag. SqueezeLLM, which the guide names, was removed from the engine."
        ),
    ),
    Parameter(
        flag="--kv-cache-dtype",
        documents="001",
        field="kv_cache_dtype",
        knob=Knob.KV_DTYPES,
        meaning=msg("How keys and values are stored."),
        memory=msg("fp8 halves the bytes of a token: twice the tokens in the same pool."),
        mistake=msg("Set without trying the answers: long contexts may lose accuracy."),
        advice=msg(
            "The first thing to try when the context has to stay long; compare answers before and after."
        ),
    ),
    Parameter(
        flag="--dtype",
        documents="001 · 004",
        field="dtype",
        knob=Knob.DTYPES,
        meaning=msg("The type in which the model computes and keeps weights that are not quantized."),
        memory=msg("float32 doubles weights and cache; bfloat16 and float16 take the same."),
        mistake=msg("float16 for a model trained in bfloat16: same memory, smaller range."),
        advice=msg("Leave it at auto, except on cards without bfloat16."),
    ),
    Parameter(
        flag="--max-num-seqs",
        documents="000 · 004",
        field="max_num_seqs",
        knob=Knob.SEATS,
        meaning=msg("The most requests that run in one step."),
        memory=msg(
            "Costs little by itself: buffers, larger CUDA graphs, and for models with recurrent states one "
            "state each. Requests beyond the pool wait or are preempted, they do not run out of memory."
        ),
        mistake=msg("Taken for a memory limit. It is a limit of the scheduler."),
        advice=msg(
            "As many requests of your real lengths as fit in the pool, or a few more. The default "
            "suits large cards."
        ),
    ),
    Parameter(
        flag="--max-num-batched-tokens",
        documents="000 · 002",
        field="max_num_batched_tokens",
        knob=Knob.BATCHES,
        meaning=msg("The most tokens that one step computes, prompts and answers together."),
        memory=msg(
            "The activation peak grows with it, because the engine measures a step of this size at start."
        ),
        mistake=msg(
            "256 to 512 for short response times, as the guide says: the engine refuses less than "
            "max_num_seqs. Or max_num_seqs × max_model_len, as the Ascend guide says: chunked "
            "prefill does not need that."
        ),
        advice=msg("2,048 to 8,192 for even times between tokens, 8,192 to 16,384 for throughput."),
    ),
    Parameter(
        flag="--block-size",
        documents="004",
        field="block_size",
        knob=Knob.BLOCKS,
        meaning=msg("Tokens in one block of the KV cache."),
        memory=msg(
            "Only the last block of a request is partly empty: half a block on average, whatever the length."
        ),
        mistake=msg(
            "Blamed for fragmentation. A last block of 64 with 40 tokens wastes 24 of 1,024 slots, 2.3 %."
        ),
        advice=msg("Leave it to the engine: attention backends and hybrid models choose their own."),
    ),
    Parameter(
        flag="--enforce-eager",
        documents="002",
        field="enforce_eager",
        knob=Knob.SWITCH,
        meaning=msg("Runs without CUDA graphs and without compiling."),
        memory=msg("Saves the memory of the graphs; from 0.20 on they count against the budget."),
        mistake=msg("Left on after debugging: small batches decode much more slowly."),
        advice=msg("Off in production. As a last resort when less than a GiB is missing."),
    ),
    Parameter(
        flag="--enable-prefix-caching",
        documents="002",
        field="enable_prefix_caching",
        knob=Knob.SWITCH,
        meaning=msg("Keeps blocks of finished requests, so that the same beginning is not computed again."),
        memory=msg(
            "No memory of its own: free blocks keep their content until they are needed. Hybrid models may "
            "align their blocks differently."
        ),
        mistake=msg(
            "Its hit rate read as a sign of a cache too small. It says how much prompts have in common."
        ),
        advice=msg(
            "On; it has been the default since the V1 engine. Put what is common, the system prompt, first."
        ),
    ),
    Parameter(
        flag="--enable-chunked-prefill",
        documents="002",
        field="enable_chunked_prefill",
        knob=Knob.SWITCH,
        meaning=msg("Computes long prompts in pieces, in the same steps as answers of other requests."),
        memory=msg("Lets the batch be smaller than the context, and with it the activation peak."),
        mistake=msg("Switched on by hand on versions where it is on anyway."),
        advice=msg("On. The size of a piece is --max-num-batched-tokens."),
    ),
    Parameter(
        flag="--speculative-config",
        documents="002",
        field="speculative_config",
        knob=Knob.SPECULATION,
        meaning=msg(
            "Guesses tokens and checks them in one step. The number guessed at a time and the n-gram window "
            "are fields of it: num_speculative_tokens, prompt_lookup_max."
        ),
        memory=msg(
            "A draft model or head brings weights and a cache of its own; n-grams bring neither, only a few "
            "more slots per request."
        ),
        mistake=msg(
            "Many guessed tokens on a busy server: checking them costs what the batch could have used."
        ),
        advice=msg(
            "For few requests at a time and answers that repeat their prompt. Measure the accepted share first."
        ),
    ),
    Parameter(
        flag="--cpu-offload-gb",
        documents="002",
        field="cpu_offload_gb",
        knob=Knob.OFFLOADS,
        meaning=msg("Weights that stay in the memory of the machine and cross the bus in every step."),
        memory=msg("Frees that much of each GPU for the KV cache."),
        mistake=msg(
            "Used to serve: each step waits for the bus, tens of times slower than the card's own memory."
        ),
        advice=msg("To try a model that is a little too big; to serve it, use fewer bits or one more GPU."),
    ),
    Parameter(
        flag="max_tokens",
        documents="002 · 004",
        meaning=msg("A field of the request: the most tokens of its answer."),
        memory=msg(
            "None in advance: blocks are allocated as the answer grows, so a request that stops "
            "early never uses the rest."
        ),
        mistake=msg(
            "Blamed for memory that only max_model_len decides, or set so high that prompt + max_tokens "
            "exceeds the context and the request is refused."
        ),
        advice=msg(
            "The longest answer that users need. It bounds the time of a request, and with it how long its "
            "blocks are taken."
        ),
    ),
    Parameter(
        flag="--use-v2-block-manager",
        documents="002",
        meaning=msg("Chose the second block manager of the V0 engine."),
        memory=msg(
            "None: it has been the only one since before 0.6.6, and the V1 engine has a manager of its own."
        ),
        mistake=msg("Copied from an old guide: the engine stops with an unknown argument."),
        advice=msg("Drop it."),
    ),
    Parameter(
        flag="--speculative-mode",
        documents="002",
        meaning=msg("The guide's name for --speculative-model [ngram]; no version we read has it."),
        memory=msg("See --speculative-config."),
        mistake=msg("Copied from an old guide: the engine stops with an unknown argument."),
        advice=msg(
            '--speculative-config \'{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4}\''
        ),
    ),
    Parameter(
        flag="--num-speculative-tokens",
        documents="002",
        meaning=msg("How many tokens are guessed at a time."),
        memory=msg("See --speculative-config."),
        mistake=msg("Copied from an old guide: the engine stops with an unknown argument."),
        advice=msg("The field num_speculative_tokens of --speculative-config."),
    ),
    Parameter(
        flag="--ngram-prompt-lookup-max",
        documents="002",
        meaning=msg("The longest n-gram that is looked up in the prompt."),
        memory=msg("See --speculative-config."),
        mistake=msg("Copied from an old guide: the engine stops with an unknown argument."),
        advice=msg("The field prompt_lookup_max of --speculative-config."),
    ),
    Parameter(
        flag="--swap-space",
        documents="002",
        meaning=msg("GiB of the machine's memory that blocks of preempted requests moved to."),
        memory=msg("None on the GPU. The V1 engine computes preempted requests again instead."),
        mistake=msg("Counted as room for more requests: it only changed what a preemption costs."),
        advice=msg("Drop it. --kv-offloading-size keeps finished prefixes in the machine's memory."),
    ),
    Parameter(
        flag="python -m vllm.entrypoints.openai.api_server",
        documents="004",
        meaning=msg("The older way to start the server; --port is the port it listens on."),
        memory=msg("None."),
        mistake=msg("--model and a model as the first word mixed."),
        advice=msg("vllm serve MODEL with the same flags. The Plan page writes the whole command."),
    ),
    Parameter(
        flag="ASCEND_TOTAL_MEMORY_GB",
        documents="000",
        field="env.ASCEND_TOTAL_MEMORY_GB",
        knob=Knob.NPU_TOTALS,
        meaning=msg("The physical memory of one NPU, for vllm-mindspore, which does not measure it."),
        memory=msg("Times gpu_memory_utilization it is what the engine may spend."),
        mistake=msg("Changed to get more cache: the driver does not have more."),
        advice=msg("What npu-smi info shows, 64 or 32."),
    ),
    Parameter(
        flag="vLLM_MODEL_MEMORY_USE_GB",
        documents="000",
        field="env.vLLM_MODEL_MEMORY_USE_GB",
        knob=Knob.NPU_MODELS,
        meaning=msg("What weights, activations and framework may take on one NPU, for vllm-mindspore."),
        memory=msg(
            "Every GB less is one more for the KV cache; too little and the model runs out of memory."
        ),
        mistake=msg(
            "Above ASCEND_TOTAL_MEMORY_GB × gpu_memory_utilization: the number of blocks becomes negative."
        ),
        advice=msg(
            "From a run with one long request: the pre-run on the Check page works it out from the log."
        ),
    ),
    Parameter(
        flag="GLOG_v",
        documents="000",
        meaning=msg("GLOG_v=1 makes MindSpore log at the level INFO."),
        memory=msg("None."),
        mistake=msg("Left on in production: the log grows quickly."),
        advice=msg("Only for the pre-run: “actual peak used mem” is in that log."),
    ),
)
"""In the order in which they decide a deployment; former ones last."""
