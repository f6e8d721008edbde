"""Write docs/evidence/reliability.md from the figures that trials kept: `make reliability`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "tests" / "installs" / "figures.json"
PAGE = ROOT / "docs" / "evidence" / "reliability.md"

HEAD = """# What was tried to break it

Written by `make reliability`: its figures are those of the last trials. The rules that capplan keeps are in [SECURITY](../../SECURITY.md).
"""
PROMISES = """## What is promised, and the test that shows it

Each test meets the fault itself, except for the clock of a calibration. `make test` and `make long` run them.

### Files

| what happens | what capplan does | test |
| --- | --- | --- |
| a file with faults, of another kind, or of random texts of its grammar | it is used, or refused in one line with its place | `tests/rules/test_small_fuzz.py::test_a_file_with_small_faults_is_used_or_refused_in_one_line` |
| a YAML file with tags that run code | one line, and no code runs | `tests/rules/test_bad_files.py::test_a_file_that_nothing_can_use_is_refused_in_one_line` |
| a YAML file whose aliases expand for ever | one line | `tests/rules/test_bad_input_yaml.py::test_alias_bomb_is_refused_by_what_it_expands_to` |
| a file of 50 MB, of many levels, or with endless numbers | one line with the limit | `tests/rules/test_bad_input_yaml.py::test_file_of_50_mb_is_refused_with_the_limit` |
| a pipe or a device that is silent or never ends | one line after the time limit of pipes | `tests/rules/test_odd_streams.py::test_a_device_that_is_silent_is_given_up_like_a_pipe` |
| `-` as an input, `-o -` | stdin, as often as it is read; stdout | `tests/rules/test_odd_streams.py::test_a_line_as_the_output_is_stdout` |
| an output that cannot be written whole | the file stays as it was, with its mode | `tests/rules/test_hostile_input_cli.py::test_a_file_keeps_its_mode_and_a_failed_write_keeps_the_file` |
| stdout that is full or closed | one line | `tests/rules/test_hostile_input_cli.py::test_a_full_or_closed_stdout_is_one_line` |
| names that hold control characters or formulas | no escape sequence and no formula in an answer | `tests/rules/test_hostile_input_cli.py::test_no_control_character_of_a_name_reaches_an_answer` |
| names that hold markup, in the review | they stay text | `tests/rules/test_faults_of_machines.py::test_no_name_becomes_markup_of_the_review` |
| names that hold commands, in an export | the export has the commands and keys that plain names have | `tests/properties/test_hostile_exports.py::test_an_export_has_the_commands_and_keys_that_plain_names_have` |
| a plan file that was edited | the edit is named; figures that contradict the rest are rejected | `tests/properties/test_plan_files.py::test_an_input_that_was_edited_is_found` |
| a plan file of another schema | one line with the version that wrote it and the way out | `tests/properties/test_plan_file_schema.py::test_an_older_schema_is_refused_with_the_way_out` |
| more load, longer requests, a tighter target or a higher confidence | the plan is never cheaper, and holds for the easier question | `tests/properties/test_loads_of_plan_files.py::test_a_harder_question_is_never_cheaper_and_its_plan_holds_for_the_easier_one` |
| several processes or versions share a file of `--points` | no point is lost, and rows of another version are not read | `tests/properties/test_points_file.py::test_processes_that_write_side_by_side_lose_no_point` |
| a line of `--points` that was cut | it costs its point | `tests/properties/test_points_file.py::test_a_last_line_that_was_cut_anywhere_costs_that_point_alone` |

### The model hub

| what happens | what capplan does | test |
| --- | --- | --- |
| `--offline` | no connection is opened | `tests/rules/test_hub_access.py::test_offline_never_opens_a_connection` |
| 47 odd answers, such as a login page with status 200, half a file, 50 MB, a gzip bomb or a commit that is a path | one line, and nothing is kept | `tests/rules/test_hub_access.py::test_whatever_a_hub_answers_is_read_or_refused_in_a_line_and_only_a_config_is_kept` |
| an answer of more than 8 MB, packed or not | the download stops there | `tests/rules/test_hub_access.py::test_no_more_than_a_config_may_have_is_downloaded` |
| a cached file that is no config | the message names the file to delete | `tests/rules/test_hub_access.py::test_a_cached_file_that_is_no_config_names_the_file_to_delete` |
| an answer that never ends | one line after a minute | `tests/rules/test_hub_access.py::test_a_hub_that_never_ends_its_answer_is_given_up` |
| Ctrl-C during the wait | it ends | `tests/rules/test_hub_access.py::test_ctrl_c_ends_the_wait_for_a_slow_hub` |
| a redirect to another host | the host does not get the token | `tests/rules/test_hub_access.py::test_another_host_that_the_hub_names_does_not_get_the_token` |
| a password in `HF_ENDPOINT` | it is not printed | `tests/rules/test_hub_access.py::test_a_password_in_the_address_of_the_hub_is_not_printed` |
| a variable of the client that cannot be used | one line | `tests/rules/test_hub_access.py::test_a_variable_that_the_client_cannot_use_is_one_line` |
| a revision that is a path | it is rejected, and nothing is written | `tests/rules/test_hub_access.py::test_a_revision_that_is_a_path_writes_nothing_though_a_mirror_answers` |
| a home folder on a read-only disk | shipped models are read; a line names `HF_HOME` | `tests/rules/test_hub_access.py::test_a_home_folder_on_a_read_only_disk_is_named` |

