"""What a person can do in the console: keys, labels, help and themes. Read by ui and cli."""
