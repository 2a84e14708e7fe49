"""Begin a run: join the agent's state with the log, and find out whether the question was asked before."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from langchain_core.messages import AIMessage, BaseMessage, RemoveMessage
from langgraph.graph.message import REMOVE_ALL_MESSAGES

from convstore import Conversation
from convstore.edges import OWNER
from convstore.exceptions import HistoryDivergedError, InvalidInputError, UntrustedMessageError
from convstore.ext.around import with_turn_id
from convstore.ext.checkpoints import (
    find_origins,
    go_back,
    is_nested,
    may_be_behind,
    run_config,
)
from convstore.ext.langchain.parts import next_part, not_done
from convstore.ext.langchain.resent import find_resent, removal
from convstore.ext.langchain.results import OWN, is_of_no_call, may_be_structured
from convstore.ext.langchain.run import (
    AgentRun,
    ConversationAgentState,
    RefusedRun,
    Rules,
    ids_in_log,
    messages_of,
    read_turn,
)
from convstore.ext.langchain.steps import load
from convstore.ext.run_turns import graph_question
from convstore.integration import TurnAccess, TurnRecord, log_of
from convstore.messages.encoding import digest_of_messages
from convstore.messages.filing import ids_of, last_question, last_turn_of
from convstore.messages.provenance import is_made_up
from convstore.types import History
from convstore.wire.history import open_turn_of

Begun = tuple[AgentRun | RefusedRun, list[BaseMessage]]
"""A run, and the changes to the state's messages."""


async def begin(chat: Conversation, rules: Rules, state: ConversationAgentState) -> Begun:
    """Load the view, remove earlier turns from the state, and look up the question in the log if its id was used.

    A new question costs one load. A message of an earlier turn that the log does not have, because its run was
    interrupted, stays in the state and is appended with the question. Another graph may have added messages after the
    question, if the agent is part of one. Returns the run, and the changes to the state's messages, which complete an
    answered turn, or remove an input that is refused, so that the thread takes the next one.
    """
    run = AgentRun(chat, rules)
    joined = _Joining(run, state, await load(run))
    await joined.go_back()
    await joined.find_logged()
    if unimported := await joined.find_unimported():
        return unimported
    await joined.leave_out_repeated()
    try:
        await joined.leave_out_resent()
    except (HistoryDivergedError, UntrustedMessageError) as refusal:
        return joined.refused(refusal)
    await joined.find_question()
    await joined.name_question()
    return await joined.begun()


