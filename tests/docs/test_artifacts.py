"""The guide to artifacts: its run, its uploads and downloads, and its commands, as they stand."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

from earnest.store.blobs import open_blobs
from tests.docs.guides import reading
from tests.doors.cli.program import Program
from tests.moto import environment

ORDERS = b"order,amount\n" + b"17,20.00\n" * 200_000


def shell(text: str, folder: Path, **variables: str) -> str:
    """What a block of commands prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", text], cwd=folder, env={**os.environ, "PATH": path, **variables},
        check=False, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_guide_to_artifacts(database_url: str, tmp_path: Path) -> None:
    variables = {"EARNEST_HOME": str(tmp_path / "home"), "EARNEST_DATABASE_URL": database_url}
    program = Program(tmp_path, {**variables, "PYTHONPATH": str(tmp_path)})
    with reading("artifacts") as guide:
        guide.write(tmp_path, "report.py")
        (tmp_path / "orders.csv").write_bytes(ORDERS)
        words = shlex.split(guide.text("serve.sh"))
        token = shell(guide.text("token.sh"), tmp_path, **variables).strip().split()[-1]
        with program.started(*words[1:], "--port", "0") as server:
            told = {**variables, "URL": server.url, "TOKEN": token, "EARNEST_SCOPE": "demo"}
            first = json.loads(shell(guide.text("upload.sh"), tmp_path, **told))
            assert json.loads(shell(guide.text("upload.sh"), tmp_path, **told)) == first
            assert first["size"] == len(ORDERS)
            asked = shell(guide.text("submit.sh"), tmp_path, **told, ARTIFACT=first["id"])
            run_id = json.loads(asked)["id"]
            program.on(EARNEST_SCOPE="demo").good("runs", "watch", run_id, "--timeout", "30")
            ended = program.on(EARNEST_SCOPE="demo").good("runs", "show", run_id, "--json").json
            report = ended["output"]["report"]
            got = shell(guide.text("download.sh"), tmp_path, **told, RUN=run_id, REPORT=report)
            assert f'"{report}"' in got
            assert got.endswith("200001 lines")
            printed = shell(guide.text("commands.sh"), tmp_path, **told)
            assert "orders.csv" in printed
            assert "10000000000" in printed
        bucket = guide.text("bucket.sh").replace("export ", "")
        names = dict(word.split("=", 1) for word in shlex.split(bucket))
        setting = names.pop("EARNEST_ARTIFACTS")
        with environment(**names):
            assert open_blobs(setting, tmp_path).told == "s3://my-bucket/earnest"
