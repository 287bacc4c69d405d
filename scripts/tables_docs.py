"""Writes `docs/tables.md` and its picture from the catalogue of a migrated, empty database.

    python -m scripts.tables_docs

The picture is drawn by Graphviz (`dot`); it keeps the digest of what it was drawn from, so that a
test without Graphviz can tell whether it is stale.
"""

from __future__ import annotations

import asyncio
import hashlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg

from earnest.testing.databases import ThrowawayCluster

DOCS = Path(__file__).parents[1] / "docs"
PICTURE = DOCS / "pictures" / "tables.svg"

SUBJECTS: dict[str, tuple[str, ...]] = {
    "Runs": (
        "run", "execution", "past_attempt", "step", "event", "signal", "run_kind",
    ),
    "Operations": ("operation", "operation_move", "operation_lookup", "finding"),
    "Approvals": ("approval",),
    "Who may come in": ("scope", "principal", "token", "audit", "database_role"),
    "Artifacts": ("artifact", "blob", "artifact_room"),
    "Messages": ("sink", "outbox", "delivery", "inbox_source", "inbox_entry"),
    "Text and log lines": ("text_head", "text_delta", "text_quota", "log_head", "log_line"),
    "The feed": ("feed", "feed_pruned", "sequenced"),
    "Sweeps": ("sweep", "sweep_sighting", "sweep_seen", "sweep_difference"),
    "The installation": ("instance", "setting", "migration"),
}  # fmt: skip
"""The order of the page. A table that is not named here stands under the last one."""

_COLOURS = (
    "#dbeafe", "#fee2e2", "#fef3c7", "#dcfce7", "#ede9fe", "#ffe4e6", "#e0f2fe", "#fae8ff",
    "#e2e8f0",
)  # fmt: skip

_COLUMNS = """
SELECT c.relname AS table, a.attname AS column, format_type(a.atttypid, a.atttypmod) AS type,
       a.attnotnull AS needed
FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid
WHERE c.relnamespace = 'earnest'::regnamespace AND c.relkind IN ('r', 'p') AND NOT c.relispartition
  AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY c.relname, a.attnum
"""
_KEYS = """
SELECT conrelid::regclass::text AS table, contype::text AS type, confrelid::regclass::text AS other,
       ARRAY(
           SELECT attname::text FROM unnest(conkey) WITH ORDINALITY AS k (number, place)
           JOIN pg_attribute ON attrelid = conrelid AND attnum = k.number ORDER BY place
       ) AS columns,
       ARRAY(
           SELECT attname::text FROM unnest(confkey) WITH ORDINALITY AS k (number, place)
           JOIN pg_attribute ON attrelid = confrelid AND attnum = k.number ORDER BY place
       ) AS others,
       pg_get_constraintdef(oid) AS told
FROM pg_constraint
WHERE connamespace = 'earnest'::regnamespace AND contype IN ('p', 'f', 'u') AND conparentid = 0
  AND conrelid <> 0
ORDER BY conrelid::regclass::text, contype, conname
"""
_INDEXES = """
SELECT tablename AS table, indexname AS name, indexdef AS told FROM pg_indexes
WHERE schemaname = 'earnest' ORDER BY tablename, indexname
"""


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    needed: bool


@dataclass(frozen=True)
class Reference:
    """`columns` here name a row of `other` by its `others`."""

    columns: tuple[str, ...]
    other: str
    others: tuple[str, ...]
    told: str


@dataclass
class Table:
    name: str
    columns: list[Column] = field(default_factory=list)
    key: tuple[str, ...] = ()
    unique: list[tuple[str, ...]] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    indexes: list[tuple[str, str]] = field(default_factory=list)


async def read_tables(url: str) -> dict[str, Table]:
    """All tables of the schema, by name."""
    connection = await asyncpg.connect(url, server_settings={"search_path": "earnest"})
    try:
        return _tables(
            *[
                [dict(row) for row in await connection.fetch(asked)]
                for asked in (_COLUMNS, _KEYS, _INDEXES)
            ]
        )
    finally:
        await connection.close()


