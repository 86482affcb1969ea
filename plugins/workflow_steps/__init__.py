"""Workflow steps whose state is their most recent transition, in PostgreSQL or in an SQLite file."""

from plugins.workflow_steps.backend import WorkflowSteps

__all__ = ["WorkflowSteps"]
