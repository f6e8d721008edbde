"""What all tests share: the program in this process or in one of its own, golden files, and measured facts."""

import csv
import gc
import json
import logging
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

# The same questions at every run, everywhere; `make fuzz` asks new ones, and more, with `--hypothesis-profile new`.
EVERYWHERE = {
    "database": None,
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}
settings.register_profile("same", derandomize=True, max_examples=40, **EVERYWHERE)
settings.register_profile("new", derandomize=False, max_examples=100, **EVERYWHERE)
settings.load_profile("same")
# A task of a cluster that failed and was dropped is reported when it is collected, and in Python 3.11 the traceback of that report, if
# written while a tree of syntax is built, breaks the tree: "AST constructor recursion depth mismatch".
logging.getLogger("asyncio").setLevel(logging.CRITICAL)
# Constants in the modules that happen to be loaded would be among the questions: with them a test asks
# something else when it runs alone.
providers.is_local_module_file = lambda _: False

# Tables are as wide as they want, whatever the screen: workers of pytest-xdist have COLUMNS set.
os.environ.pop("COLUMNS", None)
# One thread in each process: the products here are small, and threads that wait for each other keep the cores busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data"
SHARED = ROOT.parent / "shared"
"""Large tables of what was measured, where they lie beside the repository."""
LONG_CASES = {
    "test_a_budget_for_everything_is_the_total_of_the_bill": ["mixed"],
    "test_a_cache_finds_what_one_of_whole_sessions_finds_while_they_come_and_go": [
        "0.4-long tail",
        "0.4-shared prefix",
        "0.65-even",
        "0.65-long tail",
        "0.65-shared prefix",
        "0.9-even",
        "0.9-long tail",
        "0.9-shared prefix",
        "1.5-long tail",
        "1.5-shared prefix",
    ],
    "test_a_cached_model_is_read_where_the_hub_does_not_answer_any_more": ["out of reach"],
    "test_a_calibration_brings_every_operator_closer_to_the_truth_of_the_card": [
        "b200",
        "h200-sxm",
        "l4",
        "mi300x",
        "rtx-4090",
    ],
    "test_a_calibration_ends_when_it_said_however_slow_the_processor_is": [
        "1-with bf16",
        "1-without",
        "16-without",
        "4-with bf16",
        "64-without",
    ],
    "test_a_card_is_timed_in_its_own_16_bits_and_the_file_says_which": ["A100", "T4", "V100"],
    "test_a_change_of_a_key_changes_an_answer": ["fleet.prefill_hardware"],
    "test_a_clock_that_jumps_spoils_no_time_and_the_run_ends": ["-3600.0", "-5.0", "5.0"],
    "test_a_command_on_shipped_data_loads_no_heavy_library": ["words3"],
    "test_a_device_on_which_all_lasts_longer_takes_that_much_longer": [
        "AttentionRates",
        "LatentAttentionRates",
        "LinearAttentionRates",
        "LinkRates",
    ],
    "test_a_flag_that_nothing_reads_is_refused": ["model---revision v1", "model---weight-dtype fp8"],
    "test_a_fleet_by_events_is_a_fleet_by_steps": [
        "least_loaded-mixed",
        "round_robin-mixed",
        "round_robin-prefill_first",
    ],
    "test_a_layout_takes_the_same_replicas_in_a_what_if_as_in_its_plan": ["600"],
    "test_a_notebook_shows_what_its_cells_print": ["five-cells", "library"],
    "test_a_page_shows_what_the_program_prints": [
        "docs/how-to/capacity.md",
        "docs/how-to/plan-batch-jobs.md",
    ],
    "test_a_plan_with_pools_reaches_the_confidence_asked_for_at_its_own_load": ["0.5", "0.95"],
    "test_a_processor_that_slows_down_later_still_ends_in_time": ["2.0", "8.0"],
    "test_a_refit_names_the_one_library_that_it_needs": ["words1"],
    "test_a_replica_of_a_plan_is_a_replica_of_the_fleet_that_is_simulated": [
        "agent",
        "agent-sessions",
        "api-or-own",
        "batch-summaries",
        "best-of-n",
        "cascade-alone",
        "cascade-first",
        "cascade-second",
        "code-assistant",
        "commitments",
        "disaggregated",
        "embed-corpus",
        "follow-the-sun",
        "growing",
        "mig-slices-own",
        "mig-slices-summaries",
        "shared-gpus-own",
        "shared-gpus-summaries",
    ],
    "test_a_run_of_the_plan_lies_in_every_interval": [
        "open-111",
        "open-112",
        "open-113",
        "sessions-111",
        "sessions-112",
        "sessions-113",
    ],
    "test_a_run_that_is_twice_as_slow_does_not_verify": ["sessions"],
    "test_a_scheduler_without_workers_is_named_in_a_stated_time": ["0", "1"],
    "test_a_target_that_includes_it_is_one_of_the_engine_with_less_to_spend": ["e2e-3.0-1.0-2.0"],
    "test_a_virtual_card_gives_a_file_that_reads_back_and_says_what_it_lacks": [
        "a100-sxm-80gb",
        "b200",
        "h200-sxm",
        "l4",
        "mi300x",
        "rtx-4090",
        "t4",
    ],
    "test_a_wide_table_leaves_out_columns_before_it_turns_upright": ["levers"],
    "test_an_estimated_price_is_in_no_headline": ["list"],
    "test_an_export_has_the_commands_and_keys_that_plain_names_have": [
        "one-compose",
        "one-dynamo",
        "one-grafana",
        "one-k8s",
        "one-keda",
        "one-kserve",
        "one-llm-d",
        "one-skypilot",
        "one-vllm",
        "pools-compose",
        "pools-dynamo",
        "pools-grafana",
        "pools-k8s",
        "pools-kserve",
        "pools-llm-d",
        "pools-skypilot",
        "pools-vllm",
    ],
    "test_both_sides_are_what_fleet_says_of_each": ["ends0"],
    "test_brute_force_on_200_random_machines_finds_no_cheaper_pools": ["0", "1"],
    "test_config_is_what_the_scenario_states_and_a_default_is_assumed": [
        "growing",
        "support-chat",
        "who-pays",
    ],
    "test_data_that_changed_since_is_named": [
        "device h100-sxm",
        "intervals",
        "model llama-3.1-8b-instruct",
        "partitions",
        "slowness",
    ],
    "test_each_hour_has_the_replicas_that_a_search_for_its_own_traffic_finds": ["bursts", "users"],
    "test_events_give_what_steps_give": ["mixed", "prefill_first"],
    "test_events_give_what_steps_give_with_tiers_and_speculation": ["mixed", "prefill_first"],
    "test_every_block_comes_back_whatever_happens": ["mixed"],
    "test_every_device_of_the_measured_results_is_found": ["whole"],
    "test_every_format_of_a_shipped_model_has_rates": [
        "a100-sglang",
        "a100-trtllm",
        "a100-vllm",
        "b200-sglang",
        "b200-trtllm",
        "b200-vllm",
        "h100-sglang",
        "h100-trtllm",
        "h100-vllm",
    ],
    "test_every_number_of_a_plan_is_explained_to_the_last_digit": [
        "commitments",
        "energy",
        "growing",
        "many-adapters",
        "screenshots",
        "support-chat",
    ],
    "test_every_number_that_is_listed_is_the_one_that_the_command_printed": [
        "energy",
        "growing",
        "support-chat",
        "who-pays",
    ],
    "test_every_page_states_the_peak_of_the_plan": ["pools", "sessions", "two classes", "users"],
    "test_experts_are_measured_where_torch_has_no_grouped_product": ["b200", "l4", "mi300x", "rtx-4090"],
    "test_extra_kernels_run_or_say_why_not": ["a100-sxm-80gb", "b200", "t4"],
    "test_flat_arrays_give_what_the_server_gives": ["as installed-mixed", "in Python-prefill_first"],
    "test_flat_pools_give_what_the_dispatcher_gives": ["in Python"],
    "test_four_in_five_timings_lie_in_their_interval": ["whole"],
    "test_fp8_fits_come_as_close_as_the_truth_without_noise_allows": ["b200", "l4", "mi300x", "rtx-4090"],
    "test_json_loses_no_letter_whatever_stdout_can_show": ["latin-1", "utf-8"],
    "test_keys_are_the_same_in_every_process": ["a model", "a scenario"],
    "test_layers_run_on_every_card_and_stand_beside_their_prediction": [
        "MLA on a B200",
        "MoE on an A100",
        "fp16 on a T4",
    ],
    "test_long_sessions_stay_and_replicas_compute_about_as_much": ["1", "3"],
    "test_many_threads_of_one_process_get_the_answers_of_one": ["4-12"],
    "test_measured_rows_with_the_same_settings_are_simulated_once": ["2000"],
    "test_more_results_than_are_replayed_are_refused_with_a_way_out": ["command0-501", "command1-501"],
    "test_no_kernel_of_an_engine_is_dropped_and_what_happened_to_it_is_said": [
        "b200",
        "h200-sxm",
        "l4",
        "mi300x",
        "rtx-4090",
        "t4",
    ],
    "test_no_replica_is_busy_for_longer_than_it_is_there": ["prefill_first"],
    "test_no_text_that_a_tool_is_given_is_an_option": [
        "--help-<lambda>0",
        "--output={}-<lambda>0",
        "--version-<lambda>0",
        "-o{}-<lambda>0",
    ],
    "test_no_version_gets_an_option_that_it_does_not_know": ["sglang"],
    "test_nothing_is_lost_when_replicas_that_load_fail_or_are_hedged": ["mixed"],
    "test_on_mig_slices_each_model_has_the_fleet_of_its_slice_and_the_pool_pays_for_whole_gpus": ["drafts1"],
    "test_pools_are_started_with_the_drafts_that_they_run": ["eagle-named1-pools1"],
    "test_prefill_and_decode_apart_are_two_fleets_by_steps": ["mixed"],
    "test_rows_by_machine_add_up_to_the_same_bill": ["commitments"],
    "test_shipped_claims_hold_on_measured_runs": ["drawn", "whole"],
    "test_tables_keep_the_columns_that_answer": [
        "capacity small.yaml --gpus '3 x h100-sxm' --offline",
        "model",
        "validate points.csv",
    ],
    "test_the_bounds_leave_out_no_layout_that_would_be_cheapest": [
        "h100-sxm-classes0",
        "h100-sxm-classes1",
        "l40s-classes0",
        "l40s-classes1",
    ],
    "test_the_closed_form_knows_the_response_of_each_class": ["classes1"],
    "test_the_exported_replica_holds_what_the_plan_says": [
        "adapters of one matrix",
        "adapters on SGLang",
        "plain",
        "whole prompts on SGLang",
    ],
    "test_the_first_screen_of_a_shipped_scenario_is_a_screen_without_a_warning": [
        "agent",
        "agent-sessions",
        "api-or-own",
        "batch-summaries",
        "best-of-n",
        "cascade",
        "code-assistant",
        "commitments",
        "disaggregated",
        "drafts",
        "embed-corpus",
        "energy",
        "follow-the-sun",
        "growing",
        "many-adapters",
        "mig-slices",
        "padded-job",
        "rag-search",
        "rag-tools",
        "reasoning",
        "rerank",
        "screenshots",
        "shared-gpus",
        "small-team",
        "who-pays",
    ],
    "test_the_hits_of_a_plan_are_those_of_a_block_by_block_simulation": ["0.9-0.8-0.95"],
    "test_the_laws_of_an_answer_hold": ["classes", "open", "users"],
    "test_the_median_error_on_the_table_of_all_kernels_is_small": ["whole-experts"],
    "test_the_memory_that_is_explained_is_that_of_fit": [
        "sglang-settings1-words1",
        "vllm-settings0-words0",
        "vllm-settings3-words3",
    ],
    "test_the_order_of_a_scenario_is_the_one_that_it_prints": ["drafts"],
    "test_the_part_of_the_traffic_that_a_budget_pays_for": ["mixed", "rented"],
    "test_the_plan_carries_in_a_simulation_what_its_users_ask_for": ["classes1"],
    "test_the_replicas_that_a_page_works_out_are_those_of_the_plan": [
        "pools",
        "sessions",
        "two classes",
        "users",
    ],
    "test_each_number_of_no_plan_has_a_unit_a_title_and_a_reason": ["what-if"],
    "test_the_review_shows_what_is_asked_for": ["True"],
    "test_turns_of_a_plan_continue_each_other": ["users: 4"],
    "test_users_who_do_not_think_are_a_concurrency": ["mixed", "static"],
    "test_what_is_measured_is_what_the_card_takes": ["b200", "h200-sxm", "l4", "mi300x", "rtx-4090", "t4"],
    "test_what_people_see_is_unchanged": ["fleet-with-commitments.txt", "levers.txt"],
    "test_what_replaces_an_assumption_exists": [
        "levers SCENARIO --lever answers --lever speculation",
        "what-if SCENARIO",
        "report SCENARIO",
        "sweep SCENARIO",
    ],
    "test_where_no_warning_can_be_written_the_answer_and_its_code_still_come": ["words3-0"],
    "test_with_sessions_the_best_layout_is_the_least_of_all_that_are_sized": ["text0", "text2"],
}
"""Cases of a test that take the longest, while the others stay in `make test`."""
IN_THIRDS = (
    "test_a_change_of_a_key_changes_an_answer",
    "test_a_flag_changes_what_is_answered",
    "test_a_device_that_borrows_kernels_has_one_label_everywhere",
    "test_google_by_itself_on_demand_or_not_at_all",
    "test_prompts_find_what_a_clock_for_every_prefix_finds",
    "test_with_more_memory_first_weights_fit_then_activations_then_a_sequence",
    "test_the_cache_of_a_live_engine_holds_what_is_predicted",
)
"""Sweeps over keys, flags, devices, models and settings, of which `make test` takes a third."""


