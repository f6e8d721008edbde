"""What `capplan serve` serves: the commands as addresses, their processes, who may ask, and the page."""
