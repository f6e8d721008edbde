"""The requests that each of several replicas is offered."""