@dataclass(frozen=True)
class Ran:
    """What a run of the program left behind."""

    code: int
    out: str
    err: str


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden anew; review the difference"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the cases that take seconds, before those of `make test` or of `make long` are chosen."""
    for item in items:
        name, _, case = item.name.partition("[")
        case = case.removesuffix("]")
        if case in LONG_CASES.get(name, ()) or (name in IN_THIRDS and crc32(case.encode()) % 3):
            item.add_marker(pytest.mark.long)


def pytest_sessionstart():
    """Collecting makes some million objects that all stay: looking through them for garbage again and again takes seconds."""
    gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(20_000)  # arrays and results by the thousand, few of which form cycles
    gc.enable()


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture
def capplan(capsys, monkeypatch):
    """Run a command line in this process, from the root of the repository."""
    from capplan.cli.main import main

    monkeypatch.chdir(ROOT)

    def run(*words):
        capsys.readouterr()
        code = main([str(word) for word in words])
        caught = capsys.readouterr()
        return Ran(code, caught.out, caught.err)

    return run


@pytest.fixture(scope="session")
def runs_of_replicas():
    from capplan.fleet.search.search_cache import SearchCache

    return SearchCache()


@pytest.fixture(scope="module")
def shared_runs(runs_of_replicas):
    """Let the fleets of a module share the runs of replicas with all that were asked before."""
    from tests.sweeps import share_runs

    with pytest.MonkeyPatch.context() as patch:
        share_runs(patch, runs_of_replicas)
        yield


