"""Access to the pages and hostile stored text: every rule is tested over HTTP."""

from __future__ import annotations

import base64
import re
import time
from typing import Any

import httpx
import pytest
from cases import each_case
from fixture_types import Browse
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Mount

from convstore import Conversation, ConversationStore, InvalidInputError
from convstore.exceptions import InvalidScopeError
from convstore.ext.inspector import EVERYTHING, LocalGate, inspector
from convstore.ext.inspector.security import scope_for
from convstore.testing.samples import new_id, rag_turn
from convstore.types import LogItem

PAGES = (
    "",
    "?at=9",
    "/sent",
    "/changes?at=9",
    "/tools",
    "/messages/2",
    "/sources/1",
    "/summaries/1",
    "/search?q=orcas",
    "/view.json",
)
HOSTILE = {
    "script": "<script>alert(1)</script><img src=x onerror=alert(2)>",
    "markdown": "[a](javascript:alert(1)) ![i](https://evil.example/pixel.png) <b onclick=x>b</b> [d](data:,x)",
    "attribute": '" onmouseover="alert(1)" x="',
    "bidi": "user\u202e gnp.exe \u2066 \u200f end",
    "terminal": "\x1b[2J\x1b]0;owned\x07 \x9b31m \x00 nul",
    "surrogate": "broken \ud800 text",
    "template": "{{ 1234567 * 8901 }} {% raw %} ${1234567*8901}",
    "entity": "&#x202e; &lt;script&gt; &#60;script&#62;",
    "long": "x" * 1_000_000,
    "brackets": "[" * 50_000 + "1" * 50_000,
    "nested": "> " * 5_000 + "* " * 5_000,
    "json": '{"a": "</pre><script>alert(1)</script>"}',
}


async def get(app: Any, path: Any, **options: Any) -> Any:
    """The answer to one request of a new client."""
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:4000"
    ) as client:
        return await client.get(path, **options)


def test_without_a_rule_who_may_see_what_it_is_not_mounted(store: ConversationStore) -> None:
    """Forgetting `authorize` must not open all conversations."""
    for authorize in (None, {}, "ada"):
        with pytest.raises(InvalidInputError, match="authorize"):
            inspector(store, authorize=authorize)
    with pytest.raises(InvalidInputError, match="ConversationStore"):
        inspector("mongodb://…", authorize=lambda _: EVERYTHING)


@pytest.mark.slow
async def test_the_permission_limits_every_page(
    store: ConversationStore, chat: Conversation, here: str
) -> None:
    """A page of another user's conversation is answered exactly like a page of one that does not exist."""
    app = inspector(store, authorize=lambda request: {"user_id": request.headers["x-user"]})
    for path in PAGES:
        own = await get(app, here + path, headers={"x-user": "ada"})
        foreign = await get(app, here + path, headers={"x-user": "grace"})
        missing = await get(app, f"/c/{'0' * 24}{path}", headers={"x-user": "grace"})
        assert (own.status_code, foreign.status_code) == (200, 404)
        assert (foreign.content, foreign.headers) == (missing.content, missing.headers)
    listing = await get(app, "/", headers={"x-user": "grace"})
    assert here not in listing.text
    like = {"scope": here.replace("/c/", "thread_id:")}
    assert (await get(app, "/", params=like, headers={"x-user": "grace"})).status_code == 404


async def test_permission_is_asked_for_at_every_request(
    store: ConversationStore, chat: Conversation, here: str
) -> None:
    """Async functions and objects work too; None is 403, for the style sheet as well."""
    seen = []

    class Rule:
        async def __call__(self, request: Any) -> None:
            seen.append(request.url.path)

    for authorize in (lambda _: None, Rule()):
        app = inspector(store, authorize=authorize)
        for path in (
            "/",
            "/search?q=orcas",
            "/static/inspector.css",
            *(here + path for path in PAGES),
        ):
            assert (await get(app, path)).status_code == 403
    assert len(seen) == len(PAGES) + 3


