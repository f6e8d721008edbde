# small: 2 x l40s in 2 replicas, 1 of them spare; written by capplan 1.0.0 from plan.json
# vllm 0.21.0, qwen3-0.6b, at a peak of 20 req/s
# targets: ttft_p95 300 ms, tpot_p95 13 ms, required confidence 80%
# order: 2 x l40s at the scenario, $1.00 an hour each, price of an unknown day
# a replica serves 20 req/s at the peak and counts as full at 41.45 req/s, headroom and required confidence included
# as predicted, a replica meets its targets up to 55 req/s
# start it 2 times, behind a router
vllm serve Qwen/Qwen3-0.6B \
  --tensor-parallel-size 1 \
  --kv-cache-dtype bfloat16 \
  --max-model-len 4096 \
  --max-num-seqs 256 \
  --max-num-batched-tokens 2048 \
  --gpu-memory-utilization 0.92 \
  --enable-prefix-caching
