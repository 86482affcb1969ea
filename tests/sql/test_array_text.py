"""Arrays as the server reads them itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.sql.guarded_postgres import array_text
from tests.plugins.postgres_analyses.server import database

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=8)
AWKWARD = st.sampled_from(['"', "\\", '","', "NULL", "null", "", " ", "{}", "a,b", "\n", "é", '\\"'])


@pytest.fixture
def server() -> Iterator[Any]:
    with database("") as url, psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize(
    ("values", "kind"),
    [([], "int"), ([1, -2, 2**62], "bigint"), ([1, None], "int"), ([None], "text"), ([True, False, None], "bool"), ([0.1, 1e300], "float8")],
)
def test_an_array_comes_back_as_it_was(server: Any, values: list[Any], kind: str) -> None:
    assert server.execute(f"SELECT %s::{kind}[]", (array_text(values),)).fetchone() == (values,)


def test_whatever_a_text_holds(server: Any) -> None:
    @given(st.lists(st.one_of(TEXT, AWKWARD, st.none()), max_size=6))
    def holds(values: list[str | None]) -> None:
        assert server.execute("SELECT %s::text[]", (array_text(values),)).fetchone() == (values,)

    holds()
