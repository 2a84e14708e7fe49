"""Begin a run: compare the agent's state with the log, and look up whether the question was asked before."""

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
from convstore.ext.langchain.results import OWN, lacks_call_id, may_be_structured
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
from convstore.messages.provenance import is_generated
from convstore.types import History
from convstore.wire.history import open_turn_of

Begun = tuple[AgentRun | RefusedRun, list[BaseMessage]]
"""A run, and the changes to the state's messages."""


async def begin(chat: Conversation, rules: Rules, state: ConversationAgentState) -> Begun:
    """Load the view, remove earlier turns from the state, and look up the question in the log if its id was used.

    A new question costs one load. A message of an earlier turn that the log does not have, because its run was
    interrupted, stays in the state and is appended with the question. In a nested agent, nodes of the outer graph may
    have added messages after the question.

    Returns:
        The run, and the changes to the state's messages. They add the stored messages of an answered turn, or remove a
        refused input, so that the thread can continue with another one.
    """
    run = AgentRun(chat, rules)
    start = _RunStart(run, state, await load(run))
    await start.go_back()
    await start.find_logged()
    if unimported := await start.find_unimported():
        return unimported
    await start.leave_out_repeated()
    try:
        await start.leave_out_resent()
    except (HistoryDivergedError, UntrustedMessageError) as refusal:
        return start.refused(refusal)
    await start.find_question()
    await start.name_question()
    return await start.begun()


