"""Which database role may submit what, and that it can do nothing else with it (P12)."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from earnest.domain.errors import Forbidden, NotFound
from earnest.engine.process import database_roles, principals, scopes
from earnest.engine.process.database_roles import map_role, mapped_roles, unmap_role
from earnest.store.database import Database
from tests.sql_shop import PRINCIPAL, SCOPE, SqlShop, submitted

OWN_TABLES = ("run", "execution", "event", "run_kind", "database_role", "principal", "token")


async def refused(connection: asyncpg.Connection, statement: str) -> str:
    with pytest.raises(asyncpg.InsufficientPrivilegeError) as refusal:
        await connection.fetchval(statement)
    return str(refusal.value)


async def refused_in(shop: SqlShop, scope: str, role: str | None = None) -> str:
    async with shop.connected(role) as connection:
        return await refused(connection, f"SELECT earnest.submit('{scope}', 'echo', '1')")


async def grant(shop: SqlShop, role: str) -> None:
    """The bare right to call the function, which opens nothing yet."""
    async with shop.as_owner() as owner:
        await owner.execute(f"GRANT USAGE ON SCHEMA earnest TO {role}")
        await owner.execute(f"GRANT EXECUTE ON FUNCTION earnest.submit TO {role}")


# ---- the mapping -------------------------------------------------------------------------------


async def test_a_role_without_a_mapping_is_told_what_to_do(shop: SqlShop) -> None:
    role = await shop.add_role()
    await grant(shop, role)
    assert await refused_in(shop, SCOPE, role) == (
        f"the database role {role} may not submit in scope 'demo'; an administrator can let it: "
        f"SELECT earnest.map_role('{role}', 'demo', '<principal>')"
    )


async def test_a_role_submits_in_no_scope_that_it_is_not_mapped_in(shop: SqlShop) -> None:
    """P12: one that exists and one that does not look the same."""
    await scopes.ensure_scope(shop.engine, "other")
    other, nowhere = await refused_in(shop, "other"), await refused_in(shop, "nowhere")
    assert other.replace("other", "nowhere") == nowhere
    assert await shop.count() == 0


async def test_a_role_acts_in_each_scope_as_the_principal_that_it_is_mapped_to_there(
    shop: SqlShop,
) -> None:
    await scopes.ensure_scope(shop.engine, "other")
    await principals.ensure_principal(shop.engine, "other", "ann", ["operator"])
    await map_role(shop.engine, shop.role, "other", "ann")
    async with shop.connected() as connection:
        for scope in (SCOPE, "other"):
            await connection.fetchval("SELECT earnest.submit($1, 'echo', '1', 'k')", scope)
    async with shop.as_owner() as owner:
        rows = await owner.fetch("SELECT scope_id, principal_id FROM run ORDER BY 1")
    assert [tuple(row) for row in rows] == [("demo", PRINCIPAL), ("other", "ann")]


async def test_a_principal_that_has_lost_its_role_submits_nothing(shop: SqlShop) -> None:
    await principals.ensure_principal(shop.engine, SCOPE, PRINCIPAL, ["approver", "admin"])
    assert await refused_in(shop, SCOPE) == (
        "the principal 'shop' has no role that may submit in scope 'demo'; give it the role member"
    )


async def test_a_mapping_can_be_changed_and_taken_away(shop: SqlShop) -> None:
    await principals.ensure_principal(shop.engine, SCOPE, "ann", ["member"])
    await map_role(shop.engine, shop.role, SCOPE, "ann")
    assert await mapped_roles(shop.engine, SCOPE) == {shop.role: "ann"}
    run_id = await shop.submit_sql("echo", 1)
    assert (await shop.find(run_id)).principal_id == "ann"
    for _ in range(2):
        await unmap_role(shop.engine, shop.role, SCOPE)
    assert await mapped_roles(shop.engine, SCOPE) == {}
    assert "may not submit in scope 'demo'" in await refused_in(shop, SCOPE)


async def test_roles_are_mapped_beside_each_other(shop: SqlShop) -> None:
    """Two grants on one thing at the same time would fail with an error of the server."""
    roles = [await shop.add_role() for _ in range(8)]
    async with asyncio.TaskGroup() as group:
        for role in roles:
            group.create_task(map_role(shop.engine, role, SCOPE, PRINCIPAL))
    assert set(await mapped_roles(shop.engine, SCOPE)) == {shop.role, *roles}


async def test_a_role_with_an_awkward_name_is_mapped(shop: SqlShop) -> None:
    name = f'The "shop\'s" {shop.role}'
    async with shop.as_owner() as owner:
        quoted = name.replace('"', '""')
        await owner.execute(f'CREATE ROLE "{quoted}" LOGIN')
    await map_role(shop.engine, name, SCOPE, PRINCIPAL)
    connection = await asyncpg.connect(shop.engine.database.url, user=name)
    try:
        await submitted(connection, "echo", 1)
    finally:
        await connection.close()


async def test_what_is_not_there_cannot_be_mapped(shop: SqlShop) -> None:
    with pytest.raises(NotFound, match="there is no database role 'nobody'; make it first: CREATE"):
        await map_role(shop.engine, "nobody", SCOPE, PRINCIPAL)
    for scope, principal in (("nowhere", PRINCIPAL), (SCOPE, "nobody")):
        with pytest.raises(NotFound, match=f"'{scope}' has no principal '{principal}'; make it"):
            await map_role(shop.engine, shop.role, scope, principal)
    assert await mapped_roles(shop.engine, SCOPE) == {shop.role: PRINCIPAL}


async def test_only_the_owner_of_the_schema_can_map(shop: SqlShop) -> None:
    async with shop.connected() as connection:
        statement = f"SELECT earnest.map_role('{shop.role}', 'demo', 'shop')"
        assert "permission denied for function map_role" in await refused(connection, statement)
    async with Database(shop.url, size=1) as database:
        shop.engine.database, own = database, shop.engine.database
        with pytest.raises(Forbidden, match="only the owner of the schema earnest can map a role"):
            await map_role(shop.engine, shop.role, SCOPE, PRINCIPAL)
        shop.engine.database = own


# ---- who is asking -----------------------------------------------------------------------------


async def test_set_role_does_not_change_who_submits(shop: SqlShop) -> None:
    """What can be taken back within the session is no proof of who asks."""
    other = await shop.add_role()
    await principals.ensure_principal(shop.engine, SCOPE, "ann", ["member"])
    await database_roles.map_role(shop.engine, other, SCOPE, "ann")
    async with shop.as_owner() as owner:
        await owner.execute(f"GRANT {other} TO {shop.role}")
    async with shop.connected() as connection:
        await connection.execute(f"SET ROLE {other}")
        run_id = await submitted(connection, "echo", 1)
    assert (await shop.find(run_id)).principal_id == PRINCIPAL


async def test_set_role_to_one_that_may_not_call_the_function_is_refused(shop: SqlShop) -> None:
    other = await shop.add_role()
    async with shop.as_owner() as owner:
        await owner.execute(f"GRANT {other} TO {shop.role}")
    async with shop.connected() as connection:
        await connection.execute(f"SET ROLE {other}")
        statement = "SELECT earnest.submit('demo', 'echo', '1')"
        assert "permission denied" in await refused(connection, statement)


async def test_a_function_with_its_owners_rights_submits_as_who_logged_in(shop: SqlShop) -> None:
    visitor = await shop.add_role()
    async with shop.as_owner() as owner:
        await owner.execute(
            f"""CREATE SCHEMA wrapped AUTHORIZATION {shop.role};
                GRANT USAGE ON SCHEMA wrapped TO {visitor}"""
        )
    async with shop.connected() as connection:
        await connection.execute(
            """CREATE FUNCTION wrapped.ship() RETURNS text LANGUAGE sql SECURITY DEFINER
               AS $$ SELECT earnest.submit('demo', 'echo', '1') $$"""
        )
    async with shop.connected(visitor) as connection:
        said = await refused(connection, "SELECT wrapped.ship()")
    assert f"the database role {visitor} may not submit" in said


# ---- and nothing else --------------------------------------------------------------------------


async def test_a_mapped_role_reads_and_writes_no_table(shop: SqlShop) -> None:
    async with shop.connected() as connection:
        for table in OWN_TABLES:
            assert "permission denied" in await refused(
                connection, f"SELECT count(*) FROM earnest.{table}"
            )
            assert "permission denied" in await refused(connection, f"DELETE FROM earnest.{table}")


async def test_a_mapped_role_may_call_no_other_function(shop: SqlShop) -> None:
    """But for the clock, which says no more than the server's own."""
    async with shop.as_owner() as owner:
        rows = await owner.fetch(
            """SELECT proname FROM pg_proc
               WHERE pronamespace = 'earnest'::regnamespace
                 AND has_function_privilege($1, oid, 'EXECUTE')""",
            shop.role,
        )
    assert {row["proname"] for row in rows} == {"clock", "submit"}


