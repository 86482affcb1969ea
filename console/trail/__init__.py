"""The book: a tamper-evident record of every override and refusal."""
