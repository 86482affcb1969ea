"""The history: samples of all systems over time, and deploy marks; SQLite or PostgreSQL."""
