"""The browser client in Node, whose `fetch` is undici's; and what it makes of bytes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from earnest import Client, doors
from tests.client.house import House
from tests.client.test_frames import ALL, MEANT

CLIENT = Path(doors.__path__[0]) / "api" / "static" / "earnest-events.js"

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")

FOLLOW = """
const [url, token, run] = process.argv.slice(1);
const told = [];
followRun(url, run, {
  token,
  onEvent: (event) => told.push(event.seq),
  onEnd: () => console.log(JSON.stringify(told)),
  onError: (error) => { throw error },
});
"""
FRAMES = """
const bytes = Uint8Array.from(JSON.parse(process.argv[1]));
const read = (chunks) => {
  const frames = new Frames(), found = [];
  for (const chunk of chunks) found.push(...frames.take(chunk));
  return found.filter((frame) => frame.data).map(({ event, data, id }) => [event, data, id]);
};
const one = read([bytes]);
const each = read([...bytes].map((byte) => Uint8Array.of(byte)));
const two = [...bytes.keys()].map((at) => read([bytes.slice(0, at), bytes.slice(at)]));
const large = new Frames(), piece = new TextEncoder().encode("x".repeat(65536));
let refused = 0;
try { for (let n = 0; n < 20; n += 1) [...large.take(piece)] } catch { refused = 1 }
console.log(JSON.stringify({ one, each, same: two.every((x) => `${x}` === `${one}`), refused }));
"""


def run_node(script: str, *words: str) -> Any:
    code = f"import {{ followRun, Frames }} from {json.dumps(CLIENT.as_uri())};\n{script}"
    command = ["node", "--no-warnings", "--input-type=module", "-e", code, "--", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


async def test_a_run_is_followed_to_its_end_in_node(shared: House, client: Client) -> None:
    run = await client.submit("demo.steps", {"count": 5})
    await client.wait(run.id)
    last = (await client.get(run.id)).last_seq
    told = run_node(FOLLOW, shared.url, shared.tokens["member"], run.id)
    assert told == list(range(1, last + 1))


def test_it_does_not_matter_where_the_bytes_are_cut() -> None:
    data = b"\xef\xbb\xbf" + ALL
    told = run_node(FRAMES, json.dumps(list(data)))
    # An id stands for its own frame here, and no name means a message.
    meant = [["" if name == "message" else name, text, place] for name, text, place in MEANT]
    meant[3][2] = meant[4][2] = ""
    assert told == {"one": meant, "each": meant, "same": True, "refused": 1}
