"""Find the sources that a message cites, by numbers in its text and by citations that its provider attached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from langchain_core.messages import BaseMessage

from convstore.exceptions import InvalidInputError
from convstore.log.entry import EntrySource
from convstore.readback.own_numbers import numbers_before
from convstore.readback.pager import Pager
from convstore.readback.records import Records
from convstore.readback.request import MAXIMUM_PAGE_TOKENS, Request
from convstore.runtime.cache import CachedConversation
from convstore.runtime.log_reader import LogReader
from convstore.runtime.threads import run_in_thread_if_long
from convstore.sources.citations import provider_citations
from convstore.sources.marks import MAX_CITED, marks_in
from convstore.sources.source import URL_CHARACTERS
from convstore.values.models import Source
from convstore.values.reports import Citation
from convstore.values.scope import Scope, check_id


async def read_citations(
    records: Records, pager: Pager, scope: Scope, message: BaseMessage | str
) -> list[Citation]:
    """Return the citations of a message in the order of its text; see `Conversation.citations`."""
    if not isinstance(message, BaseMessage | str):
        raise InvalidInputError(
            f"message must be a message or its id, not {type(message).__name__}"
        )
    if isinstance(message, str):
        message = await _message(records.reader, scope, check_id(message, name="message"))
    text = message.text
    marks = await run_in_thread_if_long(lambda: marks_in(text), characters=len(text))
    given = provider_citations(message)
    own = await numbers_before(records, scope, message.id or "") if marks else {}
    wanted = dict.fromkeys(own.get(number, number) for mark in marks for number in mark.numbers)
    wanted |= dict.fromkeys(cited.number for cited in given if cited.number)
    sources = await _sources(records.reader, pager, scope, list(wanted)[:MAX_CITED])
    found: list[Citation] = []
    for mark in marks:
        for number in mark.numbers:
            cited = Citation(start=mark.start, end=mark.end, given_by="number", number=number)
            source = sources.get(own.get(number, number))
            found.append(_of_source(cited, source, "title", "url"))
    for start, end, title, url, quotation, given_number in given:
        cited = Citation(
            start=start, end=end, given_by="provider", title=title, url=url, quotation=quotation
        )
        found.append(_of_source(cited, sources.get(given_number or 0)))
    return sorted(found, key=lambda cited: (cited.start, cited.end))


async def _message(reader: LogReader, scope: Scope, message_id: str) -> BaseMessage:
    cached, row = await reader.find_message(scope, message_id)
    async with reader.reading(cached):
        [message] = await reader.decode_all(cached, [row.message], whole=True)
    return message


async def _sources(
    reader: LogReader, pager: Pager, scope: Scope, numbers: list[int]
) -> dict[int, Source]:
    """Return the sources with these numbers, without their texts. One command, more for very long addresses."""
    cached = await reader.find(scope) if numbers else None
    if cached is None:
        return {}
    async with reader.reading(cached):
        rows = await reader.log.sources_by_id(cached.conversation, numbers)
    found = {number: _source(cached, source) for number, (_, source) in rows.items()}
    cut = [number for number, source in found.items() if len(source.url) >= URL_CHARACTERS]
    if cut:
        found |= await _whole(pager, scope, cut, found)
    return found


async def _whole(
    pager: Pager, scope: Scope, numbers: Iterable[int], found: Mapping[int, Source]
) -> dict[int, Source]:
    """Return sources with their whole addresses; an address that does not fit on a page is left out."""
    whole: dict[int, Source] = {}
    for number in numbers:
        request = Request(source_ids=[number], page_tokens=MAXIMUM_PAGE_TOKENS)
        page = await pager.sources(scope, request)
        read = page.sources[0] if page.sources else found[number]
        is_cut = "convstore" in read.metadata or not page.sources
        whole[number] = read.model_copy(update={"url": ""}) if is_cut else read
    return whole


def _source(cached: CachedConversation, source: EntrySource) -> Source:
    owner = source.entry.partition(":")[0]
    return Source(
        source_id=source.id,
        title=source.title,
        url=source.url,
        tool_message_id=source.message_id,
        child_id="" if owner == cached.conversation else owner,
    )


def _of_source(cited: Citation, source: Source | None, *names: str) -> Citation:
    """Return a citation with the ids and the named fields of its source; unchanged if the log does not have it."""
    if source is None:
        return cited
    names = ("source_id", "tool_message_id", "child_id", *names)
    return cited.model_copy(update={name: getattr(source, name) for name in names})
