"""The catalogues that ship with the package: models, devices, prices, efficiencies, intervals, recipes."""
