"""The prose of docs/accuracy.md and of its tables in docs/evidence/; figures are computed when the pages are written."""

WRITTEN = """<!-- written by `python -m calibrate.accuracy_page FOLDER -o docs/accuracy.md`; do not edit by hand -->
"""

TITLES = {
    "published-deployments": "Published deployments of large mixtures of experts",
    "kernels-and-memory": "Scores of kernels, memory and slices",
    "method": "How predictions are scored",
    "never-fitted": "Errors on what was never fitted",
    "open-loops": "Open loops by source",
    "choices": "Choices by prediction",
    "serving-by-group": "Errors of served runs by group",
    "intervals": "Intervals by regime",
    "chance-to-meet-the-slo": "Chance to meet the SLO, claimed and observed",
}
"""Title of each page of docs/evidence/ that is written here."""

PAGE = """# How accurate are the predictions?

<!-- written by `python -m calibrate.accuracy_page FOLDER -o docs/accuracy.md`; do not edit by hand -->

Expect your first benchmark to differ from the prediction as the column "a stranger's run" says. Its numbers come from a fit that saw neither the source nor the model
of the result.

{board}

An error is |predicted / measured - 1|. A long sweep of one configuration counts once. {coverage}

`capplan validate` repeats this back-test on 200 published points that ship with capplan; `capplan validate FILE` scores [your own results](measured-results.md).

## Measured against predicted

![Measured against predicted time per output token, by class of model: dense, latent attention, mixture of experts](pictures/measured-predicted.svg)

The picture has 100 published values of each class, in sample. A point on the line was predicted exactly; a point above it took longer than predicted. [Furthest off](evidence/serving-by-group.md#furthest-off)
says of the points far from the line why they are there.

## Why open loops look worse

In an open loop requests arrive at a rate. About half of the published open loops run the engine inside the process of the benchmark client, where the client's processor
delays each step. No deployment runs so, and capplan has one number for the processors of all such servers. So the error is large even in sample. If the engine has a process
of its own, capplan predicts open loops within capacity about as well as closed loops:

{own_process}

Near saturation no prediction of TTFT is reliable: a few percent of capacity decide whether a queue grows. Use a load at which the SLO targets are met with headroom.

## How wide is the interval?

Every latency has an 80 % interval. The intervals are checked on results of a model, a source or an engine generation that they were not made from:

{claimed}

These are shares over all values. A limit that a plan meets with a chance of 80 % was met by <!-- 80% on unseen sources --><!-- end --> of the values of a source that was left out
([by source](evidence/chance-to-meet-the-slo.md)): one unusual setup is predicted worse than the chance says. Your installation is a source that nobody has seen.

## What this means for a plan

- **Compare GPUs and layouts** that differ by more than their intervals. Smaller differences are noise: benchmark both.
- **Trust memory most.** Weights, cache and "fits or not" agree with [logged engine starts](evidence/kernels-and-memory.md#memory) within 1 %.
- **Calibrate** the GPU that you rent: `capplan calibrate` takes minutes and narrows the interval. A GPU whose kernels nobody timed borrows those of a relative, and the plan says so.
- **Benchmark one replica** before you order many. `capplan verify-plan` compares the result with the plan.
- **Keep the required confidence** (80 % unless you state another): a pick by the predicted time breaks its limit
  [more often](evidence/choices.md).

[Limits](limits.md) lists what is predicted badly and what is not modelled. [Evidence](evidence/index.md) has every table: by load, source, device, class and engine, each open loop, each
published deployment.
"""
"""The page, with its tables left open."""

PUBLISHED_TEXT = """What operators and engine projects publish of large mixtures of experts: closed loops on one server, separate pools, and decode and prefill engines
measured by themselves. No number was fitted to these runs; how unevenly a balancer loads ranks and how long a dispatch waits for ranks that are behind were chosen
with some of them in view ([assumptions](../assumptions.md)). Rates of pools count for all GPUs of the pool, or for each where only that is published. Pools that were
measured apart had nothing else to do: in production they reach about half. TTFT at low load has at most four clients. `python -m calibrate.published_tables FILE`
prints this section for a file of such rows, and `capplan validate FILE` their scores.
"""

RULERS_TEXT = """How well is a model predicted that no fit has seen? The numbers of the host are those that all other rows ask for, by one step of the
fit from the numbers of all, and its predictions move along their slopes; likewise without a whole device, and without a whole source. A generation of an
engine is predicted with the numbers of the one before it, as a version that nobody measured yet. Without a group (source, model, device) the same model stays in on
another device, which flatters. A stranger's run has neither its source nor its model in the fit: it is the figure of the [scoreboard](../accuracy.md). The
last column leaves its generation out too, as for an engine that comes later. Median error / share within 20 %; cells of fewer than 15 values are left out. Kernel timings are not of any model, and stay.
"""

