"""The places of the console."""
