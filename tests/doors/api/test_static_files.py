"""What a page loads from the server: found, fresh, and of the right type."""

from __future__ import annotations

from tests.doors.api.outside import Outside

PATH = "/static/earnest-events.js"


async def test_the_browser_client_is_a_script_that_is_asked_for_again_by_its_tag(
    outside: Outside,
) -> None:
    answer = await outside.get(PATH, who=None)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "public, max-age=300"
    assert answer.text.startswith("/* Follows the events")
    tag = answer.headers["etag"]
    again = await outside.get(PATH, who=None, headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    other = await outside.get(PATH, who=None, headers={"If-None-Match": '"other"'})
    assert other.status_code == 200


async def test_the_browser_client_needs_no_eval_and_loads_nothing(outside: Outside) -> None:
    text = (await outside.get(PATH, who=None)).text
    code = text.partition("*/")[2]
    for word in ("eval", "new Function", "innerHTML", "import ", "document.write"):
        assert word not in code


async def test_there_is_no_other_file(outside: Outside) -> None:
    for path in ("/static/", "/static/other.js", "/static/../gate.py", "/static/%2e%2e/gate.py"):
        assert (await outside.get(path, who=None)).status_code == 404
