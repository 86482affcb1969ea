"""The trail: a tamper-evident audit log of every override and refusal."""
