"""The levers of a scenario: each builds a changed scenario, or says why there is none."""