async def test_an_empty_permission_is_refused(store: ConversationStore, here: str) -> None:
    """A filter that found no value must not mean all users."""
    answer = await get(inspector(store, authorize=lambda _: {}), here)
    assert answer.status_code == 403
    assert "EVERYTHING" in answer.text


@pytest.mark.costly
@pytest.mark.parametrize(
    "permission", [{"team": "x"}, {"user_id": ""}, {"user_id": {"$ne": ""}}, True, ["ada"]]
)
async def test_a_wrong_permission_shows_nothing(
    store: ConversationStore, chat: Conversation, here: str, permission: Any
) -> None:
    """A wrong permission gives status 500, never a wider filter."""
    app = inspector(store, authorize=lambda _: permission)
    for path in ("/", "/search?q=whales", here):
        answer = await get(app, path)
        assert answer.status_code == 500
        assert "On whales" not in answer.text


async def test_addresses_hold_no_scope_values(
    store: ConversationStore, browse: Browse, here: str
) -> None:
    """Every link of every page, for a user whose name would be seen."""
    chat = store.conversation(user_id="secret-user", thread_id="secret-thread")
    await chat.append(rag_turn("What about orcas?"))
    here = f"/c/{(await chat.info()).conversation_id}"
    for path in ("/", "/search?q=orcas", here, f"{here}/messages/3", f"{here}/sources/1"):
        links = re.findall(r'(?:href|src|action)="([^"]*)"', (await browse().get(path)).text)
        assert links
        assert [link for link in links if "secret" in link] == []


async def test_every_answer_has_the_headers(
    store: ConversationStore, browse: Browse, here: str
) -> None:
    """Pages, exports, the style sheet, errors and refusals."""
    client = browse()
    answers = [
        await client.get(path)
        for path in ("/", here, f"{here}/view.json", "/static/inspector.css", "/nothing")
    ]
    answers += [
        await client.post("/"),
        await browse(lambda _: None).get("/"),
        await browse(lambda _: 7).get("/"),
    ]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 200, 404, 405, 403, 500]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "script-src" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.costly
@pytest.mark.parametrize(
    "method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD", "TRACE", "X"]
)
async def test_only_get_is_answered(browse: Browse, here: str, method: str) -> None:
    """Every method but GET gets status 405."""
    assert (await browse().request(method, here)).status_code == 405


@pytest.mark.slow
async def test_pages_load_nothing_from_elsewhere_and_run_no_script(
    store: ConversationStore, browse: Browse, chat: Conversation, here: str
) -> None:
    """No script, no inline style, no event handler, no foreign address."""
    for path in ("/", "/search?q=orcas", *(here + path for path in PAGES[:-1])):
        body = (await browse().get(path)).text
        assert not re.search(
            r"<script|<style|<iframe|<object|<embed|<base\b| style=| on\w+=", body
        ), path
        sources = re.findall(r'(?:src|href)="([^"]*)"', body)
        loaded = re.findall(r'<(?:img|link)[^>]*(?:src|href)="([^"]*)"', body)
        assert sources
        assert all(item.startswith("/static/") for item in loaded)