### `capplan mcp` and `capplan serve`

| what happens | what capplan does | test |
| --- | --- | --- |
| a slow call, or one that is cancelled | it blocks no other, and it ends | `tests/rules/test_mcp.py::test_a_slow_call_blocks_no_other_and_one_that_is_cancelled_ends` |
| a call that takes longer than `--time-limit` | it ends | `tests/rules/test_mcp.py::test_a_call_has_a_limit_of_time` |
| Ctrl-C, a closed stdout, a client that is gone | the running call ends with the server, without a traceback | `tests/rules/test_mcp.py::test_however_the_server_ends_a_running_call_ends_with_it` |
| a line that is no message | an error reply, and the next call is answered | `tests/rules/test_mcp.py::test_what_is_no_message_gets_an_error_and_the_next_one_its_answer` |
| an argument that is text of an option | it stays text | `tests/rules/test_mcp.py::test_no_text_that_a_tool_is_given_is_an_option` |
| a request that names a file of the server | it is rejected, whether the file exists or not | `tests/rules/test_serve.py::test_no_other_way_to_write_a_path_leads_out` |
| a request of another site | it is rejected | `tests/rules/test_serve.py::test_another_site_is_refused` |
| a client that is gone, or a request that takes too long | the work stops | `tests/rules/test_serve.py::test_a_request_whose_client_is_gone_stops` |
| large bodies, slow clients, 200 requests at once | memory is bounded, and everybody is answered | `tests/rules/test_serve.py::test_many_large_bodies_do_not_fill_the_memory` |
| a server that ends | no process stays | `tests/rules/test_serve.py::test_a_server_that_ends_leaves_no_process` |

### Processes, threads and clocks

| what happens | what capplan does | test |
| --- | --- | --- |
| a process of `--workers` is killed | its points are computed again, with the same answer | `tests/properties/test_lost_workers.py::test_a_killed_process_is_replaced_and_no_point_is_lost` |
| workers of a Dask cluster are killed | no point is lost, and the answer is the same | `tests/properties/test_lost_workers.py::test_killed_workers_of_a_dask_cluster_lose_no_point` |
| a Dask worker is frozen, by itself or next to a live one | one line after 10 s; this process computes too, and the answer is the same | `tests/properties/test_lost_workers.py::test_what_a_frozen_worker_holds_is_computed_here_with_the_same_answer` |
| a Dask scheduler is killed or frozen | one line within 10 s; this process computes what is left | `tests/properties/test_lost_workers.py::test_without_its_scheduler_the_work_goes_on_here_with_the_same_answer` |
| a cluster without workers | one line after 30 s; finished points are printed and kept | `tests/properties/test_lost_workers.py::test_a_scheduler_without_workers_is_named_in_a_stated_time` |
| a port that accepts and says nothing | one line within 10 s | `tests/properties/test_lost_workers.py::test_a_port_that_says_nothing_is_named_in_a_stated_time` |
| 10,000 calls of the library | no memory, file or thread is kept | `tests/rules/test_faults_of_machines.py::test_ten_thousand_calls_of_the_library_leave_nothing_behind` |
| 50 threads ask at once, from the first import on | the answers of one thread | `tests/rules/test_faults_of_machines.py::test_many_threads_of_one_process_get_the_answers_of_one` |
| processes that are forked or spawned | the same answers | `tests/rules/test_faults_of_machines.py::test_a_process_that_is_started_in_any_way_answers_alike` |
| answers, errors and scenarios are pickled | they come back equal | `tests/rules/test_faults_of_machines.py::test_answers_errors_and_scenarios_survive_pickling` |
| the clock steps by an hour or by decades | no answer changes | `tests/rules/test_faults_of_machines.py::test_a_clock_that_steps_changes_no_answer` |
| the clock jumps during a calibration | no time is wrong, and the run ends | `tests/calibrate/test_pace.py::test_a_clock_that_jumps_spoils_no_time_and_the_run_ends` |
| Ctrl-C at any moment | exit code 130, without a traceback | `tests/rules/test_hostile_input_cli.py::test_ctrl_c_at_any_moment_leaves_no_traceback` |
| other hash seeds, locales, time zones, one or two workers | the same bytes | `tests/rules/test_same_bytes.py::test_a_locale_changes_no_byte` |
| ASCII stdout, a home folder that cannot be written | an answer, or one line | `tests/rules/test_installed_elsewhere.py::test_a_home_folder_that_cannot_be_written_is_one_line` |