async def test_a_role_that_was_granted_nothing_cannot_even_call_it(shop: SqlShop) -> None:
    role = await shop.add_role()
    assert "permission denied for schema earnest" in await refused_in(shop, SCOPE, role)


async def test_a_callers_search_path_and_temporary_tables_are_not_looked_at(
    shop: SqlShop,
) -> None:
    """Names in a function with its owner's rights must not mean what the caller wants."""
    async with shop.as_owner() as owner:
        await owner.execute(f"CREATE SCHEMA trap AUTHORIZATION {shop.role}")
    async with shop.connected() as connection:
        await connection.execute(
            """CREATE FUNCTION trap.octet_length(text) RETURNS int LANGUAGE plpgsql
                   AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
               CREATE FUNCTION trap.clock() RETURNS timestamptz LANGUAGE plpgsql
                   AS $$ BEGIN RAISE EXCEPTION 'trapped'; END $$;
               CREATE TEMPORARY TABLE database_role AS
                   SELECT session_user::text AS role_name, 'other' AS scope_id, 'x' AS principal_id;
               CREATE TEMPORARY TABLE run_kind (name text);
               CREATE TEMPORARY TABLE run (run_id uuid);
               SET search_path = pg_temp, trap, pg_catalog"""
        )
        assert "may not submit in scope 'other'" in await refused(
            connection, "SELECT earnest.submit('other', 'echo', '1')"
        )
        run_id = await submitted(connection, "echo", 1)
        assert await connection.fetchval("SHOW search_path") == "pg_temp, trap, pg_catalog"
    assert await shop.exists(run_id)