CLASS_GENERATION_TEXT = """By class of model and generation of engine, so that no average hides a class: median error with the model left out / with the source left out, and in
brackets the values and the models behind them. Where one model stands for a cell, nothing of its class and generation is left when it is left out.
"""

CLASS_COVERAGE_TEXT = """By class of model and generation of engine (`first`: the host schedules between steps; `today`: it runs ahead), over all statistics and loads: shares of
left-out values inside the intervals that claim 50 / 80 / 95 %. Bold shares differ from a claim by over 5 points at one of the levels. Values of one
model under one source count as eight rows at most, so a share of few models rests on few units.
"""

ONE_SIDED_TEXT = """Is any kind of run predicted too fast or too slow as a whole? With the model left out, by engine, class of model and device:
"""

CHOICES = """A question is a model in a precision with its lengths and a limit on TPOT (10, 20, 30, 50 or 100 ms); its plans are all closed loops that were measured of it: devices,
layouts, engines, numbers of clients, repeats as their median. The pick has the most output tokens per second and GPU among those that are predicted to keep the limit; its regret is
what it lacks, as measured, to the best that was measured to keep it. With a required confidence a pick keeps its limit as surely as a plan of `fleet`: the limit
holds for a replica that is slower than predicted by that quantile of the [slowness](chance-to-meet-the-slo.md) of plans (`replica_slowness`, 80 % unless a scenario says
otherwise). At the predicted time the slowness plays no part. The targets are 4 % of picks above their limit, and 85 % of picks, among several GPUs, on that of the best run; by tokens per GPU that is nearly always the newest, so its share says little. `capplan validate FILE --decisions`
prints the figures in sample.
"""

CHOICES_PICTURE_TEXT = """![Required confidence of 50 to 95 % against picks above their limit and mean regret, with models and with sources left out](../pictures/choices.svg)
"""

CERTAINTY = """What is uncertain of a plan is how fast its replicas are (`capplan/accuracy/slowness.py`). A replica whose every step takes s times as long
does at r requests per second what the predicted one does at s times r, s times as slowly: it saturates earlier. A plan holds all its targets with
the probability that s is at most the largest slowness at which they all still hold. That is one number for all latencies, so the probability
is a joint one; for a single target it is taken from the runs' own values of that latency.

- The runs are of servers whose engine has a process of its own, within capacity: no deployment runs its engine in the client's process. The slowness of
  an open loop is the one at which its replay gives what was measured: for both latencies at once the larger of the two. In a closed loop everything takes longer by the
  slowness, so it is measured over predicted; its slowest first tokens hold cold starts and the first burst, and do not count.
- Few open loops were measured, most of them by one source on one GPU, and closed loops are predicted more closely. Plans are mostly of open loops. So all open loops together
  have as many votes as all closed loops, and within each kind no group (source, model, device) has more than eight.
- The logarithm is spread in proportion to sqrt(r² + ln(1 + h / step)²): what kernels are off by, and what an unknown host adds to each step. h is 0.5 ms, an assumption: a slow cloud core
  launches half as fast as a fast desktop core, and published runs do not tell. The bias is kept: the median is not 1.
- No open loop with latent attention was measured: such plans get 1.6 times the width, which is an assumption; mixtures of experts have few.
  A 95th percentile that was not measured is placed between the median and the 99th.
- Until November 2026 most runs behind this table had the engine in the client's process, and small models were the least sure of all: a plan at 80 % took up to five times
  the GPUs of one at the predicted time, though none of its picks among published runs was above its limit ([choices](choices.md)).

Below, each limit lies where it should hold with the claimed probability, by the distribution of all other groups (source, model, device), models or sources;
the host numbers of each prediction were fitted without its group. A new installation is a new source: test a plan under load before its last tenth of certainty
is paid for.
"""

NOBODY_TIMED = """A device without timings borrows the kernels of a relative: of its own generation where one was timed, else of another; its datasheet is its
own. How wrong that is, by hiding each timed device in turn and predicting every fifth of its timings with the fits of its relative, and with those of another
generation (`python -m calibrate.hidden_devices`). Across generations no relative is the best for a class of
kernels on all devices: the H100's links are described best by the A100 (26 % off, by the B200 41 %), the B200's too (22 %, by the H100 31 %), the A100's by the
GB200 (10 %, by the H100 25 %); routed experts of the H100 by the A100 (17, 34 %), of the B200 by the H100 (30, 37 %). So one relative gives all. The three kinships have an interval each: of timed
kernels in `capplan validate --kind kernel`, and in words in the assumption that every answer on such a device lists.
"""

SERVED_UNTIMED = """Runs on devices that nobody timed, by the same kinship; their intervals are those of served runs on borrowed kernels:
"""