@pytest.mark.costly
@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_text_is_shown_as_text(
    store: ConversationStore, browse: Browse, name: Any
) -> None:
    """Wherever it is stored: content, calls, artifacts, items, annotations, title, metadata, scope, ids."""
    text = HOSTILE[name]
    id_ = "x" if "\ud800" in text else text[:100]
    chat = store.conversation(user_id=id_, thread_id=new_id())
    call = {"name": text[:500], "args": {text[:50]: text[:50_000]}, "id": "call"}
    source = [
        {
            "title": text[:900],
            "url": f"javascript:{text[:50]}",
            "content": text[:200_000] + " source",
        }
    ]
    turn = [
        HumanMessage(text, id=id_),
        AIMessage(
            [{"type": "text", "text": text}, {"type": text[:50], "x": text[:500]}],
            tool_calls=[call],
            id="ai",
        ),
        ToolMessage(text, tool_call_id="call", artifact=source, id="tool", name=text[:200]),
        AIMessage(text, id="answer"),
        LogItem(kind=id_, data={text[:50]: text, "list": [text] * 3}),
    ]
    await chat.append(turn)
    await chat.annotate("answer", note=text[:50_000])
    await chat.update(title=text[:900], metadata={"x": text[:900]})
    here, client = f"/c/{(await chat.info()).conversation_id}", browse()
    for path in (
        "/",
        "/search?q=x",
        here,
        *(f"{here}/{tab}?at=4" for tab in ("sent", "changes", "tools")),
        *(f"{here}/messages/{ordinal}" for ordinal in range(1, 5)),
        f"{here}/sources/1",
    ):
        answer = await client.get(path)
        assert answer.status_code == 200, answer.text
        assert len(answer.content) <= 100_000
        body = answer.text
        assert not re.search(r"<script|<b\b|<img src=x| on\w+=\"|href=\"(?!https?:|/|#|\?)", body)
        assert not re.search(r"<img(?! src=\"/static/)", body)
        assert not re.search(
            "[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", body
        )
        assert "10988880867" not in body
    exported = await client.get(f"{here}/view.json")
    assert exported.status_code == 200
    exported.content.decode("ascii")


PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
IMAGES = (  # each block with what the address of its image sends
    (
        {"type": "image", "base64": base64.b64encode(PNG).decode(), "mime_type": "image/svg+xml"},
        "image/png",
    ),
    ({"type": "image_url", "image_url": {"url": "data:text/html;base64,/9j/AAAA"}}, "image/jpeg"),
    (
        {
            "type": "image",
            "source": {"type": "base64", "data": "R0lGODlh", "media_type": "image/gif"},
        },
        "image/gif",
    ),
    ({"type": "image", "base64": base64.b64encode(b"RIFF0000WEBPVP8 ").decode()}, "image/webp"),
    ({"type": "image", "base64": base64.b64encode(SVG).decode(), "mime_type": "image/png"}, ""),
    ({"type": "image", "base64": "no Base64 ✗", "mime_type": "image/png"}, ""),
    ({"type": "image", "base64": base64.b64encode(PNG + bytes(6_000_000)).decode()}, ""),
    ({"type": "image_url", "image_url": {"url": "https://evil.example/pixel.png"}}, ""),
    ({"type": "file", "base64": base64.b64encode(PNG).decode(), "mime_type": "image/png"}, ""),
    ({"type": "text", "text": "[image, 9 bytes; left out to save context, call x]"}, ""),
)


@pytest.mark.slow
async def test_an_image_comes_from_the_store_and_is_one_of_four_types(
    store: ConversationStore, browse: Browse
) -> None:
    """An image is served from the store if its first bytes show one of four types. Any other image is not found.

    The pages load nothing from elsewhere.
    """
    chat = store.conversation(user_id="ada", thread_id=new_id())
    await chat.append(
        [HumanMessage([block for block, _ in IMAGES], id="a/b ?"), AIMessage("Pictures.")]
    )
    here, client = f"/c/{(await chat.info()).conversation_id}", browse()
    for number, (_, kind) in enumerate([*IMAGES, ({}, "")], 1):
        answer = await client.get(f"{here}/image/a/b%20%3F/{number}")
        assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (
            (200, kind) if kind else (404, "text/html")
        )
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert (await client.get(f"{here}/image/a/b%20%3F/1")).content == PNG
    assert (await client.get(f"{here}/image/missing/1")).status_code == 404
    assert (
        await browse(lambda _: {"user_id": "grace"}).get(f"{here}/image/a/b%20%3F/1")
    ).status_code == 404
    assert (await browse(lambda _: None).get(f"{here}/image/a/b%20%3F/1")).status_code == 403
    for path in (here, f"{here}/messages/1"):
        shown = re.findall(
            rf'<img src="{here}/image/a/b%20%3F/(\d+)"', (await client.get(path)).text
        )
        assert {"1", "2", "3", "4"} <= set(shown) <= {"1", "2", "3", "4", "5", "6", "7", "10"}


