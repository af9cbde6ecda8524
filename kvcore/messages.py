"""The English words of every coded error and notice: what is wrong, and what the person can do about it.

The page translates them by code; `{params}` are filled in after translation, so that untrusted text is never part of
a msgid.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class Message(NamedTuple):
    text: str
    """What is wrong, lower case, with `{params}`."""
    next_step: str
    """What the person can do."""


MESSAGES: Final[Mapping[str, Message]] = {
    # -- request, link, page
    "invalid-json": Message(
        "the input is not JSON: {reason}", "check the text for a missing bracket or comma"
    ),
    "input-too-large": Message(
        "the input is larger than {limit}", "send the config.json itself, not the whole checkpoint"
    ),
    "input-too-deep": Message("the JSON is nested deeper than {limit} levels", "send the plain config.json"),
    "number-too-long": Message(
        "{field} is a number of more than {limit} digits: {value}…", "check it against the original"
    ),
    "not-utf8": Message(
        "the file is not UTF-8 text: byte {offset} cannot be read", "save it as UTF-8, and send it again"
    ),
    "internal-error": Message(
        "the program failed on this input ({value}): its fault, not yours",
        "undo the last change, or report it with the time; the server log says where it failed",
    ),
    "unknown-field": Message("the request has no field {field}", "remove it, or check its spelling"),
    "unknown-link-version": Message(
        "this link is of version {value}, and only version 1 is known",
        "compare the settings with those of the sender",
    ),
    "unreadable-packed-config": Message(
        "the config.json in this link is damaged or cut short",
        "ask the sender for the whole link, or the file",
    ),
    "config-not-in-link": Message(
        "the config of {value} is too long for a link: the figures shown are not for it",
        "give that config.json again under Another model",
    ),
    "unknown-parameter": Message(
        "no setting is called {field}: it is ignored", "remove it, or check its spelling"
    ),
    "named-twice": Message("{field} is given twice, the second time as {value}", "leave one of them out"),
    "invalid-value": Message("{field} cannot be {value}: {reason}", "enter a value of the kind described"),
    "unreadable-pin": Message(
        "{field} in this link is not a valid scenario: {value}", "pin the scenario again, at most {limit}"
    ),
    "server-busy": Message(
        "this server is working on {limit} other tables at the moment", "try again in a few seconds"
    ),
    "unknown-accelerator": Message("{value} is not in the catalogue of accelerators", "choose {near}"),
    "unknown-model": Message(
        "{value} is not in the catalogue of models", "choose {near}, or give its config.json"
    ),
    # -- Hugging Face Hub
    "hub-invalid-id": Message(
        "{value} is not a model id",
        "write it as on the Hub: owner/name, letters, digits, dots, dashes, underscores",
    ),
    "hub-invalid-revision": Message("{value} is not a revision", "give a branch, a tag or a commit"),
    "hub-not-found": Message(
        "the Hub has no model {value}", "check the id; a private model can be planned from its config.json"
    ),
    "hub-gated": Message(
        "{value} is gated: its owner gives access on request",
        "set HF_TOKEN on the server, or upload the model's config.json",
    ),
    "hub-no-config": Message(
        "{value} has no config.json",
        "choose the repository with the safetensors weights, or paste a config.json",
    ),
    "hub-offline": Message(
        "the Hub cannot be asked: the server is offline (HF_HUB_OFFLINE)",
        "choose a bundled model, or upload the model's config.json",
    ),
    "hub-off": Message(
        "this server does not ask the Hub", "choose a bundled model, or upload the model's config.json"
    ),
    "hub-owner-not-allowed": Message(
        "this server asks the Hub only about models of {owners}", "upload the model's config.json"
    ),
    "hub-busy": Message(
        "too many look-ups on the Hub are under way",
        "try again in some seconds, or upload the model's config.json",
    ),
    "hub-unreachable": Message(
        "the Hub could not be reached: {reason}",
        "try again, set HF_ENDPOINT to a mirror, or upload the model's config.json",
    ),
    "hub-timeout": Message(
        "the Hub did not answer within {limit} seconds", "try again, or upload the model's config.json"
    ),
    "hub-too-large": Message(
        "{file} of {value} is larger than {limit}",
        "upload the part of the config.json that describes the model",
    ),
    "hub-malformed": Message(
        "{file} of {value} cannot be read: {reason}",
        "contact the model's owner, or paste a corrected config.json",
    ),
    # -- plan
    "part-not-counted": Message(
        "{parts} of this model is not counted yet: the weights are larger than shown",
        "give the checkpoint's size, or the weights as the engine printed them",
    ),
    "part-from-checkpoint": Message(
        (
            "{parts} of this model is not counted one by one: {size} GiB of the checkpoint's size are "
            "counted for it"
        ),
        "compare with what the engine prints as Model loading took",
    ),
    "checkpoint-size-differs": Message(
        "{counted} GiB are counted from the config, and the checkpoint stores {stored} GiB",
        "check that the config belongs to this checkpoint: draft layers, a second copy or another precision explain it",
    ),
    "flag-not-in-release": Message(
        "{version} does not support {flag} {value}: available since {since}",
        "choose a newer engine version, or leave the flag out",
    ),
    "flag-gone-from-release": Message(
        "{version} does not support {flag} {value}: removed in {since}",
        "choose an older engine version, or leave the flag out",
    ),
    "mamba-block-without-prefix-caching": Message(
        "--mamba-block-size can only be set with --enable-prefix-caching",
        "turn prefix caching on, or leave the block size of states out",
    ),
    "align-without-chunked-prefill": Message(
        "chunked prefill is required for Mamba cache mode align",
        "leave chunked prefill on, or turn prefix caching off",
    ),
    "align-with-speculation": Message(
        "Mamba cache mode align is not compatible with speculative decoding in this release",
        "choose a newer engine version, or turn prefix caching or speculative decoding off",
    ),
    "align-block-above-batch": Message(
        "in Mamba cache mode align the block size ({block}) must not be above max_num_batched_tokens ({value})",
        "raise max_num_batched_tokens to {block}, or turn prefix caching off",
    ),
    "state-dtype-unsupported": Message(
        "{field} {value} is not supported for layers of kind {kind} in this release",
        "leave the dtype of states at auto",
    ),
    "mamba-cache-mode-not-kept": Message(
        "the engine takes Mamba cache mode {used}, not {asked}",
        (
            "modes all and align need prefix caching, none applies without it; all is only for models "
            "that support it"
        ),
    ),
    "every-state-cached": Message(
        "the engine keeps a recurrent state for every block (Mamba cache mode all), as many blocks as attention takes",
        "try --mamba-cache-mode align, which keeps only the last states of a request",
    ),
    "capture-sizes-inconsistent": Message(
        "customized max_cudagraph_capture_size (={value}) should be consistent with the max value of "
        "cudagraph_capture_sizes (={largest})",
        "leave one of the two out, or make the largest size the maximum",
    ),
    "capture-sizes-below-request": Message(
        "no valid CUDA graph sizes are left after rounding to multiples of {tokens}, the tokens of one request with "
        "its drafts",
        "raise the capture sizes to at least {tokens}, or draft fewer tokens",
    ),
    "capture-sizes-dropped": Message(
        "the engine drops the capture sizes above {limit} ({value}): {dropped}",
        "raise {limit}, or leave these sizes out",
    ),
    "capture-maximum-not-kept": Message(
        "the largest captured batch is {used} tokens, not {asked}",
        "no change needed if that is enough: larger batches run without graphs",
    ),
    "capture-flag-former": Message(
        "{version} has no --max-cudagraph-capture-size: its {flag} {value} does the same",
        "write {flag} in the command, or choose 0.11.1 or newer",
    ),
    "capture-flags-without-effect": Message(
        "the start captures no CUDA graphs that {flags} could change",
        "leave {flags} out, or turn CUDA graphs on",
    ),
    "capture-flags-need-v1": Message(
        "the V0 engine does not read {flags}",
        "leave {flags} out, or use the V1 engine",
    ),
    "cudagraph-mode-not-kept": Message(
        "the engine captures CUDA graphs in mode {used}, not {asked}",
        "no change needed: the attention backend, the model or its runner does not support {asked}",
    ),
    "overheads-of-another-vendor": Message(
        "no start-up log is published for this vendor's cards: framework, activations and graphs are "
        "estimated from starts on NVIDIA cards",
        "start once, paste the log on the Check page, and plan with its measurements",
    ),
    "no-container-image": Message(
        "no container image of {engine} is known for this vendor's cards",
        "use the command inside the vendor's own image, with the vendor's device settings",
    ),
    "quantization-not-in-config": Message(
        "the name says {format}, but the config names no quantization: planned unquantized",
        "give the config.json of the quantized release, with its side file, or --quantization",
    ),
    # -- request log
    "request-log-too-large": Message("the request log is larger than {limit}", "send a sample of the lines"),
    "request-log-too-long": Message(
        "the request log has more than {limit} lines or requests", "send a sample of the lines"
    ),
    "request-log-not-text": Message(
        "the request log is not text", "unpack it, or save a spreadsheet as CSV in UTF-8, and send that"
    ),
    "request-log-columns": Message(
        "no column of this table holds prompt tokens; its columns: {columns}",
        "name a column prompt_tokens, and others completion_tokens and max_tokens where you have them",
    ),
    "request-log-no-length": Message(
        "{lines} lines are about requests, but none gives the length of a prompt",
        "send lines with usage counts; newer vLLM prints lengths only with VLLM_LOGGING_LEVEL=DEBUG",
    ),
    "request-log-absurd": Message(
        (
            "none of the {lines} lines has a possible length: prompts from 1, answers from 0, up to "
            "{limit} tokens"
        ),
        "check the unit: tokens, not characters, bytes or milliseconds",
    ),
    "request-log-empty": Message(
        "no line of the request log is a request: {lines} lines were read",
        "use JSON lines with usage token counts, a prompt, or messages",
    ),
    "percentiles-order": Message(
        "{field}: P50 {p50}, P95 {p95} and P99 {p99} must not decrease",
        "enter them in ascending order, starting from 1",
    ),
    "percentiles-unreadable": Message(
        "the lengths in this link cannot be read: {value}",
        "open the request log again, or type the percentiles",
    ),
    "missing-field": Message("{field} is missing", "add it"),
    "invalid-catalogue-entry": Message("{field}: {reason}", "correct the bundled file"),
    # -- config.json
    "missing-config-key": Message(
        "the config has no {key}, which this kind of model needs",
        "send the complete config.json of the checkpoint",
    ),
    "invalid-config-value": Message(
        "the config's {field} cannot be {value}: {reason}", "check the config.json against the original"
    ),
    "contradicting-config": Message(
        "the config contradicts itself: {reason}", "check the config.json against the original"
    ),
    "unknown-architecture": Message(
        "the architecture {architecture} is not supported yet: {reason}",
        "choose a model of a known family, or give the weights and the KV memory yourself",
    ),
    "architecture-assumed": Message(
        "the architecture {architecture} is not supported yet: its config is that of a plain "
        "decoder, and it is planned as one",
        "compare the weights with the checkpoint's size, or with what the engine prints as Model loading took",
    ),
    "unknown-quantization": Message(
        "no formula is known for the quantization {method}", "choose a checkpoint in another format"
    ),
    "unsupported-pattern": Message(
        "{field} has the pattern {pattern}, which is not supported: {reason}",
        "write it without references, possessive repeats and inline flags, or list the modules by name",
    ),
    "too-many-patterns": Message(
        "{field} lists more than {limit} patterns, parts of patterns, or groups",
        "join patterns that differ only in a number, or list the modules by name",
    ),
    "module-lists-too-costly": Message(
        "the module lists of {field} take more than {limit} steps to apply to this model's modules",
        "shorten the lists, or list the modules by name instead of by pattern",
    ),
    "gguf-type-unknown": Message(
        "the name {value} does not say which type of GGUF file it is",
        "end the model's name in a type of llama.cpp, as in repository:Q4_K_M or file-Q8_0.gguf, or give the file's "
        "size as checkpoint.total_size",
    ),
    "torchao-quant-type": Message(
        "Expected only one key 'default' in quant_type dictionary: {value}",
        "quantize the checkpoint again with a torchao config object; the engine does not read the older text form",
    ),
    "quantization-mismatch": Message(
        "Quantization method specified in the model config ({method}) does not match the quantization method specified "
        "in the `quantization` argument ({requested}).",
        "leave --quantization out: the checkpoint names its own method",
    ),
    "duplicate-reader": Message("{field} claims {name}, which another family reads", "remove one of the two"),
    # -- what the engine refuses
    "heads-not-divisible": Message(
        "Total number of attention heads ({heads}) must be divisible by tensor parallel size ({ranks}).",
        "choose a tensor parallel size that divides the attention heads",
    ),
    "size-not-divisible": Message(
        "{size} is not divisible by {ranks}",
        "choose a tensor parallel size that divides the sizes of the model",
    ),
    "unknown-kv-cache-dtype": Message(
        "{value} is not a known kv_cache_dtype", "choose auto, fp8, or another one of the list"
    ),
    "context-parallel-window": Message(
        "DCP not support sliding window.", "set decode_context_parallel_size to 1 for this model"
    ),
    "context-parallel-ranks": Message(
        "Decode context parallelism for GQA/MQA requires `--tensor-parallel-size` ({ranks}) to be greater than the "
        "model's total number of KV heads ({heads}).",
        "increase tensor_parallel_size, or set decode_context_parallel_size to 1",
    ),
    "context-parallel-size": Message(
        "`--decode-context-parallel-size` ({value}) exceeds the maximum supported value ({maximum}) for "
        "`--tensor-parallel-size` ({ranks}) and {heads} model KV heads.",
        "choose a smaller decode_context_parallel_size",
    ),
    "context-parallel-division": Message(
        "tp_size={ranks} must be divisible by dcp_size={value}.",
        "choose a decode_context_parallel_size that divides tensor_parallel_size",
    ),
    "cache-pages-not-unifiable": Message(
        "The page size of the layer is not divisible by the maximum page size. "
        "Cannot unify by adjusting block_size. (pages of {pages} bytes)",
        "use a newer engine version, or another kv_cache_dtype",
    ),
    "cache-kinds-not-unifiable": Message(
        "Hybrid KV cache manager is disabled but failed to convert the KV cache specs to one unified type.",
        "do not disable the hybrid KV cache manager for this model",
    ),
    "state-blocks-too-few": Message(
        "max_num_seqs ({value}) exceeds available Mamba cache blocks ({blocks}). Each decode sequence requires one "
        "Mamba cache block, so CUDA graph capture cannot proceed. Please lower max_num_seqs to at most {blocks} or "
        "increase gpu_memory_utilization.",
        "lower max_num_seqs, or give the KV cache more memory",
    ),
    "state-heads-not-divisible": Message(
        "{heads} state heads are not divisible by tensor parallel size {ranks}",
        "choose a tensor parallel size that divides the heads of the recurrent layers",
    ),
    "speculative-tokens-not-divisible": Message(
        "num_speculative_tokens:{value} must be divisible by n_predict={steps}",
        "choose a multiple of the model's own prediction layers",
    ),
    "speculative-method-unsupported": Message(
        "Unsupported speculative method: '{value}'",
        "this checkpoint has no such draft layers: choose ngram, or a draft model",
    ),
    "draft-ranks": Message(
        "speculative_draft_tensor_parallel_size={value} cannot be other value than 1 or target model "
        "tensor_parallel_size ({ranks})",
        "leave draft_tensor_parallel_size out",
    ),
    "lora-vocabulary": Message(
        "When using LoRA, vocab size must be <= {limit} (this model's is {value})",
        "use a newer engine version, or a model with a smaller vocabulary",
    ),
    "lora-unsupported": Message("{value} does not support LoRA yet.", "choose a model that does"),
    "pipeline-unsupported": Message(
        "Pipeline parallelism is not supported for this model. ({value})",
        "set pipeline_parallel_size to 1, and divide the model over tensor parallel ranks",
    ),
    "too-many-pipeline-stages": Message(
        "{layers} layers cannot be divided over {stages} pipeline stages",
        "choose a smaller pipeline parallel size",
    ),
    # -- flags
    "engine-version-too-old": Message(
        "engine version {value} is older than {oldest}, the oldest one that is known",
        "choose a newer engine version",
    ),
    "engine-version-approximated": Message(
        "engine version {asked} is not known exactly: planned as {used}",
        "check the figures against a start-up log",
    ),
    "engine-not-on-card": Message(
        "{engine} does not run on {name}: this plan counts that card's memory under another platform's rules",
        "choose {other} as the engine, or another accelerator",
    ),
    "v0-release-assumed": Message(
        "VLLM_USE_V1=0 without a version: planned as {used}, the last release with that engine",
        "name the engine version",
    ),
    "release-assumed-for-model": Message(
        "no engine version is given, and newer ones than {used} do not have the model class {value}: planned as {used}",
        "name the engine version",
    ),
    "architecture-not-in-release": Message(
        "Model architectures ['{value}'] are not supported for now. {version} does not have it yet: {since} does",
        "choose engine version {since} or a newer one",
    ),
    "architecture-gone-from-release": Message(
        "Model architecture {value} was supported in vLLM until v{until}, and is not supported anymore. This is "
        "{version}",
        "choose engine version {until}, or another model",
    ),
    "runner-not-supported": Message(
        "embedding models do not support --runner {value}: {architecture} only scores or classifies text",
        "choose the pooling runner, or leave the choice to the engine",
    ),
    "runs-as-pooling": Message(
        "the repository ships Sentence Transformers files, so the engine runs the model with the pooling runner: it"
        " drops the output head and samples nothing",
        "pass {flag} to generate text instead",
    ),
    "keeps-no-cache": Message(
        "bidirectional attention: every prompt runs in one piece, and no KV cache is kept",
        "look at the weights and activations; max_num_batched_tokens limits the prompts of a batch",
    ),
    "accelerator-assumed": Message(
        "no accelerator is named: flags are resolved as for {name}", "name the accelerator"
    ),
    "dtype-falls-back": Message(
        "{name} (compute capability {capability}) has no bfloat16: float16 is used",
        "pass --dtype half where the engine does not fall back by itself",
    ),
    "max-model-len-above-model": Message(
        "max_model_len {asked} is above the {derived} tokens that the model itself allows",
        "set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1, or lower max_model_len",
    ),
    "bfloat16-unsupported": Message(
        "Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your {name} GPU has compute "
        "capability {capability}. You can use float16 instead by explicitly setting the `dtype` flag in CLI, for "
        "example: --dtype=half.",
        "set dtype to half",
    ),
    "fp8-kv-unsupported": Message(
        "FP8 KV cache is not supported by the attention backends on {name} (compute capability {capability}).",
        "set kv_cache_dtype to auto",
    ),
    "nvfp4-kv-unsupported": Message(
        "No attention backend of this release stores an NVFP4 KV cache of this model on {name} (compute capability "
        "{capability}).",
        "set kv_cache_dtype to fp8 or auto",
    ),
    "sparse-attention-unsupported": Message(
        "No valid attention backend found: the sparse latent attention of this model has no kernel on {name} (compute "
        "capability {capability}) in this release.",
        "choose Hopper or a later data centre card",
    ),
    "quantization-not-in-release": Message(
        "Unknown quantization method: {method}. {version} does not have it: it came with {since}",
        "choose a newer engine version, or a checkpoint in another format",
    ),
    "quantization-not-on-platform": Message(
        "{method} quantization is currently not supported in {name}.",
        "choose a checkpoint in another format, or another accelerator",
    ),
    "quantization-not-on-card": Message(
        "The quantization method {method} is not supported for the current GPU. Minimum capability: {least}. "
        "Current capability: {capability}.",
        "choose a checkpoint in another format, or a newer card",
    ),
    "quantization-needs-package": Message(
        "{version} reads {method} weights only with the package {package} installed",
        "add the package to the engine's environment or image, or choose another format",
    ),
    "weight-block-cut": Message(
        "The {side} of {name} on each rank are {features} features, not a multiple of the {multiple} that a block or "
        "group of the quantized weights has. This can be caused by too large tensor parallel size.",
        "lower tensor_parallel_size and use data or pipeline parallelism instead; experts stay whole with "
        "enable_expert_parallel",
    ),
    "block-size-not-in-release": Message(
        "argument --block-size: {value} is not among the sizes that {version} takes: {taken}",
        "choose one of them, or leave the flag out",
    ),
    "block-size-not-in-kernels": Message(
        "block_size {value} is not supported: attention kernels take blocks of multiples of {multiple} tokens",
        "choose a multiple of it, or leave the flag out",
    ),
    "memory-overrun": Message(
        "the start takes {over} GiB more than the card has: {part} come on top of the budget",
        "lower gpu_memory_utilization",
    ),
    "kv-memory-below-parts": Message(
        "the given KV memory of {given} GiB is {difference} GiB less than the other parts leave ({left} GiB): no part "
        "accounts for the rest",
        "give the other parts of that start too (its whole log, on the Check page), or look for other processes on the "
        "card",
    ),
    "kv-memory-above-parts": Message(
        "the given KV memory of {given} GiB is {difference} GiB more than the other parts leave ({left} GiB): they are "
        "estimated too high for it, or it is of another start",
        "give the other parts of that start too: its whole log, on the Check page",
    ),
    "activations-of-smaller-batch": Message(
        "the activations were measured with up to {measured_tokens} tokens in a step, and this start computes up to "
        "{max_num_batched_tokens}: they may take more",
        "set --max-num-batched-tokens={measured_tokens}, or measure a start of this shape",
    ),
    "model-share-of-smaller-batch": Message(
        "vLLM_MODEL_MEMORY_USE_GB was measured with up to {measured_tokens} tokens in a step, and this start computes "
        "up to {max_num_batched_tokens}: it may run out of memory",
        "set --max-num-batched-tokens={measured_tokens}, or repeat the pre-run with this one and requests that fill "
        "the step",
    ),
    "restart-leaves-more": Message(
        "a first start compiles its kernels while it measures: a restart that finds them compiled has about {gain} GiB "
        "more for the KV cache",
        "keep ~/.cache/vllm on a volume, and read the KV cache size of the second start",
    ),
    "free-memory-below-utilization": Message(
        "Free memory on device ({free}/{total} GiB) on startup is less than desired GPU memory utilization "
        "({utilization}, {wanted} GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.",
        "lower gpu_memory_utilization",
    ),
    "batch-below-sequences": Message(
        "max_num_batched_tokens ({value}) must be greater than or equal to max_num_seqs ({sequences}).",
        "raise max_num_batched_tokens, or lower max_num_seqs",
    ),
    "batch-below-length": Message(
        "max_num_batched_tokens ({value}) is smaller than max_model_len ({length}). This effectively limits the "
        "maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please increase "
        "max_num_batched_tokens or decrease max_model_len.",
        "raise max_num_batched_tokens, lower max_model_len, or leave chunked prefill on",
    ),
    "draft-model-unknown": Message(
        "the config of the draft model {value} is not known, and nothing can be planned without it",
        "choose a draft of the catalogue, or give its config.json",
    ),
    "draft-not-counted": Message(
        "what the speculative method {method} loads in addition to the model is not counted",
        "check the weights against a start-up log, or give them yourself",
    ),
    "draft-head-assumed": Message(
        "the config of the {method} head {model} is not known: one layer like the model's own is assumed",
        "give the head's config.json",
    ),
    # -- start-up log
    "log-too-large": Message("the log is larger than {limit}", "send the part up to the end of the start"),
    "log-not-text": Message("the log is not text", "send the log as text, unpacked"),
    "log-not-recognized": Message(
        "none of the engine's start-up lines is in the {lines} lines that were read: looked for {expected}",
        "send the output of vLLM, vllm-ascend or vllm-mindspore from its first line on",
    ),
    "log-several-starts": Message(
        "the log contains {starts} starts; the last one was read",
        "to see another one, send that start alone",
    ),
    "log-contradiction": Message(
        "the log gives {field} as {first} and as {second}", "check whether two engines wrote into one log"
    ),
    "log-absurd-figure": Message(
        "line {line} gives {field} as {value} {unit}, which is impossible; it was ignored",
        "check whether another process freed memory meanwhile",
    ),
    "log-read-in-part": Message(
        "the log has far more lines that look like the engine's than any start prints, so it was read in part",
        "send one start alone, from its first line on",
    ),
    "log-line-cut": Message(
        "{lines} lines are too long and were read in part", "send the log with its line breaks"
    ),
    "log-flags-unusable": Message(
        "line {line} gives flags values that they cannot take; these are ignored: {flags}",
        "correct them and paste the command again; until then the engine's defaults are used",
    ),
    "log-flags-unused": Message(
        "line {line} has flags that are not used here: {flags}",
        "check their spelling; flags that do not change memory can stay",
    ),
    # -- why a start failed; the words of the engine stand beside it
    "start-context-too-long": Message(
        "one request of {max_model_len} tokens needs {needed_gib} GiB of KV cache, and only {available_kv_gib} GiB "
        "are left",
        "lower --max-model-len to what fits, or store the KV cache as fp8, or use more GPUs",
    ),
    "start-context-exceeds-cache": Message(
        "one request may have {max_model_len} tokens, and the KV cache can store only {kv_tokens}",
        "lower --max-model-len to what the cache can store, or raise --gpu-memory-utilization",
    ),
    "start-no-kv-memory": Message(
        "weights, activations and buffers use up the whole budget: nothing is left for the KV cache",
        "raise --gpu-memory-utilization, or use more GPUs or smaller weights",
    ),
    "start-auto-fit-failed": Message(
        "not even one token fits into the memory that is left",
        "raise --gpu-memory-utilization, or use more GPUs or smaller weights",
    ),
    "start-memory-taken": Message(
        (
            "only {free_gib} of {total_gib} GiB were free at the start, and the engine asks for "
            "{requested_gib} GiB"
        ),
        "stop the other processes on the card, or lower --gpu-memory-utilization",
    ),
    "start-external-weights": Message(
        (
            "another process keeps {external_gib} GiB of weights on the card, more than the budget of "
            "{requested_gib} GiB"
        ),
        "raise --gpu-memory-utilization above what the weights take",
    ),
    "start-profiling-disturbed": Message(
        "another process freed memory on the card while the engine measured it",
        "start again when nothing else starts or stops on the card",
    ),
    "start-too-few-state-blocks": Message(
        "{max_num_seqs} sequences need a state block each, and there are {blocks} blocks",
        "lower --max-num-seqs to the number of blocks, or raise --gpu-memory-utilization",
    ),
    "start-oom-sampler": Message(
        "the sampler's warm-up with {max_num_seqs} sequences ran out of memory: it lies outside the budget",
        "lower --max-num-seqs, or leave more outside the budget with a lower --gpu-memory-utilization",
    ),
    "start-weights-do-not-fit": Message(
        "the weights of one rank are larger than what is free on the card",
        "use more GPUs with --tensor-parallel-size, or smaller weights",
    ),
    "start-above-model-length": Message(
        "--max-model-len {max_model_len} is above what the model was trained for, {derived_max_model_len}",
        "lower it, or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 and accept worse answers",
    ),
    "start-batch-below-length": Message(
        "a step takes {max_num_batched_tokens} tokens, less than one request of {max_model_len}, and "
        "prompts cannot be split",
        "raise --max-num-batched-tokens to the context length, or enable chunked prefill",
    ),
    "start-batch-below-sequences": Message(
        "a step takes {max_num_batched_tokens} tokens, fewer than the {max_num_seqs} sequences",
        "lower --max-num-seqs, or raise --max-num-batched-tokens",
    ),
    "start-pages-not-unifiable": Message(
        "layers of this model keep pages of sizes that this engine version cannot put into one pool",
        "use a newer engine version, or leave --kv-cache-dtype and --block-size out",
    ),
    "start-hybrid-manager-needed": Message(
        (
            "the layers of this model keep different kinds of cache, which only the hybrid KV cache "
            "manager can manage"
        ),
        "leave --disable-hybrid-kv-cache-manager out",
    ),
    "start-block-above-batch": Message(
        "a block has {block_size} tokens, more than the {max_num_batched_tokens} of one step",
        "raise --max-num-batched-tokens to the block size",
    ),
    "start-workspace-locked": Message(
        "a kernel asked for a larger workspace than the profile run had shown",
        "use a newer engine version, or start with --enforce-eager to see which layer asks",
    ),
    "start-heads-not-divisible": Message(
        "{heads} attention heads cannot be divided over {tensor_parallel_size} ranks",
        "choose a tensor parallel size that divides the heads",
    ),
    "start-layers-not-grouped": Message(
        "the engine could not place every layer into a cache group: an error of this version",
        "use a newer engine version",
    ),
    "start-oom-loading": Message(
        "the card ran out of memory while the weights were loaded: they are larger than what is free",
        "use more GPUs with --tensor-parallel-size, or smaller weights",
    ),
    "start-oom-profiling": Message(
        "the weights fit, and the profile run then ran out of memory: its activations are too large",
        "lower --max-num-batched-tokens, --max-num-seqs or the images per prompt",
    ),
    "start-oom-graphs": Message(
        "the KV cache was allocated, then graphs and buffers outside the budget ran out of memory",
        "lower --gpu-memory-utilization by what was missing, or start with --enforce-eager",
    ),
    "start-oom-warm-up": Message(
        "graphs were captured, then the warm-up ran out of memory",
        "lower --max-num-seqs, or --gpu-memory-utilization",
    ),
    "start-oom-running": Message(
        "the start succeeded, and a request later needed memory that the profile run had not seen",
        "lower --gpu-memory-utilization, and look for prompt logprobs, large images or another process",
    ),
    "start-oom": Message(
        "the card ran out of memory, and the log shows too little to say when",
        "send the log from its first line on",
    ),
    "start-no-kernel-image": Message(
        "this build of the engine, or of one of its kernels, has no code for this kind of GPU",
        "use an image or wheel built for this card (newer releases usually are); memory is not the cause",
    ),
    "start-model-gated": Message(
        "the model is gated: its owner gives access on request, and this start had none",
        "ask for access on the model's page, then start with HF_TOKEN, or give a local path",
    ),
    "start-model-not-found": Message(
        "there is no model of that name: neither a folder here nor a repository that this start could read",
        "check the spelling, mount the folder into the container, or set HF_TOKEN for a private repository",
    ),
    "start-architecture-unknown": Message(
        "this engine version does not support the architecture of the model",
        "use a newer engine version",
    ),
    "start-collectives": Message(
        "the GPUs could not communicate: their communication library failed, and memory is not the cause",
        "start with NCCL_DEBUG=INFO, in a container with --ipc=host or a larger --shm-size, and try "
        "NCCL_P2P_DISABLE=1",
    ),
    "start-other-error": Message(
        "the engine stopped with an error that is not in our list; this is the last error before it exited",
        "search the engine's issues for its text; the plan cannot explain it",
    ),
    "start-failed": Message(
        "the engine stopped, but its own error is not in these lines",
        "include the lines before this one",
    ),
    # -- pre-run of vllm-mindspore
    "prerun-model-share": Message(
        "{field}={value} leaves nothing for the KV cache: the budget is {limit} GB, and the engine would compute a "
        "negative number of blocks",
        "lower it below {limit}",
    ),
    "prerun-peak-below-kv": Message(
        "a peak of {value} GB is not more than the {kv} GB that this pre-run gives the KV cache alone",
        "check that the settings are those of the run that was logged",
    ),
    "prerun-no-kv": Message(
        "weights and activations need {value} GB, and the budget is {limit} GB: nothing is left for the KV cache",
        "lower --max-model-len to 8192 or 4096, or use more cards",
    ),
    "prerun-no-peak": Message(
        "the log has no “actual peak used mem”",
        "set GLOG_v=1, send one request of the full length, and paste again",
    ),
    "prerun-system-share": Message(
        "only {left} GB stay outside the budget, and system and driver take about {system} GB",
        "lower --gpu-memory-utilization to {share}, and compare with npu-smi info",
    ),
    # -- why a start may differ from its plan
    "cause-display": Message(
        "a display is attached: the desktop takes memory of this card",
        "move the display to another card, or plan with the measured system part",
    ),
    "cause-other-process": Message(
        "another process held memory of this card when the engine started",
        "look with nvidia-smi or npu-smi and stop it, or plan with the measured system part",
    ),
    "cause-driver-context": Message(
        "the driver's context on this machine has another size", "plan with the measured system part"
    ),
    "cause-communication": Message(
        "communication buffers differ: NCCL or HCCL, custom all-reduce, the link between the cards",
        "plan with the measured framework part for this number of GPUs",
    ),
    "cause-process-while-profiling": Message(
        "another process took or freed memory while the engine measured itself",
        "start again when nothing else runs on the card",
    ),
    "cause-extra-weights": Message(
        "a draft model or adapter slots are loaded with the weights",
        "check the draft model and the LoRA flags",
    ),
    "cause-quantized": Message(
        "the checkpoint is quantized ({method}), and the planned model is not",
        "choose the checkpoint that was started, or give its config.json",
    ),
    "cause-other-weights": Message(
        "another checkpoint, precision or revision was loaded than the planned one",
        "give the config.json of the checkpoint that was started",
    ),
    "cause-encoder": Message(
        "the profile run of the image or audio encoder differs: limits per prompt, largest image, encoder budget",
        "check --limit-mm-per-prompt and the processor's largest image",
    ),
    "cause-batched-tokens": Message(
        "the log does not show how many tokens a step takes, so its default is assumed",
        "set --max-num-batched-tokens in the scenario",
    ),
    "cause-eager": Message(
        "the engine ran in eager mode: no CUDA graphs, and activations that are not compiled",
        "set eager mode in the scenario, or leave --enforce-eager out",
    ),
    "cause-compiled-before": Message(
        "the start found its kernels compiled: a first start peaks higher, by a copy of the embedding table",
        "plan with these measurements, as long as the compile cache is kept",
    ),
    "cause-kernels": Message(
        "other kernels were chosen for this card or build, with another workspace",
        "compare the attention and MoE backends that the log names",
    ),
    "cause-capture-sizes": Message(
        "other graph sizes may have been captured than are planned: the log does not name them",
        "check --max-cudagraph-capture-size and the compilation config",
    ),
    "cause-graph-pool": Message(
        "graphs used memory that the engine had already taken while it estimated them",
        "plan with these measurements",
    ),
    "cause-patched-build": Message(
        "this is not a release but a build of its own ({version})",
        "compare with the release next to it, or plan with these measurements",
    ),
    "cause-follows-weights": Message("it follows from the weights", "see the weights"),
    "cause-follows-activations": Message("it follows from the activations", "see the activations"),
    "cause-follows-cuda_graphs": Message("it follows from the CUDA graphs", "see the CUDA graphs"),
    "cause-follows-framework": Message("it follows from the framework's part", "see the framework's part"),
    "cause-unknown": Message(
        "the log does not show why", "send the log from its first line on, at debug level if you can"
    ),
    "cause-other-version": Message(
        "the log is of version {logged}, and the plan of {planned}", "use the log's scenario"
    ),
    "cause-other-flags": Message("the plan and the log differ in: {fields}", "use the log's scenario"),
    "cause-unnamed-card": Message(
        "the log does not say which card it ran on: the plan is for {name}",
        "choose the card in the sidebar, or send a log at debug level",
    ),
    "cause-driver": Message(
        "the driver shows {logged} GiB, the catalogue {known} GiB for this card: an older or newer driver, or ECC",
        "plan with the log's figure",
    ),
}
