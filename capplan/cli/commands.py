"""The commands: a name, and the line that `capplan --help` shows for it.

A command is one function that returns the exit code, in the file of its subject: `kv-size` is `kv_size_command` in models.py. A new
command is that function, a line in `COMMANDS` and its name in `FILES`; nothing is imported before the command is called.
"""

FILES = {
    "init": ("init",),
    "models": ("list", "model", "kv-size", "hardware"),
    "replica": ("fit", "estimate", "spec"),
    "plans": ("fleet", "diff", "check", "verify-plan", "explain", "export", "levers", "report"),
    "money": ("compare", "bill", "cache"),
    "traffic": ("simulate", "sweep", "workload", "validate"),
    "calibrate": ("calibrate",),
    "mcp": ("mcp",),
}
"""File of this folder -> commands in it."""
FILE_OF = {name: file for file, names in FILES.items() for name in names}

COMMANDS = {
    "init": "Write a first scenario, with a comment at every line: from five answers, flags, a trace, metrics, a launch command or a shipped one.",
    "list": "List shipped scenarios, models, hardware, machines, engines, prices or hosted APIs, all or those of a word.",
    "model": "Show what a model is: layers, parameters, weight bytes; or list the shipped ones.",
    "kv-size": "Show the KV cache and state bytes of a model, as needed and as the engine reserves them.",
    "fit": "Show whether a model fits, what uses the memory, and how many sequences there is room for.",
    "estimate": "Estimate latency and throughput of one replica at a concurrency or at a request rate.",
    "spec": "Show the speedup of speculative decoding by batch size and draft length, and where it stops paying off.",
    "fleet": "Find the cheapest fleet that serves a scenario, with the runners-up and what was rejected; -o plan.json keeps the plan.",
    "diff": "Show what changed between two scenarios or plans: inputs, GPUs, dollars, latency and SLO attainment.",
    "check": "Show whether a plan still holds: SLO targets, attainment, capacity, budget and the dates of its prices; exits 4 if not.",
    "verify-plan": "Verify a plan with measured results: predicted next to measured, what to recalibrate, the scenario's next version; exits 4 if it does not hold.",
    "explain": "Explain a number that a command printed of a plan: its formula, what went into it, and where each of those is from.",
    "export": "Export a plan as what starts or watches its fleet: engine commands, a Compose file, Kubernetes manifests, a Grafana dashboard.",
    "levers": "Show what each change to a scenario is worth: GPUs, dollars, latency and risk of every lever separately, and of the best combination.",
    "compare": "Compare a month of a scenario's fleet with hosted APIs, prompt caching included, and find the break-even traffic.",
    "bill": "Show who pays for a scenario's fleet, by class and tenant, by request, user and conversation; --focus exports it.",
    "cache": "Show what prompt caching at a hosted API saves for a shared prefix, and from which request on it pays.",
    "report": "Write the page for the planning review of a scenario: the decision first, then its evidence.",
    "simulate": "Simulate a scenario's fleet, request by request, under its traffic or a trace.",
    "sweep": "Sweep plans over rates or concurrencies: throughput against latency, the knee, the largest load within the targets.",
    "workload": "Read a trace, a request log or Prometheus text, or draw a scenario's traffic; write it as a workload for scenarios.",
    "validate": "Predict measured results with the code that every command uses, and score the predictions.",
    "hardware": "List the devices of the catalogue, or show a device or a machine with its sources.",
    "calibrate": "Measure a device and write its kernel efficiencies, or verify, refit or compare a calibration.",
    "mcp": "Serve fit, estimate, fleet, explain and check as read-only tools of the Model Context Protocol, over stdin and stdout.",
}

EXAMPLES = {
    "init": "capplan init chat.yaml --from 'vllm serve Qwen/Qwen3-8B -tp 2'",
    "list": "capplan list models qwen3",
    "model": "capplan model deepseek-v3",
    "kv-size": "capplan kv-size llama-3.1-8b --context 8192",
    "hardware": "capplan hardware h200",
    "fit": "capplan fit llama-3.1-70b --hardware h100 -tp 4",
    "estimate": "capplan estimate llama-3.1-8b --hardware h100 --concurrency 16",
    "spec": "capplan spec llama-3.1-70b --hardware h100 -tp 4 --draft llama-3.1-8b --acceptance 0.8",
    "fleet": "capplan fleet support-chat -o plan.json",
    "check": "capplan check support-chat --plan plan.json",
    "diff": "capplan diff plan.json support-chat --format markdown",
    "explain": "capplan explain plan.json ttft_s.p95",
    "export": "capplan export --plan plan.json --target k8s",
    "verify-plan": "capplan verify-plan --plan plan.json --results bench.json",
    "levers": "capplan levers support-chat",
    "compare": "capplan compare api-or-own --api openai/gpt-5-mini",
    "bill": "capplan bill who-pays",
    "cache": "capplan cache --prefix-tokens 4000 --requests-per-day 10000 --api anthropic/claude-sonnet-5-5",
    "report": "capplan report --plan plan.json -o plan.html",
    "simulate": "capplan simulate support-chat --seed 1",
    "sweep": "capplan sweep small-team",
    "workload": "capplan workload trace.csv -o workload.yaml",
    "validate": "capplan validate",
    "calibrate": "capplan calibrate --device cuda -o my.calibration.yaml",
    "mcp": "capplan mcp",
}
"""A line that runs, for the help of each command; docs/commands.md has the same."""
