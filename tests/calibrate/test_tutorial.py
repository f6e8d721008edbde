"""The tutorial runs as it is written."""

import re
import shlex
from pathlib import Path

import pytest

from tests.files import written_to

TUTORIAL = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "calibrate-and-compare.md"


@pytest.mark.long
def test_every_command_of_the_tutorial_runs(wide, tmp_path, monkeypatch, capsys):
    from capplan.cli.main import main

    blocks = re.findall(r"^```bash\n(.*?)^```", TUTORIAL.read_text(), re.DOTALL | re.MULTILINE)
    lines = [shlex.split(line) for block in blocks for line in block.splitlines()]
    commands = [words for words in lines if words[0] == "capplan"]
    assert [words[:2] for words in commands].count(["capplan", "calibrate"]) == 4
    monkeypatch.chdir(tmp_path)
    for words in commands:
        short = ["--minutes", "0.15"] if "-o" in words else []
        offline = ["--offline"] if "--compare" not in words else []
        # as the page says of processors that only emulate bf16
        old = (
            ["--weight-dtype", wide, "--kv-dtype", wide] if words[1] == "estimate" and wide != "bf16" else []
        )
        code = main([*words[1:], *short, *offline, *old])
        shown = capsys.readouterr()
        assert code == 0, (words, shown.err)
        assert shown.out
    assert (tmp_path / "cpu.calibration.yaml").exists()


def test_a_calibration_changes_an_estimate_as_its_rates_do(written, wide, tmp_path, capplan):
    """With every time of every kernel twice as long, the time per output token is twice as long."""
    from dataclasses import replace

    from capplan.readers.calibration.file import calibration_text, read_calibration

    own = read_calibration(written)
    halved = replace(
        own,
        peaks=replace(
            own.peaks,
            memory_bytes_per_s=own.peaks.memory_bytes_per_s / 2,
            flop_per_s={dtype: rate / 2 for dtype, rate in own.peaks.flop_per_s.items()},
        ),
        fitted={
            key: replace(fit, numbers={n: replace(v, value=v.value * (2 if n.endswith("_s") else 1)) for n, v in fit.numbers.items()})
            for key, fit in own.fitted.items()
        },
    )  # fmt: skip
    slow = written_to(tmp_path / "slow.calibration.yaml", calibration_text(halved))
    tpots = []
    for path in (written, slow):
        words = shlex.split(
            f"qwen3-0.6b --hardware cpu --concurrency 1 --input-tokens 64 --output-tokens 8 --weight-dtype {wide} --kv-dtype {wide}"
        )
        tpots.append(capplan.result("estimate", *words, "--calibration", path, "--offline")["tpot_s"]["mean"])
    # every rate is halved and every start doubled, but not what the host does between two steps
    assert 1.8 < tpots[1] / tpots[0] < 2.05