@pytest.fixture(scope="module")
def few_requests():
    """Size the fleets of a module on short runs."""
    from tests.sweeps import size_on_few_requests

    with pytest.MonkeyPatch.context() as patch:
        size_on_few_requests(patch)
        yield


@pytest.fixture
def program():
    """Run the program in a process of its own, with chosen environment variables."""

    def run(*words, env=None, cwd=ROOT, timeout=60):
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "NO_COLOR"))}
        environment |= {"PYTHONPATH": str(ROOT), **(env or {})}
        done = subprocess.run(
            [sys.executable, "-m", "capplan", *map(str, words)],
            capture_output=True,
            text=True,
            env=environment,
            cwd=cwd,
            timeout=timeout,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


_NUMBER = re.compile(r"(?<![A-Za-z])\d[\d,]*(?:\.\d+)?")
ROUNDING = 0.01
"""The last of three digits may differ between machines, whose libraries round sums differently."""


def _words_and_numbers(text):
    """Return a text without its numbers and column widths, and the numbers."""
    numbers = [float(found.replace(",", "")) for found in _NUMBER.findall(text)]
    return " ".join(re.sub("[─-]+", "-", _NUMBER.sub("0", text)).split()), numbers


@pytest.fixture
def same_but_for_rounding():
    """Compare what a program prints with what it should print, the last digit of a number apart."""

    def compare(text, expected, advice):
        words, numbers = _words_and_numbers(text)
        other_words, other_numbers = _words_and_numbers(expected)
        assert words == other_words, advice
        assert numbers == pytest.approx(other_numbers, rel=ROUNDING), advice

    return compare


@pytest.fixture
def golden(request, same_but_for_rounding):
    """Compare text with a file of tests/golden; `pytest --update-golden` writes it."""

    def compare(name, text, *, simulated=False):
        path = ROOT / "tests" / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path.relative_to(ROOT)} is missing: write it with pytest --update-golden"
        advice = "differs: pytest --update-golden, then review the diff"
        if simulated:
            same_but_for_rounding(text, path.read_text(encoding="utf-8"), advice)
        else:
            assert text == path.read_text(encoding="utf-8"), advice

    return compare