def _tables(
    columns: Sequence[Mapping[str, object]],
    keys: Sequence[Mapping[str, object]],
    indexes: Sequence[Mapping[str, object]],
) -> dict[str, Table]:
    found: dict[str, Table] = {}
    for row in columns:
        table = found.setdefault(str(row["table"]), Table(str(row["table"])))
        table.columns.append(Column(str(row["column"]), str(row["type"]), bool(row["needed"])))
    for row in keys:
        _add_key(found[str(row["table"])], row)
    for row in indexes:
        if str(row["table"]) in found:
            _, _, told = str(row["told"]).partition(" USING ")
            found[str(row["table"])].indexes.append((str(row["name"]), told))
    return found


def _add_key(table: Table, row: Mapping[str, object]) -> None:
    columns: tuple[str, ...] = tuple(row["columns"])  # type: ignore[arg-type]
    if row["type"] == "p":
        table.key = columns
    elif row["type"] == "u":
        table.unique.append(columns)
    else:
        others: tuple[str, ...] = tuple(row["others"])  # type: ignore[arg-type]
        told = str(row["told"]).partition(")")[2].rpartition(")")[2].strip()
        table.references.append(Reference(columns, str(row["other"]), others, told))


def subjects(tables: Mapping[str, Table]) -> dict[str, list[Table]]:
    """The tables under their subjects, in the order of the page."""
    named = {name for names in SUBJECTS.values() for name in names}
    *_, last = SUBJECTS
    found = {
        subject: [tables[name] for name in names if name in tables]
        for subject, names in SUBJECTS.items()
    }
    found[last] += [tables[name] for name in sorted(set(tables) - named)]
    return {subject: there for subject, there in found.items() if there}


# ---- the page ------------------------------------------------------------------------------------


HEAD = """# Tables

Made by `python -m scripts.tables_docs` from the catalogue of a migrated, empty database; do not
edit. What belongs to a scope has `scope_id` first in its key and in its references, so that the
database itself refuses a reference into another scope. Why some tables have no foreign keys:
[decision 5](decisions/0005-no-foreign-keys-on-the-hot-tables.md). In the picture the columns of a
key are underlined; a dotted line is a reference that is not checked.

![The tables and their references](pictures/tables.svg)
"""


def page(tables: Mapping[str, Table]) -> str:
    parts = [HEAD]
    for subject, there in subjects(tables).items():
        parts += [f"## {subject}", ""]
        for table in there:
            parts += [*_section(table), ""]
    return "\n".join(parts).rstrip() + "\n"


def _section(table: Table) -> Iterator[str]:
    yield from (f"### {table.name}", "", "| column | type | |", "| --- | --- | --- |")
    for column in table.columns:
        yield f"| `{column.name}` | {column.type} | {_marks(table, column)} |"
    yield ""
    for one in table.references:
        told = f", {one.told.lower()}" if one.told else ""
        here, there = ", ".join(one.columns), ", ".join(one.others)
        yield f"* ({here}) → [{one.other}](#{one.other}) ({there}){told}"
    for owner in unchecked(table):
        yield f"* (scope_id, {owner}_id) belongs to [{owner}](#{owner}), which is not checked"
    for columns in table.unique:
        yield f"* unique: ({', '.join(columns)})"
    for name, told in table.indexes:
        yield f"* index `{name}`: `{told}`"


def _marks(table: Table, column: Column) -> str:
    key = f"key {table.key.index(column.name) + 1}" if column.name in table.key else ""
    return ", ".join(mark for mark in (key, "" if column.needed else "may be null") if mark)


# ---- the picture ---------------------------------------------------------------------------------


