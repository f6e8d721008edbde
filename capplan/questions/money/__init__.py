"""What a fleet costs: bills, budgets, commitments, hosted APIs, energy, growth."""