@pytest.fixture(scope="session")
def numbers():
    """Return the numbers of an answer in order, without what only echoes the question: words, and values of that name."""

    def found(value, asked):
        if isinstance(value, dict):
            return [
                n
                for key, inner in value.items()
                if key != asked or isinstance(inner, (dict, list))
                for n in found(inner, asked)
            ]
        if isinstance(value, list):
            return [len(value), *(number for inner in value for number in found(inner, asked))]
        return [value] if isinstance(value, (int, float)) else []

    return found


@pytest.fixture(scope="session")
def host_file():
    """Return the text of a calibration whose host takes 20 ms a step: vLLM on an H100."""
    from capplan.engine.lookup import profile
    from capplan.readers.calibration.file import calibration_text
    from capplan.readers.calibration.record import HostRefit, ResultPoint

    own = profile("vllm")
    point = ResultPoint("run.json", "tpot_s", "llama-3.1-8b", 1.0, 0.03, 0.01, 0.03, 0.03)
    slow = own.host.named | {"step_s": 0.02}
    return calibration_text(
        None,
        HostRefit(
            engine="vllm",
            engine_version=own.version,
            hardware="h100-sxm",
            tools=(),
            models=(),
            numbers={},
            kept=slow,
            before_median_ape=0.1,
            after_median_ape=0.1,
            left_out_median_ape=0.1,
            date="2026-01-01",
            remarks=(),
            points=(point,),
        ),
    )


