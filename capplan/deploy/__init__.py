"""A plan to launch flags and manifests."""
