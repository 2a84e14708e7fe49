"""The ASGI application of the inspector, with the address of each page.

Every page reads its data through the public API. Addresses contain the random id of a conversation. A conversation that
the request may not see answers exactly like a missing one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from convstore import Conversation, ConversationStore
from convstore.edges import check_store
from convstore.exceptions import (
    ConvstoreError,
    CorruptDocumentError,
    InvalidInputError,
    InvalidScopeError,
    StoreUnavailableError,
)
from convstore.ext.inspector.answers_page import answers_page
from convstore.ext.inspector.call_page import export_page
from convstore.ext.inspector.call_tabs import changes_page, sent_page, tools_page
from convstore.ext.inspector.conversation_page import conversation_page
from convstore.ext.inspector.damage import doctor_command
from convstore.ext.inspector.detail_pages import image_page, message_page, source_page, summary_page
from convstore.ext.inspector.list_pages import (
    exported_list,
    listing_page,
    search_all_page,
    search_page,
)
from convstore.ext.inspector.overview import OverviewCache, overview_page
from convstore.ext.inspector.rendering import render
from convstore.ext.inspector.security import Authorize, Guard, scope_for
from convstore.ext.inspector.sums_page import sums_page
from convstore.values.addresses import without_addresses
from convstore.values.policy import HistoryPolicy, check_policy
from convstore.values.usage import Prices, check_prices

_KINDS = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_STATIC = {
    path.name: (path.read_bytes(), _KINDS[path.suffix])
    for path in sorted((Path(__file__).parent / "static").iterdir())
}

_Listing = Callable[[Request, ConversationStore, dict[str, str]], Awaitable[Response]]
_Page = Callable[[Request, Conversation], Awaitable[Response]]

_PAGES: dict[str, _Page] = {
    "": conversation_page,
    "/sent": sent_page,
    "/changes": changes_page,
    "/tools": tools_page,
    "/view.json": export_page,
    "/messages/{ordinal}": message_page,
    "/answers/{ordinal}": answers_page,
    "/sources/{number}": source_page,
    "/summaries/{version}": summary_page,
    "/image/{message_id:path}/{number}": image_page,
    "/search": search_page,
}


def inspector(
    store: ConversationStore,
    *,
    authorize: Authorize | None = None,
    policy: HistoryPolicy | None = None,
    prices: Prices | None = None,
) -> ASGIApp:
    """Return an ASGI application that shows a store's conversations and changes nothing.

    Mount it in a backend. `authorize` decides at every request which conversations it may show, with their messages,
    items, sources, annotations, metadata and exports.

    Args:
        store: The store.
        authorize: Sync or async function from the request to scope values such as ``{"user_id": "ada"}``. It returns
            None to refuse the request, or `EVERYTHING` for a person who may see all conversations.
        policy: Policy of the views. By default, a view with a stamp has the stamp's policy, and any other view the
            policy of the conversation's newest stamp, or the store's policy if no message has a stamp.
        prices: Prices of a million tokens by model, such as ``{"my-model": (2.5, 10, 0.25, 3)}``: input, output, and
            input that a prompt cache read and wrote. Without the last two, cached input costs as much as other input.
            Without prices, pages do not show costs.

    Raises:
        InvalidInputError: `authorize` is missing, `store` is not a `ConversationStore`, `policy` is not a
            `HistoryPolicy`, or a price is not two to four numbers.
    """
    check_store(store)
    if not callable(authorize):
        raise InvalidInputError(
            "pass authorize=, a function from the request to the scope values that it may see; "
            "without it every person who can open the address could read every conversation"
        )
    known = check_prices(prices)
    site = _Site(store, authorize, check_policy(policy), known)
    pages: dict[str, _Page] = {**_PAGES, "/overview": partial(overview_page, OverviewCache())}
    app = Starlette(
        routes=[
            Route("/", site.listing(listing_page)),
            Route("/list.csv", site.listing(partial(exported_list, known, "csv"))),
            Route("/list.json", site.listing(partial(exported_list, known, "json"))),
            Route("/sums", site.listing(partial(sums_page, known))),
            Route("/search", site.listing(search_all_page)),
            Route("/static/{name}", site.static),
            *(
                Route(f"/c/{{conversation_id}}{path}", site.page(page))
                for path, page in pages.items()
            ),
            Route("/{path:path}/", _without_slash),
        ],
        exception_handlers={HTTPException: _problem, ConvstoreError: _problem},
    )
    app.router.redirect_slashes = False  # it would redirect to the host in the client's request
    return Guard(app)


class _Site:
    def __init__(
        self,
        store: ConversationStore,
        authorize: Authorize,
        policy: HistoryPolicy | None,
        prices: Prices,
    ) -> None:
        self._store = store
        self._authorize = authorize
        self._policy = policy
        self._prices = prices

    def listing(self, page: _Listing) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a page about the conversations that the request may see."""

        async def handle(request: Request) -> Response:
            return await page(request, self._store, await scope_for(self._authorize, request))

        return handle

    async def static(self, request: Request) -> Response:
        """Return a style sheet, the icon or the script."""
        await scope_for(self._authorize, request)
        content, kind = _STATIC.get(request.path_params["name"], (b"", ""))
        if not kind:
            raise HTTPException(404)
        return Response(content, media_type=kind)

    def page(self, page: _Page) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a page about one conversation."""

        async def handle(request: Request) -> Response:
            permitted = await scope_for(self._authorize, request)
            chat = await self._store.find_conversation(
                request.path_params["conversation_id"], **permitted
            )
            if chat is None:
                raise HTTPException(404)
            request.state.policy = self._policy
            request.state.prices = self._prices
            request.state.chat = chat
            return await page(request, chat)

        return handle


async def _without_slash(request: Request) -> Response:
    """Redirect to the address without the slash at its end."""
    name = request.path_params["path"].rpartition("/")[2]
    query = request.scope["query_string"].decode("latin-1")
    return RedirectResponse(f"../{quote(name)}{'?' if query else ''}{query}")


async def _problem(request: Request, error: Exception) -> Response:
    """Return the page for an error, with its text and, for damage, the command that checks the conversation."""
    command = log = ""
    if isinstance(error, HTTPException):
        status = error.status_code
        text = error.detail
    elif isinstance(error, StoreUnavailableError):
        status = 503
        text = without_addresses(str(error))
    elif isinstance(error, InvalidInputError) and not isinstance(error, InvalidScopeError):
        status = 404
        text = ""
    else:
        status = 500
        text = without_addresses(str(error))
    if isinstance(error, CorruptDocumentError):
        chat = getattr(request.state, "chat", None)
        command = doctor_command(chat)
        log = f"/c/{quote(request.path_params['conversation_id'])}" if chat else ""
    if status == 404:
        text = "There is no such page, or you may not see it."
    return render(
        "problem.html", request, status, status=status, text=text, command=command, log=log
    )
