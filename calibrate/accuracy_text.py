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

PUBLISHED_TEXT = """What is published of large mixtures of experts: closed loops on one server, separate pools, and decode and prefill engines
by themselves. Only intervals of mixtures were fitted to these runs; how unevenly a balancer loads ranks, and how long a dispatch waits for late ranks, were chosen
with some of them in view ([assumptions](../assumptions.md)). Pools that were measured by themselves had nothing else to do: in production they reach about half.
TTFT at low load has at most four clients. `python -m calibrate.published_tables FILE` prints this page.
"""

RULERS_TEXT = """How well is a model predicted that no fit has seen? The host numbers of a prediction are those that all other rows ask for, without its group (source, model, device), model, device or source.
A generation of an engine is predicted with the numbers of the generation before it. A stranger's run has neither its source nor its model in the fit:
it is the figure of [accuracy](../accuracy.md). Kernel timings stay, because they are of no model. Cells have the median error / the share within 20 %.
[All scores](never-fitted.csv), also by load, engine and device, of cells with 15 values or more.
"""

CLASS_GENERATION_TEXT = """[By class of model and generation of engine](never-fitted-by-generation.csv): median error with the model left out / with the source left out, and in
brackets the values and the models behind them. The worst cells have few values.
"""

CLASS_COVERAGE_TEXT = """By class of model and generation of engine (`first`: the host schedules between steps; `today`: it runs ahead), over all statistics and loads: shares of
left-out values inside the intervals that claim 50 / 80 / 95 % ([over all values](../accuracy.md#how-wide-is-the-interval)). Bold shares differ from a claim by over 5 points. Values of one
model under one source count as eight rows at most.
"""

ONE_SIDED_TEXT = """Is any kind of run predicted too fast or too slow as a whole? With the model left out, by engine, class of model and device:
"""

CHOICES = """A question is a model in a precision with its lengths and a limit on TPOT (10, 20, 30, 50 or 100 ms). Its plans are all closed loops that were measured of it: GPUs,
layouts, engines, numbers of clients. The pick has the most output tokens per second and GPU among the plans that are predicted to keep the limit. Its regret is
what it lacks, as measured, to the best plan that kept the limit. With a required confidence, a pick keeps its limit with that probability by the
[slowness](chance-to-meet-the-slo.md) of replicas, as a plan of `fleet` does; at the predicted time the slowness plays no part. The targets are 4 % of picks above their limit, and 85 % of
picks, among several GPUs, on the GPU of the best run. `capplan validate FILE --decisions` prints the figures in sample.
"""

CHOICES_PICTURE_TEXT = """![Required confidence of 50 to 95 % against picks above their limit and mean regret, with models and with sources left out](../pictures/choices.svg)
"""

CERTAINTY = """[How likely a plan meets its SLO](../certainty.md) explains the slowness of a replica (`capplan/accuracy/slowness.py`), and which runs its spread is from. In addition:

- The runs are within capacity. Both latencies of a run at once are within limits that each is equally likely to keep. The slowest first tokens of a closed loop, which hold cold starts, do not count.
- No group (source, model, device) has more than eight votes: few open loops were measured, and plans are mostly of open loops.
- The logarithm is spread in proportion to sqrt(r² + ln(1 + h / step)²): the error of kernels, and what an unknown host adds to each step, h = 0.5 ms.

Below, each limit lies where it should hold with the claimed probability, by the distribution of all other groups, models or sources;
the host numbers of each prediction were fitted without its group.
"""

NOBODY_TIMED = """A GPU without timings borrows the kernels of a relative: of its own generation if one was timed, else of another. How wrong that is: each timed GPU was hidden in turn, and every fifth of
its timings predicted with the fits of its relative, and with those of another generation (`python -m calibrate.hidden_devices`). Across generations no relative is the best for a class of
kernels on all GPUs, so one relative gives all. Each kinship has an interval of its own: of timed kernels in `capplan validate --kind kernel`, and in words in the assumption that every answer on
such a GPU lists.
"""

SERVED_UNTIMED = """Runs on GPUs that nobody timed, by the same kinship:
"""

METHOD = """- Each row of a serving benchmark is replayed: its requests, lengths, arrivals or clients, on a replica with the row's engine and version,
  through the code that `estimate`, `fleet` and `simulate` use (`capplan/accuracy/replay.py`). Closed loops start with their burst. If the number of requests is not stated, ten for each client; seeds are fixed.
- What a row does not state is taken from the public scripts and pages of its source, as data with the
  script's name (`capplan/accuracy/data/recipes.yaml`), and from the defaults of the engine on the day of the run; also how many requests `trtllm-bench` sends and which limits it
  chooses (`capplan/accuracy/deployment.py`), and the lengths of a data set (`capplan/accuracy/benchmark.py`). No measured value comes from there.
- A step is the sum of its kernels ([kernel times](kernels.md)), less what overlaps in a CUDA graph, plus what the host adds. No step is below its memory traffic or its arithmetic at
  datasheet rates (`tests/properties/test_step_floors.py`).
- Host numbers are fitted by robust least squares on all rows at once, each kind of value (load and column) by its usual error, with the median of all
  eras whose hosts run the same kind of code as a prior; no model of an era weighs more than a hundred rows (`calibrate/host_fit.py`). In sample: numbers fitted on all rows. Left out: one
  step from the numbers of all.
- Kernel numbers come only from kernel timings, with four exceptions from served rows: AMD's fractions of the peaks, how cards share PCIe (L40S), the router skew of a step (closed loops of three mixtures),
  and how often decode attention of vLLM to 0.6 and of compiled TensorRT-LLM engines reads what query heads share.
- Intervals are conformal over models and sources as units (`calibrate/interval_fit.py`): rows of one model under one source err together, so a unit weighs as
  much as its rows, at most eight. By statistic, load, class of model, generation of the engine and whether the device was calibrated, an interval lies between
  quantiles of measured over predicted, among predictions without the row's model, without its source, and with the engine numbers of the generation before. Its ends are stretched until 50, 80 and 95 % of what was
  left out lie inside; dense networks and mixtures apart; published runs are mixtures. Fewer than five models, or one source, give way to the
  next wider regime of their class; where kernels were not timed, its logarithm is 1.6 times as wide on another generation, 2.03 times on a vendor without runs.
- Open loops whose client runs the engine in its own process (`in_client`) have intervals of their own, and no plan takes its certainty from them.
- Formulas, recipes and where eras end were chosen while looking at the scored rows: no score is quite blind, left-out
  ones included. AccelMark's `req_s` repeats the offered rate.
"""

FITTED_NUMBERS = """None belongs to a model, to a source or to a row, and no measured result is looked up. Constants that were chosen rather than fitted are in
[constants](constants.md).
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

OPEN_LOOPS_TEXT = """Requests come at a rate, whatever the engines do. Each such row is predicted with the host numbers that all other sources
ask for. Within capacity and saturated are as the row says, else as predicted. The target of a response time is the TPOT's: nothing was promised of it.
Half of the rows with a TPOT are AccelMark's runs of an engine in the client's process, as no plan runs it. So each target is also judged on the runs whose engine has a process of its own.
"""
