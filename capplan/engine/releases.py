"""Release months of engine versions, for results that give a date but no version."""

RELEASES: dict[str, tuple[tuple[str, str], ...]] = {
    "vllm": (
        ("2023-06", "0.1.0"), ("2024-04", "0.4.0"), ("2024-07", "0.5.3"), ("2024-09", "0.6.0"),
        ("2025-01", "0.7.0"), ("2025-03", "0.8.0"), ("2025-05", "0.9.0"), ("2025-07", "0.10.0"),
        ("2025-10", "0.11.0"), ("2025-12", "0.12.0"), ("2026-01", "0.14.0"), ("2026-02", "0.15.0"),
        ("2026-03", "0.17.0"), ("2026-04", "0.19.0"), ("2026-05", "0.20.0"),
    ),
    "sglang": (
        ("2024-01", "0.1.0"), ("2024-07", "0.2.0"), ("2024-09", "0.3.0"), ("2024-12", "0.4.0"),
        ("2025-08", "0.5.0"), ("2025-10", "0.5.3"), ("2025-12", "0.5.6"), ("2026-03", "0.5.9"),
    ),
    "trtllm": (
        ("2023-10", "0.5.0"), ("2024-02", "0.8.0"), ("2024-04", "0.9.0"), ("2024-07", "0.11.0"),
        ("2024-09", "0.13.0"), ("2024-11", "0.14.0"), ("2025-06", "0.20.0"), ("2025-09", "1.0.0"),
        ("2025-12", "1.2.0"),
    ),
}  # fmt: skip
"""Engine -> (month, version), ascending: release pages of vllm-project/vllm, sgl-project/sglang, NVIDIA/TensorRT-LLM."""


def version_of(engine: str, month: str) -> str | None:
    """Return the newest version released by a month such as 2025-10; None before the first one.

    Examples
    --------
    >>> version_of("vllm", "2024-10")
    '0.6.0'
    """
    out = [version for since, version in RELEASES.get(engine, ()) if since <= month[:7]]
    return out[-1] if out else None
