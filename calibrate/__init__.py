"""How the shipped numbers were fitted, and the page that scores them. Not part of the package."""