def graph(tables: Mapping[str, Table]) -> str:
    """What Graphviz draws."""
    lines = [
        "digraph tables {",
        'graph [rankdir=LR, nodesep=0.12, ranksep=0.9, fontname="Helvetica", pad=0.3];',
        "graph [bgcolor=white, splines=true];",
        'node [shape=plain, fontname="Helvetica", fontsize=10];',
        'edge [fontname="Helvetica", fontsize=8, color="#475569", arrowsize=0.7];',
    ]
    for number, (subject, there) in enumerate(subjects(tables).items()):
        colour = _COLOURS[number % len(_COLOURS)]
        lines += [f"subgraph cluster_{number} {{", f'label="{subject}"; fontsize=16;']
        lines += ['style="rounded"; color="#94a3b8"; margin=14;']
        lines += [f"{table.name} [label=<{_box(table, colour)}>];" for table in there]
        lines.append("}")
    lines += [line for table in tables.values() for line in _arrows(table)]
    return "\n".join([*lines, "}", ""])


_LINES = 'border="0" cellborder="1" cellspacing="0" cellpadding="4" color="#cbd5e1"'


def _box(table: Table, colour: str) -> str:
    """The whole key, what else refers to something, and how many more columns there are."""
    referring = {name for one in table.references for name in one.columns}
    referring |= {f"{owner}_id" for owner in unchecked(table)}
    names = [one.name for one in table.columns]
    others = [one for one in names if one in referring and one not in table.key]
    more = len(names) - len(table.key) - len(others)
    rows = [
        f'<tr><td bgcolor="{colour}" align="left" port="head"><b>{table.name}</b></td></tr>',
        f'<tr><td align="left" port="key"><u>{", ".join(table.key)}</u></td></tr>',
        *(f'<tr><td align="left" port="{one}">{escape(one)}</td></tr>' for one in others),
    ]
    if more:
        rows.append(f'<tr><td align="left"><font color="#64748b">and {more} more</font></td></tr>')
    return f"<table {_LINES}>{''.join(rows)}</table>"


def _arrows(table: Table) -> Iterator[str]:
    for one in table.references:
        label = f"{table.name} ({', '.join(one.columns)})"
        begin = f"{table.name}:{_port(table, one.columns[-1])}"
        # What refers to its own table goes round outside of it.
        end = f"{one.other}:head:e" if one.other == table.name else f"{one.other}:key:w"
        yield f'{begin}:e -> {end} [tooltip="{label}"];'
    for owner in unchecked(table):
        yield f"{table.name}:{_port(table, f'{owner}_id')}:e -> {owner}:key:w [style=dotted];"


def _port(table: Table, column: str) -> str:
    return "key" if column in table.key else column


def unchecked(table: Table) -> Iterator[str]:
    """Whose rows it belongs to without a foreign key: by the same scope and id."""
    names = {one.name for one in table.columns}
    for owner in ("run", "operation"):
        refers = {one.other for one in table.references}
        own = {"scope_id", f"{owner}_id"}
        if own <= names and table.name != owner and owner not in refers:
            yield owner


def mark_of(drawn: str) -> str:
    """What the picture keeps of what it was drawn from."""
    return f"<!-- drawn from {hashlib.sha256(drawn.encode()).hexdigest()} -->"


def draw(drawn: str) -> str:
    """The picture. Raises `CalledProcessError`, or `FileNotFoundError` without Graphviz."""
    done = subprocess.run(["dot", "-Tsvg"], input=drawn, capture_output=True, text=True, check=True)
    return done.stdout.rstrip() + f"\n{mark_of(drawn)}\n"


def main() -> None:
    with TemporaryDirectory() as folder:
        cluster = ThrowawayCluster(Path(folder)).start()
        try:
            tables = asyncio.run(read_tables(cluster.template_url))
        finally:
            cluster.stop()
    (DOCS / "tables.md").write_text(page(tables), encoding="utf-8")
    PICTURE.write_text(draw(graph(tables)), encoding="utf-8")


if __name__ == "__main__":
    main()
