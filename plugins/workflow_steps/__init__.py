"""Workflow steps whose state is their most recent transition, in PostgreSQL or SQLite."""

from plugins.workflow_steps.backend import WorkflowSteps

__all__ = ["WorkflowSteps"]
