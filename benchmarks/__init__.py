"""Ratios, measured side by side in one run: ours against the best raw way to do the same job."""
