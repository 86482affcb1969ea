"""Programs under measurement, each run in a pty of its own: `python -m benchmarks.programs.NAME`."""
