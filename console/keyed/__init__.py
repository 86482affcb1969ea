"""What plugins for stores that are not SQL share: paging, filters and counts in Python, and queues in Redis."""
