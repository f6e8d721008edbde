"""How the numbers of a plan came about, by the functions that `fleet` calls."""