async def test_links_of_a_message_open_without_naming_this_page(
    store: ConversationStore, browse: Browse
) -> None:
    """Http and https alone, in a window that does not learn where it was opened."""
    chat = store.conversation(user_id="ada", thread_id=new_id())
    await chat.append(
        HumanMessage(
            "[a](https://example.org/?q=1) <http://example.org/b> [f](ftp://example.org) [r](/c/x)"
        )
    )
    body = (await browse().get(f"/c/{(await chat.info()).conversation_id}")).text
    links = re.findall(r'<a href="(https?:[^"]*)"([^>]*)>', body)
    assert [address for address, _ in links] == ["https://example.org/?q=1", "http://example.org/b"]
    assert all("noreferrer" in rest for _, rest in links)


async def hello(scope: dict[str, str], receive: Any, send: Any) -> None:
    """An application that says that the gate let the request pass."""
    await PlainTextResponse("inside")(scope, receive, send)


async def test_the_token_works_once_and_becomes_a_cookie() -> None:
    """The token works once, becomes a cookie and is removed from the address.

    A second browser with the same address is refused.
    """
    gate = LocalGate(hello, port=4000, token="token")
    first = await get(gate, "/?token=token")
    assert (first.status_code, first.headers["location"]) == (303, "/")
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie.replace("Strict", "strict")
    pair = cookie.partition(";")[0]
    assert "=token" not in pair
    assert (await get(gate, "/", headers={"cookie": pair})).text == "inside"
    assert (await get(gate, "/?token=token", headers={"cookie": pair})).status_code == 303
    assert (await get(gate, "/?token=token")).status_code == 403
    assert (
        await get(gate, "/", headers={"cookie": "convstore_inspector_4000=x"})
    ).status_code == 403


async def test_a_bookmark_without_a_token_says_what_to_open() -> None:
    """A token that was used is replaced once, and its address given to the program; the cookie stays valid."""
    given = list[str]()
    gate = LocalGate(hello, port=4000, token="token", on_refused=given.append)
    assert "Open the last address that convstore inspect printed" in (await get(gate, "/c/x")).text
    assert given == []
    cookie = (await get(gate, "/?token=token")).headers["set-cookie"].partition(";")[0]
    for path in ("/c/x", "/?token=token", "/"):
        assert (await get(gate, path)).status_code == 403
    [token] = given
    assert (await get(gate, f"/?token={token}")).status_code == 303
    assert (await get(gate, f"/?token={token}")).status_code == 403
    assert len(given) == 2
    assert (await get(gate, "/c/x", headers={"cookie": cookie})).text == "inside"


async def test_the_gates_own_answers_have_the_headers() -> None:
    """The redirect that sets the cookie, and each refusal."""
    gate = LocalGate(hello, port=4000, token="token")
    answers = [
        await get(gate, "/"),
        await get(gate, "/?token=token"),
        await get(gate, "/", headers={"host": "evil"}),
    ]
    assert [answer.status_code for answer in answers] == [403, 303, 403]
    for answer in answers:
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in answer.headers["content-security-policy"]


@each_case(
    "path", ["/", "/?token=", "/?token=Token", "/?token=token0", "/?token=%F0%9F", "/c/x?token=no"]
)
async def test_without_the_token_nothing_is_shown(path: str) -> None:
    """Without the token nothing is shown, and a wrong token does not use up the right one."""
    gate = LocalGate(hello, port=4000, token="token")
    assert (await get(gate, path)).status_code == 403
    assert (await get(gate, "/?token=token")).status_code == 303