class _RunStart:
    """The start of a run: each method compares one aspect of the agent's state with the log and adapts the state.

    Attributes:
        run: The run that begins.
        history: The view.
        messages: The state's messages after the changes so far.
        changes: The changes to the state that lead to `messages`.
        logged: Ids of messages that the log has.
        trust: The middleware's rule about clients' messages, with the ids of the agent's own messages.
    """

    def __init__(self, run: AgentRun, state: ConversationAgentState, history: History) -> None:
        self._chat = run.chat
        self._rules = run.rules
        self._state = state
        self._is_inner = is_nested()
        # In the first step of a run without earlier checkpoints, the state is the run's input.
        self._is_first = run_config()[1].get("langgraph_step") == 1
        no_call = [sent for sent in state["messages"] if lacks_call_id(sent)]
        self.run = run
        self.history = history
        self.messages: Sequence[BaseMessage] = [
            sent for sent in state["messages"] if sent not in no_call
        ]
        self.changes: list[BaseMessage] = [removal(message) for message in no_call]
        self.logged: set[str] = set()
        self.trust = run.rules.trust

    @property
    def _shown(self) -> set[str]:
        """Ids of the messages of the log that are in the view."""
        return _logged_ids(self.history.messages)

    async def go_back(self) -> None:
        """Rewind the log if the run began at an older checkpoint."""
        if not may_be_behind(self.history, self.messages):
            return
        rewound = await go_back(self._chat, self.messages, self._rules.on_fork)
        if rewound:
            self.history = await load(self.run)
            self.messages = rewound.messages
            self.changes += rewound.changes
            self.run.abandoned = rewound.abandoned

    async def find_logged(self) -> None:
        """Look up which messages of the state the log has, except the question: a new question costs no command."""
        self.logged = self._shown & ids_of(self.messages)
        question = last_question(self.messages) or 0
        others = [*self.messages[:question], *self.messages[question + 1 :]]
        self.logged |= await ids_in_log(self._chat, _logged_ids(others) - self.logged)

    async def find_unimported(self) -> Begun | None:
        """Return the refused run of a thread that began without convstore; None for any other thread.

        Its answers would be lost, because only its questions are accepted. A thread that began with convstore has an
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
        """Remove human messages that nodes of an outer graph made again when an earlier question was repeated.

        They repeat logged messages under new ids, and are not questions of a person. Only the agent's state loses them:
        a nested agent can only add to the outer state.
        """
        if not self._is_inner:
            return
        repeated = self._repeated_texts()
        origins = await find_origins(ids_of(repeated), is_outer=True) if repeated else None
        sources = origins.sources if origins else {}
        removed = {id_ for id_ in ids_of(repeated) if sources.get(id_) == "loop"}
        self.changes += [removal(each) for each in self.messages if each.id in removed]
        self.messages = [each for each in self.messages if each.id not in removed]

    def _repeated_texts(self) -> list[BaseMessage]:
        """Return the unlogged human messages before the question whose text equals that of a message in the view."""
        known = {shown.text for shown in self.history.messages}
        earlier = self.messages[: last_question(self._through_question()) or 0]
        new = [each for each in earlier if each.id not in self.logged]
        return [each for each in new if each.type == "human" and each.text in known]

    def _through_question(self) -> Sequence[BaseMessage]:
        """Return the messages up to the question on which the outermost graph's run works."""
        question = graph_question(self._chat, ids_of(self.messages))
        at = (at for at, message in enumerate(self.messages) if message.id == question)
        return self.messages[: next(at, len(self.messages)) + 1]

    async def leave_out_resent(self) -> None:
        """Remove messages that a client sent again.

        Raises:
            HistoryDivergedError: The client sent a history that differs from the log.
            UntrustedMessageError: The client sent a message that clients may not send.
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
        """Return the ids of the messages that the agent or a node of an outer graph made, and that the log may lack."""
        own = set(self._state.get(OWN, ()))
        unknown = [sent for sent in self.messages if sent.id not in self.logged]
        made = [sent for sent in unknown if own and digest_of_messages([sent]) in own]
        return frozenset(ids_of([*made, *self._human_messages_of_nodes()]))

    def _human_messages_of_nodes(self) -> list[BaseMessage]:
        """Return the human messages that nodes of an outer graph made: those after the question of its run."""
        after = self.messages[len(self._through_question()) :] if self._is_inner else []
        return [message for message in after if message.type == "human"]

    def refused(self, refusal: HistoryDivergedError | UntrustedMessageError) -> Begun:
        """Return a run that refuses its input, and the changes that remove the input from the state."""
        accepted = self.logged | self.trust.own
        removed = [removal(message) for message in self.messages if message.id not in accepted]
        return RefusedRun(self._chat, refusal), [*self.changes, *removed]

    async def find_question(self) -> None:
        """Take the question of the turn in progress from the log if the state has no messages.

        This happens if a run is resumed on a thread that lost the checkpoint of its interrupt. The run then repeats the
        stored steps of that turn, as for a question that is sent again.
        """
        if self.messages:
            return
        turn_id = open_turn_of(self.history)
        entered = TurnAccess(self._chat).entered()  # views do not show an unfinished variant
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
            self.changes += await self._continue_turn(turn)
        elif is_over:
            run.view.before = self.history.messages  # otherwise it would include an unfinished turn
        return run, self.changes

    async def _question(self) -> str | None:
        """Return the id of the newest question; in a nested agent, of the question on which the outer run works."""
        newest = last_turn_of(self.messages)
        if newest is None or not self._is_inner:
            return newest
        ids = ids_of(self.messages)
        known = graph_question(self._chat, ids) or await self._turn_of(newest)
        return graph_question(self._chat, ids, known)

    async def _turn_of(self, question: str) -> str:
        """Return the turn of a human message, which a node of an earlier run may have made."""
        if question not in self._shown:
            return question
        return await _turn_in_log(self._chat, question) or question

    def _without_earlier(self) -> list[BaseMessage]:
        """Remove logged messages of earlier turns and forbidden ones of clients; return the messages of the turn."""
        start = last_question(self.messages) or 0
        turn = list(self.messages[start:])
        removed = self._earlier_in_log(self.messages[:start]) - ids_of(turn)
        if not self.trust.is_all:
            removed |= ids_of(message for message in turn if is_generated(message))
        if not self.trust.is_all and self.run.turn_id not in self.logged:
            removed |= ids_of(turn) & self.logged  # logged messages cannot follow a new question
        self.changes += [removal(message) for message in self.messages if message.id in removed]
        return [message for message in turn if message.id not in removed]

    def _earlier_in_log(self, earlier: Sequence[BaseMessage]) -> set[str]:
        """Return the ids of earlier messages that are logged, or that are never logged, such as notes."""
        return ids_of(each for each in earlier if each.id in self.logged or is_generated(each))

    async def _continue_turn(self, turn: Sequence[BaseMessage]) -> Iterable[BaseMessage]:
        """Continue a turn that an earlier run may have begun; return the changes to the state's messages."""
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
        only_in_state = await _missing_in_log(self._chat, later, turn[1:])
        run.ahead = [*later, *only_in_state]
        run.is_answered = not only_in_state and _is_answered(turn, found)
        if run.is_answered:
            run.ahead = _through_answer(found)
            return self._with_answer(turn[0], run.ahead)
        # They enter the state again one by one, so that each passes the hooks that it has not passed yet.
        return [removal(message) for message in turn[1:]]

    def _with_answer(
        self, question: BaseMessage, answer: list[BaseMessage]
    ) -> Iterable[BaseMessage]:
        """Return the changes that put a stored answer, with the steps before it, after its question.

        If the state had lost the question, the answer may precede it. An update under the same ids would not move it.
        """
        start = last_question(self.messages) or 0
        if ids_of(answer).isdisjoint(ids_of(self.messages[:start])):
            return answer
        return self._at_end([question, *answer], [question, *answer])

    def _at_end(
        self, new: Sequence[BaseMessage], moved: Iterable[BaseMessage]
    ) -> list[BaseMessage]:
        """Return the changes that remove the messages `moved` from the state and put `new` at its end."""
        removed = ids_of(moved) | {str(each.id) for each in self.changes if each.type == "remove"}
        kept = [message for message in self.messages if message.id not in removed]
        return [RemoveMessage(REMOVE_ALL_MESSAGES), *kept, *new]

    def _note_logged(self) -> None:
        """Record the messages of the turn with their logged content, so that other content is a conflict."""
        if not self.trust.is_all:
            self.run.note(self.run.turn[1:])

    def _next_part(self, rest: Sequence[BaseMessage], found: TurnRecord) -> list[BaseMessage]:
        """Repeat this agent's part of an earlier run of the graph; return the changes to the state.

        For each reply of the state that the log lacks, which a node must have made, one stored part is skipped.
        """
        run = self.run
        self._note_logged()
        if any(sent.id in run.logged for sent in run.missing(self.messages)):
            # the state has other content for a logged message; the append raises the conflict
            return []
        replies = [each for each in self.messages if isinstance(each, AIMessage)]
        part = next_part(rest, found, skip=len(ids_of(replies) - self.logged))
        run.ahead = part.messages
        run.is_answered = part.is_answered and not may_be_structured(part.messages[-1])
        stored = [each for each in self.messages if each.id in ids_of(rest)]
        if not run.is_answered:
            return list(map(removal, stored))
        return self._at_end(part.messages, stored) if stored else part.messages


