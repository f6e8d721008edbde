"""One short real calibration of this machine's CPU, shared by the tests that read it."""

import os
import pickle

import pytest
from filelock import FileLock

KEPT = {
    "copy", "read", "launch", "matmul", "prefill_attention", "decode_attention", "elementwise", "norm", "experts",
    "latent_decode", "latent_prefill", "latent_bmm",
}  # fmt: skip


def small(case):
    """Return whether a case is small enough for a test: some milliseconds of a slow processor."""
    shape = case.shape
    if case.operator == "matmul":
        return (
            shape["rows"] * shape["inputs"] * shape["outputs"] < 3e8
            and shape["inputs"] * shape["outputs"] < 1e7
        )
    if case.operator == "experts":
        return shape["experts"] * shape["inputs"] * shape["intermediate"] < 1e7
    return (
        shape.get("moved_bytes", 0) <= 2**24
        and shape.get("sequences", 1) * shape.get("new_tokens", 0) <= 256
        and shape.get("sequences", 1) * shape.get("context_tokens", 0) <= 2**13
        and shape.get("tokens", 0) <= 64
    )


@pytest.fixture(scope="session")
def target():
    from capplan.calibrate.machine import opened

    return opened("cpu")


@pytest.fixture(scope="session")
def wide(target):
    """Return the format that this machine's processor is timed in: bf16, or fp32 where bf16 is emulated."""
    return target.abilities.wide


@pytest.fixture(scope="session")
def calibration(target, tmp_path_factory):
    """One for all processes of pytest-xdist: the first that needs it measures, the others read what it found."""
    from capplan.calibrate.measure import calibrated
    from capplan.calibrate.shapes import cases

    folder = tmp_path_factory.getbasetemp()
    kept = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "calibration.pickle"
    with FileLock(kept.with_suffix(".lock")):
        if not kept.exists():
            planned = [
                case for case in cases(target.abilities, quick=True) if case.operator in KEPT and small(case)
            ]
            planned = planned[: 3 * len(planned) // 5]
            for minutes in (0.25, 1.0, 4.0):  # a processor that is slow, or that others use, gets more time
                found = calibrated(target, quick=True, minutes=minutes, planned=planned)
                if len(found.measurements) >= 0.9 * len(planned):
                    break
            kept.write_bytes(pickle.dumps(found))
        return pickle.loads(kept.read_bytes())


@pytest.fixture(scope="session")
def written(calibration, tmp_path_factory):
    from capplan.readers.calibration.file import calibration_text

    path = tmp_path_factory.mktemp("calibration") / "this.calibration.yaml"
    path.write_text(calibration_text(calibration))
    return path


@pytest.fixture
def insert(monkeypatch):
    """Put a virtual card into this machine for one test; return its state and what `opened` says of it."""
    from contextlib import ExitStack

    from capplan.calibrate.machine import opened
    from tests.calibrate.faked import cuda
    from tests.calibrate.faked.clock import truth_of

    with ExitStack() as stack:

        def put(card, *, spread=0.0, passes=1):
            state = cuda.install(monkeypatch, card, truth_of(card.device, card.ratio, spread), passes)
            stack.enter_context(cuda.FakedTensors(state))
            return state, opened("cuda")

        yield put
