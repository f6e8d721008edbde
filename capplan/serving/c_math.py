"""Python versions of the C math functions that the flat core calls; a compiled core calls those of C."""

from math import ceil, floor, isnan, log, nextafter, sqrt

lrint = round
"""Round to the nearest whole number, halves to the even one."""

__all__ = ["ceil", "floor", "isnan", "log", "lrint", "nextafter", "sqrt"]
