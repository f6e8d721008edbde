"""What choices cost in money: hosted APIs, commitments, growth, energy, and who pays."""
