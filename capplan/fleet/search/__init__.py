"""Every layout bounded in closed form, the promising ones simulated, the cheapest found."""
