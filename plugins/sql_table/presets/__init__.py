"""The queues people run, as mappings: one YAML file and one page of notes each."""