### The supply chain

| what happens | what capplan does | test |
| --- | --- | --- |
| actions of others | by commit | `tests/rules/test_supply_chain.py::test_an_action_is_taken_by_commit_with_its_version_next_to_it` |
| jobs that run our code | they may only read | `tests/rules/test_supply_chain.py::test_what_runs_our_code_may_only_read` |
| the image | starts from a digest | `tests/rules/test_supply_chain.py::test_an_image_starts_from_a_digest` |
| what builds wheels | pinned by hash | `tests/rules/test_supply_chain.py::test_wheels_are_built_with_what_is_pinned_by_hash` |
| the check Action | installs the version of its tag, without a token | `tests/rules/test_supply_chain.py::test_the_check_installs_the_version_of_its_tag_and_without_a_token` |
| advisories against the tested versions | pip-audit every week, or a file of advisories | `tests/rules/test_supply_chain.py::test_an_advisory_names_the_versions_that_it_affects` |

A scenario has 1,000 classes at most, a refit or a comparison with results replays 500 of them at most, and a CSV file has 8 million cells at most. Measured rows with other settings
than all others take about 10 ms each. capplan rejects a Dask worker with another version of capplan.
"""


def sized(figures: Mapping[str, Any]) -> str:
    """Return the section on the largest inputs."""
    lines = ["## The largest inputs", "", "`python -m tests.installs.sizes`, on one core.", ""]
    lines += ["| question | processor time | peak memory |", "| --- | --: | --: |"]
    lines += [f"| {name} | {of['cpu_s']:.1f} s | {of['memory_mb']:,} MB |" for name, of in figures.items()]
    return "\n".join(lines) + "\n"


def fuzzed(figures: Mapping[str, Any]) -> str:
    """Return the section on random input."""
    lines = [
        "## Random input",
        "",
        "`make fuzz` with `RECORD=1`; cases of all recorded runs. Each finding is mended, and a test keeps it.",
        "",
    ]
    lines += ["| what | cases | kinds | processor time | findings |", "| --- | --: | --: | --: | --: |"]
    for name, of in sorted(figures.items()):
        lines.append(
            f"| {name} | {sum(of['cases'].values()):,} | {len(of['cases'])} | {of['cpu_s']:,} s | {of['findings']} |"
        )
    lines += ["", "| kind | cases |", "| --- | --: |"]
    lines += [
        f"| {kind} | {count:,} |" for _, of in sorted(figures.items()) for kind, count in of["cases"].items()
    ]
    return "\n".join(lines) + "\n"


def installed(figures: Mapping[str, Any]) -> str:
    """Return the section on versions."""
    lines = [
        "## Versions", "",
        "`python -m tests.installs.ranges` in empty environments: golden output, refusals, processes, the wheel, all doctests without torch.", "",
        "| environment | tests passed | versions |", "| --- | --: | --- |",
    ]  # fmt: skip
    for name, of in sorted(figures.items()):
        versions = ", ".join(f"{package} {version}" for package, version in of["versions"].items())
        lines.append(f"| {name} | {of['passed']} | {versions} |")
    return "\n".join(lines) + "\n"


def compared(figures: Mapping[str, Any]) -> str:
    """Return the section on other interpreters and libraries."""
    lines = ["## The same bytes elsewhere", "", "`python -m tests.installs.same_bytes`: ten questions in four formats.", ""]  # fmt: skip
    lines += ["| under | answers with the same bytes | others |", "| --- | --: | --- |"]
    for name, of in sorted(figures.items()):
        others = ", ".join(of["differ"]) or "none"
        lines.append(f"| {name} | {of['answers'] - len(of['differ'])} of {of['answers']} | {others} |")
    return "\n".join(lines) + "\n"


def built(figures: Mapping[str, Any]) -> str:
    """Return the section on builds."""
    of = figures["twice"]
    same = ", ".join(f"{how}: {'yes' if value else 'no'}" for how, value in of["same bytes"].items())
    image = f"- The steps of the Dockerfile, without a builder (`python -m tests.installs.container`): {figures['container']['mb']} MB next to the base image.\n"
    return (
        "## Builds\n\n`python -m tests.installs.built`: sdist and wheel, each twice from a clean copy, in another folder and time zone.\n\n"
        f"- The same bytes: {same}.\n- SBOM (CycloneDX 1.5): {of['components']} components.\n- pip-audit of the tested versions: {of['audit']}.\n{image}"
    )


def page() -> str:
    """Return the page; a part that was not tried is left out."""
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    writers = (
        ("sizes", sized),
        ("fuzz", fuzzed),
        ("ranges", installed),
        ("same bytes", compared),
        ("build", built),
    )
    parts = [write(figures[kind]) for kind, write in writers if kind in figures]
    return "\n".join([HEAD, PROMISES, *parts])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
