"""Analyses with two pipelines per row that share one retry counter, in PostgreSQL or SQLite."""

from plugins.postgres_analyses.backend import PostgresAnalyses

__all__ = ["PostgresAnalyses"]
