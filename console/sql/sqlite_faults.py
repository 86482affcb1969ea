"""Faults for the errors of SQLite, in plain words."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError

from console.core.faults import BackendBusy, BackendFault, DeadlineExceeded, Unreachable, WrongSchema

_REASONS: tuple[tuple[str, type[BackendFault], str], ...] = (
    ("file is not a database", Unreachable, "the file is not an SQLite database"),
    ("unable to open database file", Unreachable, "the file cannot be opened"),
    ("disk image is malformed", Unreachable, "the database file is damaged"),
    ("locked", BackendBusy, "another process holds its lock"),
    ("busy", BackendBusy, "another process holds its lock"),
    ("interrupted", DeadlineExceeded, "the query was stopped"),
    ("no such table", WrongSchema, ""),
    ("no such column", WrongSchema, ""),
    ("readonly database", BackendFault, "the database cannot be written"),
    ("not authorized", BackendFault, "this connection may only read"),
    ("disk I/O error", Unreachable, "the disk reported an error"),
    ("database or disk is full", BackendFault, "the disk is full"),
)


def translate(error: BaseException, place: str) -> BackendFault:
    """The fault for an error of SQLite, in plain words."""
    message = str(error)
    for words, fault, meaning in _REASONS:
        if words in message:
            return fault(f"{meaning} ({message})" if meaning else message, where=place)
    return BackendFault(message, where=place)


def cause_of(error: Exception) -> BaseException:
    """The driver's error, which SQLAlchemy wraps unless it is raised while rows are fetched."""
    return (error.orig or error) if isinstance(error, DBAPIError) else error


def is_undecodable(error: Exception) -> bool:
    return "decode to UTF-8" in str(cause_of(error))


def is_interrupted(error: Exception) -> bool:
    return "interrupted" in str(cause_of(error))
