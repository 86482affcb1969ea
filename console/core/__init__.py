"""The domain: what an item, a verdict, a plan and an override are. Standard library only."""
