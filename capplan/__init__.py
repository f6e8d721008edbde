"""Capacity planning and cost modelling for LLM inference.

>>> import capplan as cp
>>> cp.kv_size("llama-3.1-8b", [8192], kv_dtype="fp8", offline=True).rows[0]["kv_bytes_per_sequence"]
536870912.0
"""

TYPE_CHECKING = False
"""As in typing, whose import takes longer than the rest of the way to the handler of Ctrl-C."""
if TYPE_CHECKING:
    from capplan.library import capacity as capacity
    from capplan.library import compare as compare
    from capplan.library import estimate as estimate
    from capplan.library import kv_size as kv_size
    from capplan.library import load_scenario as load_scenario
    from capplan.library import plan_fleet as plan_fleet
    from capplan.library import simulate as simulate

__version__ = "1.0.0"
__all__ = [
    "__version__",
    "capacity",
    "compare",
    "estimate",
    "kv_size",
    "load_scenario",
    "plan_fleet",
    "simulate",
]


def __getattr__(name: str) -> object:
    """Return a function of the library, imported when it is first asked for: start-up is a feature."""
    if name not in __all__:
        raise AttributeError(f"module 'capplan' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    function: object = getattr(import_module("capplan.library"), name)
    return function


def __dir__() -> list[str]:
    return __all__