METHOD = """- Each row of a serving benchmark is replayed: its requests, lengths, arrivals or clients, on a replica with the row's engine and version,
  through the code that `estimate`, `fleet` and `simulate` use (`capplan/accuracy/replay.py`). Closed loops start with their burst, as
  the published means include it. Where the number of requests is not stated, ten for each client; seeds are fixed.
- How a run was started is part of the run. What a row does not state is taken from the public scripts and pages of its source, as data with the
  script's name, and the settings of the run's day: cache dtype, limits, how long prompts are held back, which kernel runs the experts (`capplan/accuracy/data/recipes.yaml`),
  how many requests `trtllm-bench` sends, which limits it chooses and to which CUDA graphs its decode steps are padded (`capplan/accuracy/deployment.py`), the lengths of a data set
  (`capplan/accuracy/benchmark.py`). No measured value comes from there.
- A step is the sum of its kernels ([kernel times](kernels.md)), less what overlaps in a CUDA graph, plus what the host adds. One number for all engines
  says how much of the time of matmuls and elementwise kernels above their floor is left; attention, experts and collectives keep all of theirs. A
  step with prompts has a number of its own. No step is ever below its memory traffic or its arithmetic at datasheet rates
  (`tests/properties/test_step_floors.py`).
- Host numbers are fitted by robust least squares on all rows at once, each kind of value (load and column) by its usual error, with the median of all
  eras of the same generation as a prior; no model of an era weighs more than a hundred rows (`calibrate/host_fit.py`). The CUDA-graph discount is fitted on current engines only. Their numbers are those of a fit of all eras;
  vLLM to 0.6 and TensorRT-LLM to 0.18 were fitted again by themselves when their decode attention was mended. In sample: numbers fitted on all rows. Left out: one
  step from the numbers of all, as in the section on what was never fitted. Priors and usual errors leave the same rows out. Kernel numbers come only from kernel timings and have seen no serving row, with three exceptions: how PCIe is shared by the
  cards of a server was set on served rows of the L40S, the router skew of a served step on closed loops of three mixtures of experts, and how often decode
  attention of vLLM to 0.6 and of compiled TensorRT-LLM engines reads what query heads share on static batches and offline maxima.
- Intervals are conformal over models and sources as units (`calibrate/interval_fit.py`): rows of one model under one source err together, so a unit weighs as
  much as its rows, at most eight of them. By statistic, load, class of model, generation of the engine and whether the device was calibrated, they lie between
  quantiles of measured over predicted among predictions without the row's model, without its source and with the engine numbers of the generation before; their ends
  are moved apart by one over the number of models, and stretched until 50, 80 and 95 % of what was left out (models, sources
  and generations in turn, where there are two or more) lie inside the intervals that all other units give. An interval of fewer than five models, or of one source, spans that of the next wider regime as well and is marked: the runs of one source repeat its setup.
  The median keeps the bias; the ends enclose the prediction, since the bias is that of the sources which were measured. Open loops whose client runs the engine in
  its own process (`in_client`) have intervals of their own, and no plan takes its certainty from them: the process that steps the engine also has to send each
  request at its time. In a closed loop it waits for the engine, and such runs count with the others.
- Formulas, recipes and the versions at which an era ends were chosen while looking at the scored rows: so no score here is quite blind, the left-out
  ones included. AccelMark's `req_s` repeats the offered rate and says nothing.
"""

FITTED_NUMBERS = """None belongs to a model, to a source or to a row, and no measured result is looked up. Constants that were chosen rather than fitted are in
[assumptions](../assumptions.md).
"""

SETTLE = """| doubt | measurement |
| --- | --- |
| host time of an engine version | decode steps of one small model at 1, 8, 64 and 256 sequences with the engine's own step log: slope and intercept are the two numbers |
| what overlaps in a CUDA graph | one trace of a decode step under graphs next to the same kernels timed one by one |
| TTFT of a closed loop | per-request times of one run, in order of arrival: burst and steady state apart |
| offline maxima | TensorRT-LLM's iteration log of one run: batch, tokens and time of each step, at two lengths |
| servers that embed the engine | steps of a small model at 1 and 64 sequences, with and without streaming, and the processor's name |
| experts under load | tokens per expert of a real router on real prompts, at 1, 64 and 1024 tokens |
| a device that nobody timed | `capplan calibrate` on that device |
| collectives across servers | an all-reduce and an all-to-all of 64 KiB to 64 MiB over two nodes |
| noise of a source | the same run three times: repeated runs differ by 0.5 to 3.5 % in TPOT and 4 to 29 % in mean TTFT |
"""

OPEN_LOOPS_TEXT = """Requests come at a rate, whatever the engines do. Every such row of both tables is listed, core row or not, with the host numbers that all other sources
ask for: llm-d's open loops were never in a fit. Within capacity and saturated are as the row says, else as predicted; in overload a latency is the
length of the run. In the first table the target of a response time is the TPOT's: nothing was promised of it.
The medians over all sources are those of AccelMark's runs of an engine in the client's process, 46 of 84 rows with a TPOT. No other source runs an engine so, and
no plan does. So each target is also judged on the runs whose engine has a process of its own.
"""
