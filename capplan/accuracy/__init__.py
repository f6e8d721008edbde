"""Back-testing: replay measured results, score, prediction intervals."""
