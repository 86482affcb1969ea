"""The URL that a command is given: written on the command line, or that of a backend which is named there."""

from __future__ import annotations

from console.core.faults import UsageFault
from console.core.text import did_you_mean
from console.settings.models import Settings
from console.settings.tree import TextValues, literal_part
from console.settings.urls import password_in, query_password_in


def given_url(text: str) -> str:
    """A URL of the command line with its variables, by the rules of the config. A password in plain text is refused."""
    try:
        written = literal_part(text)
        if password_in(written) or query_password_in(written):
            raise UsageFault(
                "A password on the command line can be read by everyone on this machine",
                fix=_password_fix(text.partition(":")[0].partition("+")[0]),
            )
        return TextValues(None).check(text, ("backends", "given", "url"))
    except ValueError as error:
        raise UsageFault(f"The URL cannot be used: {error}") from None


def _password_fix(scheme: str) -> str:
    """How to give a password to this kind of server."""
    variable = "Write ${NAME} for it, with the URL in single quotes, and set that variable"
    if scheme in ("postgres", "postgresql"):
        return f"{variable}; or use a passfile (~/.pgpass, PGPASSFILE)."
    if scheme in ("mysql", "mariadb"):
        return f"{variable}; or name an option file in the URL (?read_default_file=/home/USER/.my.cnf)."
    return f"{variable}."


def url_of(settings: Settings, name: str) -> str:
    """The URL of a configured backend."""
    for backend in settings.backends:
        if backend.name == name:
            url = backend.options.values.get("url")
            if isinstance(url, str):
                return url
            raise UsageFault(f"The backend '{name}' has no url", fix="`map` works for databases only.")
    raise UsageFault(f"No backend named '{name}'", fix=did_you_mean(name, [one.name for one in settings.backends]))