def _answers(messages: Iterable[BaseMessage]) -> set[str]:
    """Return the ids of all messages except human ones and those that are never logged, such as summaries."""
    return ids_of(each for each in messages if each.type != "human" and not is_generated(each))


def _logged_ids(messages: Iterable[BaseMessage]) -> set[str]:
    """Return the ids of messages, except those that are never logged, such as notes."""
    return ids_of(message for message in messages if not is_generated(message))


async def _lost_question(
    chat: Conversation, history: History, logged: Collection[str]
) -> str | None:
    """Return the question of a state that has lost it: the question of its last message in the view.

    None without such a message. Two commands if there is one, else no command.
    """
    shown = [str(message.id) for message in history.messages if message.id in logged]
    if not shown:
        return None
    return await _turn_in_log(chat, shown[-1]) or None


async def _turn_in_log(chat: Conversation, message_id: str) -> str:
    """Return the id of the turn that a message belongs to; "" without a turn or if the log lacks it. Two commands."""
    for found in (await log_of(chat).find([message_id])).values():
        for stored in await chat.list_messages(after=found.ordinal - 1, limit=1):
            return stored.turn_id
    return ""


async def _missing_in_log(
    chat: Conversation, later: Sequence[BaseMessage], state: Sequence[BaseMessage]
) -> list[BaseMessage]:
    """Return the messages of a turn that only the state has, as their run was interrupted before it appended them."""
    known = ids_of(later)
    extra = [message for message in state if message.id not in known and not is_generated(message)]
    logged = await ids_in_log(chat, ids_of(extra))
    return [message for message in extra if message.id not in logged]


def _is_answered(turn: Sequence[BaseMessage], found: TurnRecord) -> bool:
    """Return True if the same question was answered and its answer cannot be a structured response."""
    if found.answer is None or turn[0] != found.messages[0]:
        return False
    return not may_be_structured(found.answer)


def _through_answer(found: TurnRecord) -> list[BaseMessage]:
    """Return the messages of an answered turn after its question, through its answer; late results may follow it."""
    _, *later = messages_of(found)
    ids = [message.id for message in later]
    return later[: ids.index(found.answer.id) + 1] if found.answer else []