@each_case(
    "host",
    [
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:4001",
        "localhost.evil.example:4000",
        "[::1]:4000",
        "",
    ],
)
async def test_only_this_machines_names_are_hosts(host: str) -> None:
    """A name that an attacker's server resolves to 127.0.0.1 is refused, with the right token too."""
    gate = LocalGate(hello, port=4000, token="token")
    assert (await get(gate, "/?token=token", headers={"host": host})).status_code == 403
    assert (await get(gate, "/?token=token", headers={"host": "localhost:4000"})).status_code == 303


@each_case("method", ["HEAD", "POST", "OPTIONS", "PUT"])
async def test_only_get_uses_the_token_up(method: str) -> None:
    """A preview of the link by another program, or a form, leaves it to the browser."""
    gate = LocalGate(hello, port=4000, token="token")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(gate), base_url="http://127.0.0.1:4000"
    ) as client:
        assert (await client.request(method, "/?token=token")).status_code == 405
    assert (await get(gate, "/?token=token")).status_code == 303


@pytest.mark.costly
@pytest.mark.parametrize(
    "path", ["/messages/{}", "/sources/{}", "/summaries/{}", "?at={}", "?before={}"]
)
async def test_a_number_of_any_length_is_no_error(
    store: ConversationStore, chat: Conversation, here: str, path: str
) -> None:
    """Python refuses to read more than 4,300 digits; it is a missing page, and only for those who may ask."""
    for digits in ("9" * 5_000, "9" * 17, "0" * 5_000 + "1"):
        assert (
            await get(inspector(store, authorize=lambda _: EVERYTHING), here + path.format(digits))
        ).status_code == 404
        assert (
            await get(inspector(store, authorize=lambda _: None), here + path.format(digits))
        ).status_code == 403


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/c/x/tools/", "../tools"),
        ("/c/x/messages/7/?at=3&before=9", "../7?at=3&before=9"),
        ("//evil.example/", "../evil.example"),
        ("/%5Cevil.example%3Fx:1/", "../%5Cevil.example%3Fx%3A1"),
    ],
)
async def test_a_slash_at_the_end_never_leads_elsewhere(
    browse: Browse, path: str, location: str
) -> None:
    """The address is relative, whatever host the request names."""
    answer = await browse().get(f"http://inspector{path}", headers={"host": "evil.example"})
    assert (answer.status_code, answer.headers["location"]) == (307, location)


async def test_a_mounted_page_with_a_slash_at_the_end_opens(
    store: ConversationStore, chat: Conversation, here: str
) -> None:
    """Below the path of the mount."""
    app = Starlette(routes=[Mount("/admin", inspector(store, authorize=lambda _: EVERYTHING))])
    answer = await get(app, f"/admin{here}/tools/", follow_redirects=True)
    assert (answer.status_code, answer.url.path) == (200, f"/admin{here}/tools")


async def test_thousands_of_cited_ranges_cost_little(
    store: ConversationStore, browse: Browse
) -> None:
    """No range is expanded: 20 answers of 96 KB took eight seconds, in which no other request was answered."""
    chat = store.conversation(user_id="ada", thread_id=new_id())
    await chat.append(rag_turn("What about orcas?"))
    await chat.append([AIMessage("[1-100]" * 14_000 + str(number)) for number in range(20)])
    here, client, before = (
        f"/c/{(await chat.info()).conversation_id}",
        browse(),
        time.process_time(),
    )
    assert "cited in" in (await client.get(f"{here}/sources/1")).text
    assert time.process_time() - before < 4


async def test_the_error_of_a_permission_is_typed() -> None:
    """A backend's own test sees what it did wrong."""
    wrong: Any = lambda _: True  # noqa: E731 - a permission of no type that is allowed
    with pytest.raises(InvalidScopeError, match="bool"):
        await scope_for(wrong, Request({"type": "http"}))