class _Joining:
    """The state of an agent while it is joined with the log.

    Attributes:
        run: The run that begins.
        history: The view.
        messages: The state's messages, as the run goes on with them.
        changes: The changes to the state's messages that make these of them.
        logged: Ids of messages that the log has.
        trust: Whose messages are taken, with the ids of the agent's own ones.
    """

    def __init__(self, run: AgentRun, state: ConversationAgentState, history: History) -> None:
        self._chat = run.chat
        self._rules = run.rules
        self._state = state
        self._is_inner = is_nested()
        # The first step of a run without earlier checkpoints: all that the state has is the run's input.
        self._is_first = run_config()[1].get("langgraph_step") == 1
        no_call = [sent for sent in state["messages"] if is_of_no_call(sent)]
        self.run = run
        self.history = history
        self.messages: Sequence[BaseMessage] = [
            sent for sent in state["messages"] if sent not in no_call
        ]
        self.changes: list[BaseMessage] = [removal(message) for message in no_call]
        self.logged = set[str]()
        self.trust = run.rules.trust

    @property
    def _shown(self) -> set[str]:
        """Ids of the messages of the log that the view has."""
        return _logged_ids(self.history.messages)

    async def go_back(self) -> None:
        """Rewind the log if the run began at an older checkpoint."""
        if not may_be_behind(self.history, self.messages):
            return
        branch = await go_back(self._chat, self.messages, self._rules.on_fork)
        if branch:
            self.history = await load(self.run)
            self.messages = branch.messages
            self.changes += branch.changes
            self.run.abandoned = branch.abandoned

    async def find_logged(self) -> None:
        """Find out which messages of the state the log has; not of the question, which costs nothing if it is new."""
        self.logged = self._shown & ids_of(self.messages)
        question = last_question(self.messages) or 0
        others = [*self.messages[:question], *self.messages[question + 1 :]]
        self.logged |= await ids_in_log(self._chat, _logged_ids(others) - self.logged)

    async def find_unimported(self) -> Begun | None:
        """Return the refused run of a thread that began without convstore; None for any other.

        Its answers would be lost, because only its questions are taken. A thread that a run with convstore began has an
        owner in its state. The input is removed from the state.
        """
        is_ours = self._is_inner or self._is_first or self._rules.trust.is_all
        if is_ours or self._state.get(OWNER):
            return None
        answers = _answers(self.messages) - self.logged
        origins = await find_origins(ids_of(self.messages)) if answers else None
        lost = origins.made_before & answers if origins else set()
        if not origins or not lost:
            return None
        refusal = InvalidInputError(
            "this thread began without convstore, and the conversation lacks answers and results "
            f"of its state ({len(lost)}); import it first: `convstore import ... --from "
            "langgraph`, or read_checkpoints(checkpointer, [thread_id]) of convstore.transfer"
        )
        removed = [
            removal(message) for message in self.messages if message.id not in origins.before
        ]
        return RefusedRun(self._chat, refusal, is_unimported=True), removed

    async def leave_out_repeated(self) -> None:
        """Leave out what nodes of the graph around the agent said again when an earlier question was repeated.

        A repeated request gets the words of the log, and what the log has gets nothing. The outer state keeps them,
        because an agent in it can only add to that. They are no questions of a person.
        """
        if not self._is_inner:
            return
        again = self._said_before()
        origins = await find_origins(ids_of(again), is_outer=True) if again else None
        sources = origins.sources if origins else {}
        gone = {id_ for id_ in ids_of(again) if sources.get(id_) == "loop"}
        self.changes += [removal(each) for each in self.messages if each.id in gone]
        self.messages = [each for each in self.messages if each.id not in gone]

    def _said_before(self) -> list[BaseMessage]:
        """Return the human messages before the question that the log lacks, in the words of another one that it has."""
        known = {shown.text for shown in self.history.messages}
        earlier = self.messages[: last_question(self._asked()) or 0]
        new = [each for each in earlier if each.id not in self.logged]
        return [each for each in new if each.type == "human" and each.text in known]

    def _asked(self) -> Sequence[BaseMessage]:
        """Return the messages up to the question on which the run of the graph around the agent works."""
        question = graph_question(self._chat, ids_of(self.messages))
        at = (at for at, message in enumerate(self.messages) if message.id == question)
        return self.messages[: next(at, len(self.messages)) + 1]

    async def leave_out_resent(self) -> None:
        """Leave out what a client sent again.

        Raises:
            HistoryDivergedError: It sent another history than that of the log.
            UntrustedMessageError: It sent what clients may not send.
        """
        self.trust = replace(self._rules.trust, own=self._own_ids())
        is_client = self._is_first and not self._is_inner
        resent = await find_resent(
            self._chat, self.messages, self.logged, self.trust, is_client=is_client
        )
        if resent:
            self.run.resent = resent.known
            self.messages = resent.messages
            self.changes += resent.changes
            self.logged |= resent.logged

    def _own_ids(self) -> frozenset[str]:
        """Return the ids of those messages that the agent or a node around it made, and that the log may lack."""
        own = set(self._state.get(OWN, ()))
        unknown = [sent for sent in self.messages if sent.id not in self.logged]
        made = [sent for sent in unknown if own and digest_of_messages([sent]) in own]
        return frozenset(ids_of([*made, *self._words_of_nodes()]))

    def _words_of_nodes(self) -> list[BaseMessage]:
        """Return what nodes of the graph around the agent have said as a user: what follows the question of its run."""
        after = self.messages[len(self._asked()) :] if self._is_inner else []
        return [message for message in after if message.type == "human"]

    def refused(self, refusal: HistoryDivergedError | UntrustedMessageError) -> Begun:
        """Return the run of an input that is refused, and the changes that remove it from the state."""
        taken = self.logged | self.trust.own
        removed = [removal(message) for message in self.messages if message.id not in taken]
        return RefusedRun(self._chat, refusal), [*self.changes, *removed]

    async def find_question(self) -> None:
        """Take the question of the turn in progress from the log if the state has no messages.

        The run then repeats the stored steps of that turn, as for a question that is sent again. A run that is resumed
        on a thread without the checkpoint of its interrupt begins so.
        """
        if self.messages:
            return
        turn_id = open_turn_of(self.history)
        entered = TurnAccess(self._chat).entered()  # views lack another answer until it is there
        if entered and not entered.record.is_finished:
            turn_id = entered.record.turn_id
        if found := await read_turn(self._chat, turn_id):
            question = found.messages[0]
            self.messages = [question]
            self.changes.append(question)
            self.logged.add(str(question.id))

    async def name_question(self) -> None:
        """Give the question the id of the turn that the caller has entered."""
        self.messages, named = await with_turn_id(self._chat, self.messages, self.history)
        self.changes += named
        self.logged |= self._shown & ids_of(named)

    async def begun(self) -> Begun:
        """Return the run, and the changes to the state's messages."""
        run = self.run
        run.turn_id = await self._question()
        if run.turn_id is None:
            run.turn_id = await _lost_question(self._chat, self.history, self.logged)
        self.logged |= self._shown & {str(run.turn_id)}
        run.logged = dict.fromkeys(self.logged)
        run.view.history = self.history
        turn = self._without_earlier()
        is_over = not open_turn_of(self.history)
        has_turns = any(message.type != "system" for message in self.history.messages)
        if not turn and is_over and has_turns:
            raise InvalidInputError(
                "the run has no human message, and the last turn of the conversation is over; "
                "pass a question: "
                '{"messages": [HumanMessage(...)]}; for another answer to the last one see '
                "`regenerate` of `chat.turn`"
            )
        if run.turn_id in self.logged or len(turn) > 1:
            self.changes += await self._found_again(turn)
        elif is_over:
            run.view.before = self.history.messages  # else it has all of an unfinished turn
        return run, self.changes

    async def _question(self) -> str | None:
        """Return the newest question; in a graph around the agent, the one on which its run works."""
        newest = last_turn_of(self.messages)
        if newest is None or not self._is_inner:
            return newest
        ids = ids_of(self.messages)
        known = graph_question(self._chat, ids) or await self._turn_of(newest)
        return graph_question(self._chat, ids, known)

    async def _turn_of(self, question: str) -> str:
        """Return the turn of a human message, which may be the words of a node of an earlier run."""
        if question not in self._shown:
            return question
        return await _turn_in_log(self._chat, question) or question

    def _without_earlier(self) -> list[BaseMessage]:
        """Remove what the log has of earlier turns, and what clients may not send; return the messages of the turn."""
        start = last_question(self.messages) or 0
        turn = list(self.messages[start:])
        removed = self._earlier_in_log(self.messages[:start]) - ids_of(turn)
        if not self.trust.is_all:
            removed |= ids_of(message for message in turn if is_made_up(message))
        if not self.trust.is_all and self.run.turn_id not in self.logged:
            removed |= ids_of(turn) & self.logged  # none can follow a new question
        self.changes += [removal(message) for message in self.messages if message.id in removed]
        return [message for message in turn if message.id not in removed]

    def _earlier_in_log(self, earlier: Sequence[BaseMessage]) -> set[str]:
        """Return the ids of messages of earlier turns that the log has, or that no log has."""
        return ids_of(each for each in earlier if each.id in self.logged or is_made_up(each))

    async def _found_again(self, turn: Sequence[BaseMessage]) -> Iterable[BaseMessage]:
        """Look up a turn that may have begun before; return the changes to the state's messages."""
        run = self.run
        found = await read_turn(self._chat, run.turn_id)
        if found is None:
            return []
        later = run.take_over(found)
        rest = not_done(later, self.messages) if self._is_inner else []
        is_alone = [each.id for each in turn] == [run.turn_id]
        if rest or (self._is_inner and not is_alone):
            return self._next_part(rest, found)
        if turn[0].id != run.turn_id:
            self._note_logged()
            run.is_answered = found.answer is not None and turn[-1].id == found.answer.id
            return []
        only_here = await _only_here(self._chat, later, turn[1:])
        run.ahead = [*later, *only_here]
        run.is_answered = not only_here and _is_answered(turn, found)
        if run.is_answered:
            run.ahead = _until_answer(found)
            return self._with_answer(turn[0], run.ahead)
        # They enter the state again one by one, so that each passes the hooks that it had not passed.
        return [removal(message) for message in turn[1:]]

    def _with_answer(
        self, question: BaseMessage, answer: list[BaseMessage]
    ) -> Iterable[BaseMessage]:
        """Return the changes that put a stored answer, with the steps before it, after its question.

        A state that had lost the question may have the answer before it, where an update would leave it.
        """
        start = last_question(self.messages) or 0
        if ids_of(answer).isdisjoint(ids_of(self.messages[:start])):
            return answer
        return self._at_end([question, *answer], [question, *answer])

    def _at_end(
        self, new: Sequence[BaseMessage], moved: Iterable[BaseMessage]
    ) -> list[BaseMessage]:
        """Return the changes that put messages at the end of the state, without others that it has."""
        gone = ids_of(moved) | {str(each.id) for each in self.changes if each.type == "remove"}
        kept = [message for message in self.messages if message.id not in gone]
        return [RemoveMessage(REMOVE_ALL_MESSAGES), *kept, *new]

    def _note_logged(self) -> None:
        """Note the messages of the turn as logged, so that other content is a conflict."""
        if not self.trust.is_all:
            self.run.note(self.run.turn[1:])

    def _next_part(self, rest: Sequence[BaseMessage], found: TurnRecord) -> list[BaseMessage]:
        """Repeat what the agent in this place did in an earlier run of the graph; return the changes to the state.

        Where nodes have given the state replies that the log lacks, those of their places are passed over.
        """
        run = self.run
        self._note_logged()
        if any(sent.id in run.logged for sent in run.missing(self.messages)):
            return []  # with other content, which the append refuses
        replies = [each for each in self.messages if isinstance(each, AIMessage)]
        part = next_part(rest, found, skip=len(ids_of(replies) - self.logged))
        run.ahead = part.messages
        run.is_answered = part.is_answered and not may_be_structured(part.messages[-1])
        here = [each for each in self.messages if each.id in ids_of(rest)]
        if not run.is_answered:
            return list(map(removal, here))
        return self._at_end(part.messages, here) if here else part.messages


