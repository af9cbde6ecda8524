export ASCEND_RT_VISIBLE_DEVICES=0,1,2,3
export HCCL_BUFFSIZE=1024
export VLLM_USE_V1=1
docker run --rm --name vllm-ascend --device /dev/davinci0 --device /dev/davinci1 --device /dev/davinci2 --device /dev/davinci3 \
  --device /dev/davinci_manager --device /dev/devmm_svm --device /dev/hisi_hdc \
  -v /usr/local/dcmi:/usr/local/dcmi -p 8000:8000 --shm-size=1g \
  -e PYTORCH_NPU_ALLOC_CONF=max_split_size_mb:256 quay.io/ascend/vllm-ascend:v0.11.0rc1-a3 \
  vllm serve vllm-ascend/Qwen3-32B-W8A8 --quantization ascend --served-model-name qwen --tensor-parallel-size 4 \
  --max-model-len 16384 --additional-config '{"ascend_scheduler_config":{"enabled":true}}'
