"""Commands on a table under row-level security."""

from __future__ import annotations

from tests.cli.place import Place
from tests.plugins.sql_table.test_row_security import restricted


def test_the_commands_never_say_that_nothing_needs_attention(place: Place) -> None:
    with restricted() as (url, _):
        place.sections["x"] = f'  x: {{plugin: sql_table, preset: graphile_worker, url: "{url}"}}\n'
        for command in ("list", "causes"):
            done = place.run(command)
            assert done.code != 0
            assert "Row-level security hides rows" in done.err
            assert "Nothing needs attention" not in done.err
