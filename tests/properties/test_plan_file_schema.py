"""A plan file states the number of its form and the data that it was made from; what changed since is said in one line."""

import json

import pytest

from capplan.readers import plan_file
from capplan.readers.plan_file import SCHEMA, read_plan_file, result_digest


def with_origin(plan, target, **changes):
    """Write a plan file whose origin has other values, signed again; None removes a key."""
    envelope = json.loads(plan.read_text())
    origin = envelope["result"]["plan_file"] | changes
    envelope["result"]["plan_file"] = {
        key: value for key, value in origin.items() if key not in changes or value is not None
    }
    envelope["result"]["plan_file"]["result_sha256"] = result_digest(envelope["result"])
    target.write_text(json.dumps(envelope))
    return target


def test_a_plan_file_states_its_schema_and_a_digest_of_all_shipped_data(plan):
    origin = json.loads(plan.read_text())["result"]["plan_file"]
    assert origin["schema"] == SCHEMA
    assert set(origin["data"]) == {"device h100-sxm", "model llama-3.1-8b-instruct", *plan_file.SHARED}
    assert read_plan_file(plan).remarks == ()


@pytest.mark.parametrize("command", [("check",), ("explain",), ("report",), ("verify-plan",), ("simulate",)])
def test_a_newer_schema_is_refused_with_the_way_out(capplan, plan, tmp_path, command):
    newer = with_origin(plan, tmp_path / "p.json", schema=SCHEMA + 1)
    (tmp_path / "r.json").write_text("{}")
    more = {
        "check": (plan.parent / "small.yaml", "--plan", newer),
        "explain": (newer, "gpus"),
        "report": ("--plan", newer),
    }
    words = more.get(
        command[0],
        ("--plan", newer, *(("--results", tmp_path / "r.json") if command[0] == "verify-plan" else ())),
    )
    ran = capplan(*command, *words, "--offline")
    assert (ran.code, ran.out) == (2, ""), ran.err
    first, way_out = ran.err.splitlines()[:2]
    assert f"is a plan file of schema {SCHEMA + 1}, and capplan" in first
    assert "or a newer one, or write it again with: capplan fleet" in way_out


@pytest.mark.parametrize("schema", [None, SCHEMA - 1])
@pytest.mark.parametrize("command", [("check",), ("explain",), ("export", "--target", "vllm"), ("report",)])
def test_an_older_schema_is_refused_with_the_way_out(capplan, plan, tmp_path, schema, command):
    older = with_origin(plan, tmp_path / "p.json", schema=schema)
    words = (older,) if command == ("explain",) else ("--plan", older)
    ran = capplan(*command, *words)
    assert (ran.code, ran.out) == (2, ""), ran.err
    first, way_out = ran.err.splitlines()[:2]
    assert f"is a plan file of schema {schema or 0}, which capplan" in first
    assert way_out == f"  write it again with: capplan fleet {plan.parent}/small.yaml -o {older}"


@pytest.mark.parametrize("name", ["device h100-sxm", "model llama-3.1-8b-instruct", *plan_file.SHARED])
def test_data_that_changed_since_is_named(capplan, plan, tmp_path, name):
    data = json.loads(plan.read_text())["result"]["plan_file"]["data"]
    changed = with_origin(plan, tmp_path / "p.json", data=data | {name: "0" * 16})
    (remark,) = read_plan_file(changed).remarks
    assert f"data of capplan changed since: {name}; write it again" in remark
    for words in (("check", plan.parent / "small.yaml", "--plan"), ("explain",)):
        ran = capplan(*words, changed, *(("gpus",) if words == ("explain",) else ()), "--offline")
        assert (
            len(
                [line for line in (ran.out + ran.err).splitlines() if "data of capplan changed since" in line]
            )
            == 1
        )


@pytest.mark.parametrize("folder", ["hardware_specs"])
def test_a_digest_follows_the_content_of_its_file(monkeypatch, tmp_path, folder):
    before = plan_file.data_digests(["h100-sxm"], "llama-3.1-8b-instruct")
    (tmp_path / "h100-sxm.yaml").write_text("name: another\n")
    monkeypatch.setattr(plan_file, "data_folder", lambda _name: tmp_path)
    assert "device h100-sxm" in plan_file.changed_data(before)
    assert "model llama-3.1-8b-instruct" not in plan_file.changed_data(before)


@pytest.mark.parametrize(
    "change", [{"schema": "1"}, {"schema": True}, {"data": ["x"]}, {"data": {"prices": 1}}]
)
def test_a_malformed_schema_or_digest_is_refused(capplan, plan, tmp_path, change):
    assert f"plan_file.{next(iter(change))} is missing or malformed" in capplan.refused(
        f"check {plan.parent / 'small.yaml'} --plan",
        with_origin(plan, tmp_path / "p.json", **change),
        "--offline",
    )