def _answers(messages: Iterable[BaseMessage]) -> set[str]:
    """Return the ids of replies, results and other messages that no user wrote, but not of summaries."""
    return ids_of(each for each in messages if each.type != "human" and not is_made_up(each))


def _logged_ids(messages: Iterable[BaseMessage]) -> set[str]:
    """Return the ids of messages without those that no log has, such as notes."""
    return ids_of(message for message in messages if not is_made_up(message))


async def _lost_question(
    chat: Conversation, history: History, logged: Collection[str]
) -> str | None:
    """Return the question of the last message of a state that a view has, though the state has lost the question.

    Two commands, if there is such a message.
    """
    shown = [str(message.id) for message in history.messages if message.id in logged]
    if not shown:
        return None
    return await _turn_in_log(chat, shown[-1]) or None


async def _turn_in_log(chat: Conversation, message_id: str) -> str:
    """Return the turn that a message belongs to, "" for none, and for one that the log does not have. Two commands."""
    for place in (await log_of(chat).find([message_id])).values():
        for stored in await chat.list_messages(after=place.ordinal - 1, limit=1):
            return stored.turn_id
    return ""


async def _only_here(
    chat: Conversation, later: Sequence[BaseMessage], state: Sequence[BaseMessage]
) -> list[BaseMessage]:
    """Return the messages of a turn that only the state has: their run was interrupted before it logged them."""
    known = ids_of(later)
    extra = [message for message in state if message.id not in known and not is_made_up(message)]
    logged = await ids_in_log(chat, ids_of(extra))
    return [message for message in extra if message.id not in logged]


def _is_answered(turn: Sequence[BaseMessage], found: TurnRecord) -> bool:
    """Return True if the same question was answered, and the answer needs no further work."""
    if found.answer is None or turn[0] != found.messages[0]:
        return False
    return not may_be_structured(found.answer)


def _until_answer(found: TurnRecord) -> list[BaseMessage]:
    """Return the messages of an answered turn from its question to its answer, which late results may follow."""
    _, *later = messages_of(found)
    ids = [message.id for message in later]
    return later[: ids.index(found.answer.id) + 1] if found.answer else []
