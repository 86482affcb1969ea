"""The sandbox world: seeded stores and simulated workers."""
