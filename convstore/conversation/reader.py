"""The reading half of a conversation's handle: messages, turns, sources, summaries, annotations.

`Conversation` adds the methods that write or call a model.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage

from convstore.conversation.host import Host, read_back
from convstore.exceptions import InvalidInputError
from convstore.readback.request import PAGE_TOKENS, Request, check_page_tokens, check_source_ids
from convstore.search.request import search_request
from convstore.values.models import ConversationInfo, PastView, SourcePage, StoredMessage, Summary, ToolRecord, Turn
from convstore.values.policy import HistoryPolicy, check_policy
from convstore.values.reports import SearchHit
from convstore.values.scope import Scope, check_id, check_ids, check_number
from convstore.values.stamps import TurnOutline, ViewStamp
from convstore.view.past import check_moment

if TYPE_CHECKING:
    from langchain_core.tools import StructuredTool


class ConversationReader:
    """Reads one conversation; the base of `Conversation`."""

    def __init__(self, host: Host, scope: Scope) -> None:
        self._host, self._scope, self._services = host, scope, host.services

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self._scope)})"

    @property
    def store(self) -> Any:
        """The store of this conversation."""
        return self._host.store

    @property
    def scope(self) -> dict[str, str]:
        """The scope values that identify this conversation."""
        return dict(self._scope)

    async def find_shown_sources(self, texts: Sequence[str]) -> list[int | None]:
        """Return the id of the source that first showed each text; None for texts not among the newest 200.

        At least the newest of the last 60 appends are known. With it, a tool can say "already shown as [4]".
        No command if the conversation is cached.
        """
        if isinstance(texts, str) or not isinstance(texts, Sequence) or not all(type(text) is str for text in texts):
            raise InvalidInputError("texts must be a list of str")
        return await (await self._services()).writer.find_shown(self._scope, texts)

    async def view_at(
        self,
        at: ViewStamp | str | int | None = None,
        *,
        policy: HistoryPolicy | None = None,
        reasons_before: int | None = None,
    ) -> PastView:
        """Return a view as it was, to see what a model got and why. Nothing is written.

        A stamp gives exactly the view that it was taken from: `match` is "exact", or "differs" with the reason. A
        message or an ordinal gives the view directly after the entry that contains it, with the summary of that time.
        Later rewinds, summaries and results do not count.

        Args:
            at: ``history.stamp`` or `StoredMessage.stamp`, the id of a message, an ordinal, or None for now.
            policy: Limits of the view; None for the stamp's, or the store's.
            reasons_before: Only reasons that begin before this ordinal, see `HistoryReport.reasons_before`.

        Raises:
            UnknownMessageError: This conversation has no such message or view; it may have been deleted.
            InvalidInputError: `at` is none of these, or `policy` is not a policy.
        """
        moment, own = check_moment(at), at.history_policy if isinstance(at, ViewStamp) else self.store.policy
        if reasons_before is not None:
            check_number(reasons_before, name="reasons_before", minimum=1, maximum=2**53)
        chosen = check_policy(policy)
        past = (await self._services()).past
        return await past.view_at(
            self._scope, moment, chosen or own, reasons_before=reasons_before, has_policy=chosen is not None
        )

    async def summaries(self) -> list[Summary]:
        """Return every summary of this conversation, oldest first, with the range of messages that it covers."""
        return await (await self._services()).summaries.all(self._scope)

    async def expand_summary(self, version: int) -> list[BaseMessage]:
        """Return the messages that a summary covers, in order, each equal to the appended one.

        Raises:
            InvalidInputError: There is no such summary.
        """
        return await (await self._services()).summaries.expand(self._scope, version)

    async def get_tool_messages(self, ids: Sequence[str]) -> list[ToolRecord]:
        """Return messages in full, equal to the appended ones, in the order of the ids. Unknown ids are left out.

        Any message id works, not only those of tool results. One command, and one more for each append that stored
        large results.

        Raises:
            TooManyIdsError: More than 200 ids.
        """
        return await (await self._services()).records.get(self._scope, check_ids(ids, name="ids"))

    async def messages(self) -> AsyncIterator[BaseMessage]:
        """Iterate over the log in order, each message equal to the appended one. Reads in batches.

        The log includes rewound messages; `turns` leaves them out.
        """
        services = await self._services()
        async for _, _, message in services.reader.iterate(self._scope):
            yield message

    async def turns(
        self,
        *,
        after: int | None = None,
        before: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> AsyncIterator[Turn]:
        """Iterate over whole turns in order, each message equal to the appended one, without rewound messages.

        Reads in batches. To continue, pass `turn.last` of the last turn as `after`, or `turn.first` as `before` to go
        further back.

        Args:
            after: Only turns that begin after this ordinal.
            before: Only turns that begin before this ordinal.
            limit: Maximum number of turns; None for all.
            newest_first: Reverse the order and read from the end.
        """
        services = await self._services()
        found = services.turns.read(self._scope, after=after, before=before, limit=limit, newest_first=newest_first)
        async for turn in found:
            yield turn

    async def outline(self, *, before: int | None = None, limit: int = 100) -> list[TurnOutline]:
        """Return the last turns without their messages, oldest first: sizes, dates, and stamps of what the model saw.

        Args:
            before: Only turns that begin before this ordinal.
            limit: Maximum number of turns, up to 1,000.
        """
        return await (await self._services()).turns.outline(self._scope, before=before, limit=limit)

    async def last_policy(self) -> HistoryPolicy | None:
        """Return the policy of the newest stamp in the last 50 turns, which the application loads views with.

        None without a stamp that this version can read.
        """
        for limit in (2, 50):
            for turn in reversed(await self.outline(limit=limit)):
                with suppress(InvalidInputError):
                    if turn.stamp:
                        return turn.stamp.history_policy
        return None

    async def get_turn(self, turn_id: str) -> Turn | None:
        """Return the turn whose first message has this id, None if missing or rewound. Three or four commands."""
        check_id(turn_id, name="turn_id")
        return await (await self._services()).turns.get(self._scope, turn_id)

    async def list_messages(
        self,
        *,
        before: int | None = None,
        after: int | None = None,
        around: int | None = None,
        limit: int = 50,
        full: bool = False,
        rewound: bool = False,
    ) -> list[StoredMessage]:
        """Return a page of the log, oldest first, for a user interface; by default the newest messages.

        To scroll back, pass the lowest ordinal of the page as `before`; to scroll forward, the highest as `after`.

        Args:
            before: Only messages with a lower ordinal, the nearest ones.
            after: Only messages with a higher ordinal, the nearest ones.
            around: The messages before and after this ordinal, such as that of a `SearchHit`.
            limit: Maximum number of messages, up to 1,000.
            full: Messages as appended; by default tool results are stubs, and images, audio and files placeholders.
            rewound: Also rewound messages, which have ``is_rewound``.

        Raises:
            InvalidInputError: More than one of `before`, `after` and `around`, or a number out of bounds.
        """
        records = (await self._services()).records
        return await records.page(
            self._scope, before=before, after=after, around=around, limit=limit, full=full, rewound=rewound
        )

    async def search(
        self,
        text: str,
        *,
        limit: int = 20,
        types: Collection[str] | None = None,
        before: int | None = None,
        after: int | None = None,
    ) -> list[SearchHit]:
        """Return the messages that match some words best, best first.

        Searches texts, calls, results and sources of every active message, also those outside views, in any form of the
        words. Results of the retrieval tool are copies and left out.

        Args:
            text: The words; of the first 4,096 characters, the 64 rarest words count.
            limit: Maximum number, up to 200.
            types: Only messages of these types, such as ``["human", "ai"]``; None for all.
            before: Only messages with a lower ordinal.
            after: Only messages with a higher ordinal.
        """
        request = search_request(text, limit=limit, types=types, before=before, after=after)
        return await (await self._services()).searcher.hits(self._scope, request)

    async def annotations(self, message_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the values that `annotate` attached to messages, by message id. Messages without any are left out."""
        return await (await self._services()).annotator.get(self._scope, check_ids(message_ids, name="message_ids"))

    async def info(self) -> ConversationInfo:
        """Return title, metadata, dates and exact counts; for an empty scope, zeros and no dates."""
        return await (await self._services()).catalog.info(self._scope)

    async def get_sources(
        self,
        source_ids: Iterable[int] | str = (),
        *,
        tool_message_ids: Sequence[str] = (),
        find: str = "",
        cursor: str | None = None,
        page_tokens: int = PAGE_TOKENS,
    ) -> SourcePage:
        """Return sources by number, or all sources of tool messages, in the order requested, page by page.

        Joined, the pages of a source are its whole text. Ids that this conversation does not have are listed in
        ``not_found``. Two commands for a source; they read only the chunks that contain it.

        Args:
            source_ids: Numbers, a range, or a text as in stubs: "3, 11-20".
            tool_message_ids: Ids of tool messages.
            find: Only the passages around this text; case is ignored. `search` looks through the whole conversation.
            cursor: ``next_cursor`` of the previous page, passed with the same ids.
            page_tokens: Size of a page in tokens, 100 to 16,000.

        Raises:
            InvalidInputError: Ids or page size are invalid, or `find` has no ids to look in.
            InvalidCursorError: The cursor does not come from this call.
        """
        names = check_ids(tool_message_ids, name="tool_message_ids"), check_source_ids(source_ids)
        if find and not any(names):
            raise InvalidInputError("pass the source_ids or tool_message_ids to look in, or call `search`")
        request = Request(*names, find, cursor or "", check_page_tokens(page_tokens))
        return await (await self._services()).pager.sources(self._scope, request)

    def retrieve_previous_sources_tool(self, *, page_tokens: int = PAGE_TOKENS) -> StructuredTool:
        """Return the tool that reads full content back, bound to this conversation, for registration with an agent.

        Args:
            page_tokens: Size of a page in tokens, 100 to 16,000.
        """
        from convstore.tools.retrieval import make_retrieval_tool  # noqa: PLC0415 - LangChain's tools load slowly

        return make_retrieval_tool(lambda _config: read_back(self.store, self._scope), page_tokens=page_tokens)
