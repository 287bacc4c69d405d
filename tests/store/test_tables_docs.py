"""The page and the picture of the tables are those of the migrated database."""

from __future__ import annotations

from scripts.tables_docs import DOCS, PICTURE, SUBJECTS, graph, mark_of, page, read_tables


async def test_the_tables_in_the_docs_are_those_of_the_database(database_url: str) -> None:
    """Made anew by `python -m scripts.tables_docs`."""
    tables = await read_tables(database_url)
    assert (DOCS / "tables.md").read_text("utf-8") == page(tables)
    assert mark_of(graph(tables)) in PICTURE.read_text("utf-8")


async def test_every_table_stands_under_a_subject(database_url: str) -> None:
    named = [name for names in SUBJECTS.values() for name in names]
    tables = await read_tables(database_url)
    assert set(tables) <= set(named)


async def test_a_reference_between_things_of_a_scope_names_the_scope(database_url: str) -> None:
    """P12: the database refuses a reference into another scope."""
    tables = await read_tables(database_url)
    references = [(table, one) for table in tables.values() for one in table.references]
    for table, one in references:
        if "scope_id" in [column.name for column in tables[one.other].columns]:
            assert "scope_id" in one.columns, f"{table.name} → {one.other}"
            assert one.others[one.columns.index("scope_id")] == "scope_id"
    assert len(references) >= 20
