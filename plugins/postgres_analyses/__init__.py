"""Analyses with two pipelines per row that share one retry counter, in PostgreSQL or in an SQLite file."""

from plugins.postgres_analyses.backend import PostgresAnalyses

__all__ = ["PostgresAnalyses"]
