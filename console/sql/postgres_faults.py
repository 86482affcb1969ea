"""Faults for the errors of PostgreSQL. They show only its primary message, never values or secrets."""

from __future__ import annotations

import psycopg
from sqlalchemy.exc import DBAPIError

from console.core.faults import BackendBusy, BackendFault, DeadlineExceeded, NotPermitted, Unreachable, WrongSchema

_BY_STATE: tuple[tuple[str, type[BackendFault], str, str], ...] = (
    ("28", Unreachable, "the server refuses this user", "Check the user, its password file and pg_hba.conf."),
    ("3D000", Unreachable, "", "Check the database name in the url."),
    ("42P01", WrongSchema, "", "Check the table names in the config."),
    ("42703", WrongSchema, "", ""),
    ("42883", WrongSchema, "a column has another type than expected", "Attach the table as its own system creates it."),
    ("42804", WrongSchema, "a column has another type than expected", "Attach the table as its own system creates it."),
    ("42809", WrongSchema, "it is not a plain table", "Attach the table itself, not a view of it."),
    ("3F000", WrongSchema, "", "Check the schema name in the config."),
    ("42501", NotPermitted, "this role lacks a privilege", "Grant it to the role, or use another role."),
    ("25006", BackendFault, "this connection may only read", ""),
    ("57014", DeadlineExceeded, "the query took too long", ""),
    ("55P03", BackendBusy, "another session holds a lock on it", ""),
    ("40", BackendBusy, "rolled back because of another transaction", ""),
    ("53300", BackendBusy, "the server has no connection left", ""),
    ("57P", Unreachable, "the server is stopping or starting", ""),
    ("53100", BackendFault, "the server's disk is full", ""),
)
"""SQLSTATE or its class, the fault, what it means, and what to do."""

_BY_WORDS: tuple[tuple[str, type[BackendFault], str, str], ...] = (
    ("authentication failed", *_BY_STATE[0][1:]),
    ("no password supplied", *_BY_STATE[0][1:]),
    ("no pg_hba.conf entry", *_BY_STATE[0][1:]),
    ("role ", *_BY_STATE[0][1:]),
    ("timeout expired", Unreachable, "the server does not answer", ""),
    ("remaining connection slots", BackendBusy, "the server has no connection left", ""),
    ("too many clients", BackendBusy, "the server has no connection left", ""),
    ("starting up", Unreachable, "the server is stopping or starting", ""),
    ("shutting down", Unreachable, "the server is stopping or starting", ""),
)
"""A failed connection attempt has no SQLSTATE, only a message."""

ROW_REFUSALS = (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.RaiseException)
"""Errors of a constraint, a type or a trigger, which are about one row."""


def cause_of(error: Exception) -> psycopg.Error:
    """The driver's error, which SQLAlchemy wraps unless it is raised while rows are fetched."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    assert isinstance(cause, psycopg.Error)
    return cause


def message_of(error: psycopg.Error) -> str:
    """The primary message alone: details and context may quote values."""
    if error.diag.message_primary:
        return error.diag.message_primary
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in lines if "FATAL:" in line), lines[0]).removeprefix("connection failed: ")


def translate(error: psycopg.Error, place: str) -> BackendFault:
    """The fault for an error of PostgreSQL, in plain words."""
    words = message_of(error)
    state = error.sqlstate
    if state == "42703" and "ctid" in words:  # only tables have this column
        state = "42809"
    if state is not None:
        for prefix, fault, meaning, fix in _BY_STATE:
            if state.startswith(prefix):
                return fault(f"{meaning} ({words})" if meaning else words, where=place, fix=fix)
        return BackendFault(words, where=place)
    for known, fault, meaning, fix in _BY_WORDS:
        if known in words:
            return fault(f"{meaning} ({words})", where=place, fix=fix)
    if isinstance(error, psycopg.OperationalError):
        return Unreachable(words, where=place, fix="Check the url, and that the server runs.")
    return BackendFault(words, where=place)
