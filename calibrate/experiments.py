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
| one model decides the host of its era | models of an era weigh the same, rare ones raised (a burst of a tiny model up to forty times) | logs of other sources off by 0 to 9 % | 2 to 14 % | dropped: the fewest rows are the noisiest |
| | `request_s` and `prefill_excess_ratio` are those of all of vLLM's second engine | median TTFT 22.1 % | 20.0 % | kept; the second since 0.11.1 alone, see below |
| | no model weighs more than a hundred rows of its era, none is raised; 45 and 60 rows are as good unseen, and worse on logs of other sources | - | - | kept |
| a number that few rows tell is the median of all engines | the median of its generation: engines whose host schedules between the steps, engines that run ahead | 6.9 / 90 | 5.8 / 94 | kept |
| | by engine and generation | 6.9 / 90 | 6.5 / 93 | dropped |
| tokens of a step prefer the same experts | router skew of served steps 1.1 for 0.5: gpt-oss, DeepSeek and MiniMax were 4 to 10 % slow at 16 to 128 clients, dense models were not | in sample 4.4 / 95 | 4.1 / 96 | kept, one number |
| hosts of several ranks | engines of the first generation take longer for a step of several ranks, whatever their number | static batch 8.5 % | 7.4 % | kept, one number |
| | the same by log2 of the ranks; for engines of today (comes out as 0) | static batch 8.5 % | 7.7 % | dropped |
| | work per sequence that grows with the ranks | offline maximum 11.3 % | 12.0 % | dropped |
| decode attention of old engines | kernels of the first generation read what query heads share more than once: (query heads per KV head)^0.25. Llama-2-7B, which shares nothing, was right; Llama-70B, eight to one, 20 to 50 % fast on long contexts | static batch 7.9 %; offline, compiled engines 10.8 % | 6.4 %; 9.1 % | kept, one number; not for vLLM 0.7, which asks for none |
| | powers 0.2; 0.3; 0.4 | static; offline as above | 6.4, 9.3; 6.2, 9.2; 6.4, 10.8 % | flat around 0.25 |
| one host for the executor and the example script of TensorRT-LLM | static batches of 0.12, the version that their script names, have numbers of their own: 22 us of Python per sequence and step, the executor 2 us | offline, compiled engines 10.1 % | 9.3 % | kept, four numbers |
| both, with all numbers fitted anew | one discount for all engines; one for each generation; the same with one `prefill_excess_ratio` for the first and a prior of 6 rows for 12 | TPOT 5.5 / 92; static 8.4; offline 11.2; source left out TPOT 11.1 % | 6.2 / 91, 6.9, 10.5, 10.6; 5.5 / 92, 7.1, 10.2, 12.0; 5.6 / 92, 6.5, 10.4, 13.7 % | dropped: runs of gpt-oss on B200 that are drawn for the tests go from 8.9 to 9.1 to 10.1 % |
| | the discount is told by engines of today, with the eras whose kernels changed fitted alone; all others stand | as above | 5.7 / 91.4, 6.9, 10.1, 12.0 % | kept |
| one model decides the discount when another is left out | its prior has the spread that it moves by when models and sources are left out (0.1; it was 0.3; the shipped 0.69 stands) | 5.7 / 91.4 | 5.2 / 92.5 | kept |
| experts over ranks | expected maximum of the ranks' loads (Wilson and Hilferty) for the bound on it | offline, experts over ranks 15.1 %; TPOT 4.0 % | 13.6 %; 4.3 % | dropped |
| | ranks loaded evenly | 15.1 %; 4.0 % | 12.9 %; 5.2 % | dropped |
| TensorRT-LLM's mixtures of experts offline | Llama 4 reads all tokens in chunked layers | Maverick and Scout with 20,000 tokens on H200 1.3 to 1.5 of what was measured, on B200 0.7 to 0.8 | 1.1 to 1.2; 0.6 to 0.7 | dropped |
| | nvfp4 experts of trtllm-gen for CUTLASS | Maverick 0.7; Qwen3-235B 0.9; Qwen3-30B 1.05 of what was measured | 0.85; 1.15; 1.35 | dropped |
| prompts of fp4 on B200 | elementwise bandwidth of the GB200, the same silicon: the B200's timings all fit in its L2 and ask for 44 % of the sheet, the GB200's for 85 % | mean TTFT of Llama-70B in fp4 14.3, in fp8 4.4 %; offline 10.4 % | 9.3; 7.1; 11.7 % | dropped: what is left of the error is elsewhere |
| one discount for all engines | by generation; by engine; by both; by era | 6.9 / 90 | 7.1 / 87; 7.4 / 89; 6.7 / 90; 5.7 / 95 | dropped: by era, with the routers, little is left of the gain, and ten numbers more |
| a row that is wrong for another reason steers a little | a loss that forgets it (Geman-McClure for Cauchy) | in sample 4.2 / 96 | 3.8 / 95; gpt-oss on B200 at few clients 13 % fast | dropped |
| one way to run prompts in vLLM's second engine | `prefill_excess_ratio` shared since 0.11.1 alone: before, prompts of dense models over four and eight B200 ask for half as much again | logs of RTX 4090 +23.4 % | +22.2 %; mean TTFT left out 11.3 to 11.8 % | kept, one number |
| mean TTFT holds cold starts | the median TTFT steers where a row has one | mean TTFT 14.7 % | 13.2 % | kept |
| prompts of experts are too fast | layers with experts launch more slowly outside CUDA graphs (up to 380 us a layer) | mean TTFT 13.2 % | 13.2 to 13.8 % | dropped |
| one host for all versions of vLLM's second engine | `step_s` and `sequence_s` shared as well | 5.0 / 98 | 5.5 / 97 | dropped |
| TensorRT-LLM's published maxima | decode steps are padded to the CUDA graphs that their page lists (1, 2, 4, ... 128, 256, 384, 512, 1024, ...), as its engine pads them | offline 10.2 %; of the 350 runs since 0.20 in sample 10.3 % | 9.7 %; 8.3 % | kept, no number |
| | with attention data parallelism, tokens are gathered for the experts after they are quantised, as its source says | those 350 runs 8.3 / 82 %; offline 9.7 % | 7.7 / 86 %; 9.1 %, with the host numbers of these engines fitted again | kept, no number |
| a kernel in a hot loop runs at lower clocks than in a served step | no loss in long matmuls (`sustained_loss` 0) for all engines | offline 9.7, mean TTFT 11.7 % | 10.3, 12.1 % | dropped |
| prompts of fp4 under TensorRT-LLM are slow | its matmuls reach what SGLang's reach on the same device | loss of its eras after the fit 0.800 | 0.846 | dropped |
| hosts of attention data parallelism | each group has a scheduler of its own (vLLM's engine cores, SGLang's and TensorRT-LLM's ranks), which handles its own sequences: the time per sequence and step is divided by the groups | offline Maverick on B200 21 %, Qwen3-235B there 11, Scout on RTX PRO 6000 7; TPOT of gpt-oss under TensorRT-LLM 21 % | 10 %, 7, 3; 17 %. Worse: Maverick on H200 5 to 14 %, bursts of DeepSeek 59 to 64 % | kept, no number |
| limits of `trtllm-bench` | it counts the elements that the files of a checkpoint state: half the bytes of nvfp4, twice those of mxfp4 | offline, fp4: DeepSeek on GB200 60 %, gpt-oss-120b there 9, on H200 20 | 45 %, 3, 16 | kept, no number |
| how runs were started | settings of the public scripts at the day of each run, for all of their models | mean TTFT in sample 9.1 % | 8.7 % | kept |

Lines with two figures like 6.9 / 90 are, from the second on, of all closed loops by one linear step of the fit, models left out.
Causes looked at and not understood: prompts of Llama-70B over four and eight B200 under the vLLM of early 2025 (40 % too fast, over one and two right),
MiniMax under vLLM 0.17 (TTFT 40 % too fast, under 0.19 right), static batches of Mixtral (predicted 0.6 of what was measured from 16 sequences on: the
script repeats its one text, and equal sequences hit few experts), nine runs of gpt-oss at 512 clients.

What is left of the targets: TPOT within 20 % stands at 92.6 of 93 % (gpt-oss left out of vLLM is 14 to 16 % slow on Hopper), offline maxima at 9.1 of 8.5 %
(Maverick in fp4 on B200 a third too slow, prompts of fp4 there 15 to 20 %; Llama-70B under compiled engines 8 to 15 % fast, models of 7 and 8 billion parameters there 5 to
15 % slow), static batches at 6.9 of 6.5 % (Mixtral, Falcon-180B on PCIe).

Collectives that overlap with the compute of prompts (large messages at half their time): TTFT of 272 closed loops over several devices, engines of today,
in sample 9.6 to 10.8 %, bias +1 to -6 %: Llama-70B over eight H200 with prompts of 8k goes from +10 to -8 %, over eight B200 from -5 to -22 %, gpt-oss there from
-9 to -20 %: dropped. Cards on PCIe: Llama-70B on four and eight L40S -4 and +4 %, Mixtral -6 and -10 %, on eight A6000 within 3 %; pipelines of RTX PRO 6000 of
two stages -13 %, of eight +3 % of tokens/s, mixtures of experts over 4 x 2 of them 17 % slow: no rule left to find in the open rows. Nearly full memory: where under 32
sequences fit, offline maxima are 2 % fast in the median (21 rows, 7 % off), where over 512 fit 1 %: no effect in the open rows. Devices that nobody timed: their own
section above.
Prompts of dense models in fp4 on B200 are 15 to 20 % slow offline at every parallelism: their matmuls reach more than their timings,
which run hot in a loop.
"""
