"""Functions of C's math library that the flat core calls, in Python; where the core is compiled, the build takes those of C."""

from math import ceil, floor, isnan, log, sqrt

lrint = round
"""To the nearest whole number, halves to the even one; of a whole number itself."""

__all__ = ["ceil", "floor", "isnan", "log", "lrint", "sqrt"]
