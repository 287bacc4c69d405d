"""The guide to sweeps: its effect is swept as it stands, by its own commands."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import httpx2

from earnest.testing.simulator import Simulator, running_simulator
from tests.docs.guides import Guide, reading

REFUND = '{"order_id": 17, "amount": "20.00"}'


def test_the_guide(database_url: str, tmp_path: Path) -> None:
    with running_simulator() as simulator, reading("sweeps") as guide:
        guide.write(tmp_path, "shop.py")
        told = {"EARNEST_DATABASE_URL": database_url, "BANK_URL": simulator.url}
        tell(guide, simulator, tmp_path, told)


def tell(guide: Guide, simulator: Simulator, folder: Path, told: dict[str, str]) -> None:
    refund_by(folder, told)
    age(told["EARNEST_DATABASE_URL"])
    assert run(guide.text("sweep.sh"), folder, told)[0] == 0, "all is in order"
    [mine] = listed(simulator)
    planted = httpx2.post(
        f"{simulator.url}/bank/keyed/refunds",
        json={"operation_id": "by hand", "order_id": 18, "amount": "1.00"},
    ).json()
    httpx2.delete(f"{simulator.url}/bank/keyed/refunds/{mine['id']}").raise_for_status()
    code, out = run(guide.text("sweep.sh"), folder, told)
    assert code == 1
    assert "effect_without_record" in out
    assert "record_without_effect" in out
    code, out = run(guide.text("differences.sh"), folder, told)
    [row] = [line for line in out.splitlines() if planted["id"] in line]
    difference = row.split()[0]
    assert run(guide.text("close.sh"), folder, {**told, "DIFFERENCE": difference})[0] == 0
    code, out = run(guide.text("differences.sh"), folder, told)
    assert planted["id"] not in out
    assert mine["operation_id"] in out


def listed(simulator: Simulator) -> list[dict[str, str]]:
    answer = httpx2.get(f"{simulator.url}/bank/keyed/refunds")
    items: list[dict[str, str]] = answer.json()["items"]
    return items


def refund_by(folder: Path, told: dict[str, str]) -> None:
    """A worker does one."""
    worker = subprocess.Popen(
        [sys.executable, "-m", "earnest", "worker", "--app", "shop:app"],
        cwd=folder, env=environment(told), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        words = f"earnest runs submit refund '{REFUND}' --app shop:app --watch"
        code, out = run(words, folder, told)
        assert code == 0, out
    finally:
        worker.terminate()
        worker.wait(30)


def run(line: str, folder: Path, told: dict[str, str]) -> tuple[int, str]:
    """A block of the guide, with this environment's `earnest`."""
    done = subprocess.run(
        ["sh", "-c", line], check=False, cwd=folder, env=environment(told), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    return done.returncode, done.stdout


def environment(told: dict[str, str]) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EARNEST_")}
    return {**kept, "PATH": path, "PYTHONPATH": ".", **told}


def age(database_url: str) -> None:
    """As if the refund had been some time ago."""
    import asyncpg

    async def later() -> None:
        connection = await asyncpg.connect(database_url)
        await connection.execute(
            "UPDATE earnest.operation SET first_begun_at = first_begun_at - interval '9 s', "
            "submitted_at = submitted_at - interval '9 s'"
        )
        await connection.close()

    asyncio.run(later())
