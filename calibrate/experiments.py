"""What was tried to bring the errors down, kept or dropped, with what it did: a section of docs/accuracy.md.

The figures are those of the experiment at its time, on a sample of closed loops (up to 30 rows of each model, device, format and era)
with whole models left out: median error of the mean TPOT and its share within 20 %, unless the line says otherwise.
"""

TRIED = """Each line changes one thing. Unless it says otherwise, the figures are the median error of the mean TPOT and its share within 20 %, on a
sample of closed loops (up to 30 rows of each model, device, format and era) with whole models left out, before and after.

| cause | tried | before | after | outcome |
| --- | --- | --- | --- | --- |
| the experts of gpt-oss looked slower than they are | the floor of routed experts grows with the experts that tokens are sorted among: Marlin's mxfp4 kernel was timed with 896 experts, gpt-oss has 128 (18 us a layer less) | held-out experts 8.9 %; trtllm-gen up to 64 tokens 7.5 % | 8.7 %; 6.8 % | kept |
| fp8 under TensorRT-LLM | its matmuls were timed together with the kernel that finds the scale of their inputs (floor 12 us = 3 + 7 + 1.4); checkpoints state the scale | Llama 70B 8.5 / 92; all 7.0 / 89 | Llama 70B 2.4 / 99; all 5.1 / 90 | kept |
| one discount for all kernels in a CUDA graph | by era, on all kernels | - | 5.7 / 90 | dropped |
| | by era, routed experts whole | 5.7 / 90 | 7.0 / 91 | dropped |
| | by era, routed experts and attention whole | 5.7 / 90 | 5.7 / 94 | see next |
| | one number for all engines, on matmuls and elementwise kernels alone | 5.7 / 94 | 5.2 / 94 | kept, ten numbers fewer |
| | one number for each class of kernels | 5.7 / 90 | 8.6 / 83 | dropped: the classes trade against each other |
| | a time saved for each kernel instead of a share of its excess | 5.7 / 90 | 6.4 / 93 | dropped |
| one model decides the host of its era | models of an era weigh the same; `request_s` and `prefill_excess_ratio` are those of all of vLLM's second engine | median TTFT 22.1 % | 20.0 % | kept |
| mean TTFT holds cold starts | the median TTFT steers where a row has one | mean TTFT 14.7 % | 13.2 % | kept |
| prompts of experts are too fast | layers with experts launch more slowly outside CUDA graphs (up to 380 us a layer) | mean TTFT 13.2 % | 13.2 to 13.8 % | dropped |
| one host for all versions of vLLM's second engine | `step_s` and `sequence_s` shared as well | 5.0 / 98 | 5.5 / 97 | dropped |
| numbers of old engines pull those of today | priors, and what graphs hide, apart for engines of 2024 and of today (all rows) | 7.4 / 93; static batch 9.0 % | 7.0 / 89; static batch 9.5 % | dropped, five numbers more |
| how runs were started | settings of the public scripts at the day of each run, for all of their models | mean TTFT in sample 9.1 % | 8.7 % | kept |

Not tried yet: overlap of collectives with the compute of prompts, TensorRT-LLM's mixtures of experts offline on Hopper, links of PCIe cards over two
sockets, nearly full memory, host work by rank in engines that are embedded in their client, and donors by rule for devices that nobody timed.
"""