def completed(table, row):
    """Return a row of a table with what its notes say in columns of their own."""
    from capplan.recorded.measured import with_run_columns, with_start_columns

    complete = {"runs": with_run_columns, "starts": with_start_columns}.get(table)
    return complete(row) if complete else row


@dataclass(frozen=True)
class Measured:
    """Measured facts: the rows that were drawn for tests/data, or the whole tables that they were drawn from."""

    whole: bool
    tables: dict = field(default_factory=dict)

    def table(self, name):
        """Return the records of tests/data/NAME.csv, or of the whole table in the same columns."""
        if name not in self.tables:
            from calibrate.choose_rows import TABLES

            if self.whole and name in TABLES:
                self.tables[name] = TABLES[name](SHARED / "data", every=True)
            else:
                with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
                    self.tables[name] = list(csv.DictReader(file))
            self.tables[name] = [completed(name, row) for row in self.tables[name]]
        return self.tables[name]

    def facts(self, trace):
        """Return what plain counting says of the drawn excerpt of a trace."""
        (row,) = (row for row in self.table("traces/facts") if row["trace"] == trace)
        return {key: float(value) for key, value in row.items() if key not in ("trace", "source")}

    def configs(self):
        """Return config.json by model: all that were collected, or those that ship."""
        if self.whole:
            paths = sorted((SHARED / "data" / "configs").glob("*.json"))
            return {
                path.stem.replace("--", "/", 1): json.loads(path.read_text(encoding="utf-8"))
                for path in paths
            }
        from capplan.readers.catalogue.models import shipped_config

        index = json.loads((ROOT / "model_configs" / "index.json").read_text(encoding="utf-8"))["models"]
        folders = {path.name.replace("--", "/", 1) for path in (ROOT / "model_configs").glob("*--*")}
        asked = folders | {row["model"] for row in self.table("models")}
        return {name: shipped_config(name)[0] for name in sorted(asked) if name in index}


@pytest.fixture
def trace(measured, tmp_path):
    """Return the path of a published trace: the whole file, or the drawn excerpt in the format of the file."""

    def path(name):
        if measured.whole:
            return SHARED / "traces" / name
        from calibrate.choose_traces import published_text

        rows = measured.table(f"traces/{name.partition('.')[0]}")
        for file, text in published_text(name, rows).items():
            (tmp_path / file).write_text(text, encoding="utf-8")
        return tmp_path / name.removesuffix(".gz")

    return path


@pytest.fixture
def shared():
    """Return the folder beside the repository in which the large tables lie."""
    if not SHARED.is_dir():
        pytest.skip("the large tables are not beside the repository")
    return SHARED


@pytest.fixture(
    scope="session",
    params=[False, *([True] if SHARED.is_dir() else [])],
    ids=["drawn", "whole"][: 1 + SHARED.is_dir()],
)
def measured(request):
    """Ask the drawn rows in every clone, and the whole tables too where they lie beside the repository."""
    return Measured(request.param)
