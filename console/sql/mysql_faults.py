"""Faults for the errors of MySQL and MariaDB. Messages are shown without the values they quote."""

from __future__ import annotations

import re

import pymysql
from sqlalchemy.exc import DBAPIError

from console.core.faults import BackendBusy, BackendFault, DeadlineExceeded, NotPermitted, Unreachable, WrongSchema

_REFUSED = (Unreachable, "the server refuses this user", "Check the user, its password and from where it may connect.")
_GONE = (Unreachable, "the connection to the server was lost", "Check that the server runs.")
_NO_ANSWER = (Unreachable, "", "Check the url, and that the server runs.")
_NO_GRANT = (NotPermitted, "this user lacks a privilege", "Grant it to the user, or use another one.")
_FULL = (BackendBusy, "the server has no connection left", "")
_SLOW = (DeadlineExceeded, "the query took too long", "")
_LOCKED = (BackendBusy, "another session holds a lock on it", "")

_BY_NUMBER: dict[int, tuple[type[BackendFault], str, str]] = {
    **dict.fromkeys((1044, 1045, 1130, 1251, 1524, 1698, 1820, 2059, 2061), _REFUSED),
    1049: (Unreachable, "", "Check the database name in the url."),
    1146: (WrongSchema, "", "Check the table names in the config."),
    1054: (WrongSchema, "", ""),
    **dict.fromkeys((1142, 1143, 1227, 1370), _NO_GRANT),
    1290: (BackendFault, "the server allows no writing", ""),
    1792: (BackendFault, "this connection may only read", ""),
    1836: (BackendFault, "the server is in read-only mode", ""),
    1317: (DeadlineExceeded, "the query was cancelled", ""),
    **dict.fromkeys((1969, 3024), _SLOW),
    **dict.fromkeys((1205, 3572), _LOCKED),
    1213: (BackendBusy, "rolled back because of another transaction", ""),
    **dict.fromkeys((1040, 1203, 1226), _FULL),
    **dict.fromkeys((1053, 1079, 1927, 2006, 2013, 2055), _GONE),
    **dict.fromkeys((2002, 2003, 2005), _NO_ANSWER),
    **dict.fromkeys((1021, 1114), (BackendFault, "the server's disk is full", "")),
}
"""Error number → the fault, what it means, and what to do."""

_OF_ONE_ROW = frozenset({
    1048, 1062, 1169, 1216, 1217, 1264, 1265, 1292, 1364, 1366, 1406, 1451, 1452, 1644, 1690, 3140, 3819, 4025, 4078,
})
"""Errors of a constraint, a type or a trigger."""
_VALUES = (
    (re.compile(r"(?s)Duplicate entry '.*' for key"), "Duplicate entry for key"),
    (re.compile(r"(?s)(value|entry|VALUE)(:?) '.*?'(?= (?:for|at|in)\b|$)"), r"\1"),
)


def cause_of(error: Exception) -> Exception:
    """The driver's error, which SQLAlchemy wraps unless it is raised while rows are fetched."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    assert isinstance(cause, Exception)
    return cause


def number_of(error: Exception) -> int:
    """The server's number for an error; zero if it has none."""
    number = error.args[0] if error.args else 0
    return number if isinstance(number, int) else 0


def message_of(error: Exception) -> str:
    """The server's message without quoted values."""
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    text = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    for pattern, shown in _VALUES:
        text = pattern.sub(shown, text)
    return text


def is_of_one_row(error: Exception) -> bool:
    return isinstance(error, pymysql.IntegrityError | pymysql.DataError) or number_of(error) in _OF_ONE_ROW


def translate(error: Exception, place: str) -> BackendFault:
    """The fault for an error of the server or the driver, in plain words."""
    words = message_of(error)
    found = _BY_NUMBER.get(number_of(error))
    if found is not None:
        fault, meaning, fix = found
        return fault(f"{meaning} ({words})" if meaning else words, where=place, fix=fix)
    if isinstance(error, pymysql.InterfaceError):
        return Unreachable("the connection to the server was lost", where=place, fix="Check that the server runs.")
    return BackendFault(words, where=place)
