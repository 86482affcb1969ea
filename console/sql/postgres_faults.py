"""What PostgreSQL says, in the operator's words. Only its primary message is passed on, never values or secrets."""

from __future__ import annotations

import psycopg

from console.core.faults import BackendBusy, BackendFault, DeadlineExceeded, Unreachable, WrongSchema

_BY_STATE: tuple[tuple[str, type[BackendFault], str, str], ...] = (
    ("28", Unreachable, "the server refuses this user", "Check the user, its password file and pg_hba.conf."),
    ("3D000", Unreachable, "", "Check the database name in the url."),
    ("42P01", WrongSchema, "", "Check the table names in the config."),
    ("42703", WrongSchema, "", ""),
    ("42883", WrongSchema, "a column has another type than expected", "Attach the table as its own system creates it."),
    ("42804", WrongSchema, "a column has another type than expected", "Attach the table as its own system creates it."),
    ("42809", WrongSchema, "it is not a plain table", "Attach the table itself, not a view of it."),
    ("3F000", WrongSchema, "", "Check the schema name in the config."),
    ("42501", BackendFault, "this role lacks a privilege", "Ask for it, or use another role."),
    ("25006", BackendFault, "this connection may only read", ""),
    ("57014", DeadlineExceeded, "the query took too long", ""),
    ("55P03", BackendBusy, "someone holds a lock on it", ""),
    ("40", BackendBusy, "it collided with someone else's transaction", ""),
    ("53300", BackendBusy, "the server has no connection left", ""),
    ("57P", Unreachable, "the server is stopping or starting", ""),
    ("53100", BackendFault, "the server's disk is full", ""),
)
"""SQLSTATE or its class → fault, its meaning, and what to do."""

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
"""While connecting there is no SQLSTATE, only words."""

ROW_REFUSALS = (psycopg.IntegrityError, psycopg.DataError, psycopg.errors.RaiseException)
"""What a constraint, a type or a trigger says about one row."""


def said(error: psycopg.Error) -> str:
    """The primary message alone: details and context may quote values."""
    if error.diag.message_primary:
        return error.diag.message_primary
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return next((line for line in lines if "FATAL:" in line), lines[0]).removeprefix("connection failed: ")


def translate(error: psycopg.Error, place: str) -> BackendFault:
    """The fault that says in the operator's words what PostgreSQL said in its own."""
    words = said(error)
    state = error.sqlstate
    if state == "42703" and "ctid" in words:  # every table has this column, and nothing else has
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
