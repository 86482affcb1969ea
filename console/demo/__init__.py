"""The demo: seeded stores of every kind of system, and their workers."""
