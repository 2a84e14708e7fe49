"""A server in front of the real one that refuses commands, as servers do that only speak MongoDB's protocol.

It passes every message on, except a command that one of its rules answers. `documentdb` refuses what Amazon DocumentDB
refuses, by its documentation and by what people report; nothing of it was seen on a real one.

    with RefusingServer(server_uri, documentdb) as server:
        async with AsyncMongoClient(server.uri) as client:
            ...
    assert server.refused["'u' field must be a document"]
"""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import bson
from canary import Address
from pymongo.uri_parser import parse_uri

Command = Mapping[str, Any]
Rule = Callable[[Command], Mapping[str, Any] | None]
"""Returns the reply to a command, None to pass it on."""

_OP_MSG, _HEADER, _CHECKSUM = 2013, 16, 4
_FAILED_TO_PARSE, _UNDEFINED_VARIABLE, _UNSUPPORTED, _UNSUPPORTED_STAGE = 9, 17276, 303, 304
_JOIN = "Aggregation stage not supported: '$lookup on multiple join conditions and uncorrelated subquery.'"


def refusal(code: int, text: str) -> dict[str, Any]:
    """Return the reply of a server that refuses a command."""
    return {"ok": 0.0, "code": code, "codeName": f"Location{code}", "errmsg": text}


def documentdb(command: Command) -> Mapping[str, Any] | None:
    """Refuse what Amazon DocumentDB refuses: updates by a pipeline, `$$NOW`, joins by a pipeline and some more."""
    name = next(iter(command))
    if name == "update" and any(isinstance(update["u"], list) for update in command["updates"]):
        return refusal(_FAILED_TO_PARSE, "'u' field must be a document")
    if name == "findAndModify" and isinstance(command.get("update"), list):
        return refusal(_FAILED_TO_PARSE, "'update' field must be a document")
    if name == "create" and not command.keys().isdisjoint({"clusteredIndex", "storageEngine"}):
        return refusal(_UNSUPPORTED, "Feature not supported: clusteredIndex, storageEngine")
    return _documentdb_expressions(set(words_in(command)))


def _documentdb_expressions(words: set[str]) -> Mapping[str, Any] | None:
    if "$$NOW" in words:
        return refusal(_UNDEFINED_VARIABLE, "Use of undefined variable: NOW")
    if {"$lookup", "let"} <= words:
        return refusal(_UNSUPPORTED_STAGE, _JOIN)
    if "$bsonSize" in words:
        return refusal(
            _UNSUPPORTED_STAGE, "Aggregation project operator not supported: '$bsonSize'"
        )
    return None


def without_retries(command: Command) -> Mapping[str, Any] | None:
    """Refuse retryable writes; their address needs ``retryWrites=false``."""
    return refusal(301, "Retryable writes are not supported") if "txnNumber" in command else None


def forbidding(*names: str) -> Rule:
    """Return a rule that answers some commands as if the user had no privilege for them."""

    def forbid(command: Command) -> Mapping[str, Any] | None:
        return refusal(13, "Authorization failure") if next(iter(command)) in names else None

    return forbid


def words_in(value: object) -> Iterator[str]:
    """Yield all names of fields and all texts in a command."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield name
            yield from words_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from words_in(inner)


class RefusingServer:
    """Listens inside ``with`` on an address of its own, in threads.

    Attributes:
        uri: Its address, with the login of the real server.
        refused: How often each text of an error was answered.
        passed: Names of the commands that were passed on, with their number.
    """

    def __init__(self, uri: str, *rules: Rule, options: str = "retryWrites=false") -> None:
        self.refused, self.passed = Counter[str](), Counter[str]()
        self._rules = rules
        parsed = parse_uri(uri)
        self._server: tuple[str, int] = parsed["nodelist"][0]
        login = f"{parsed['username']}:{parsed['password']}@" if parsed["username"] else ""
        self._head = f"mongodb://{login}127.0.0.1"
        self._tail = f"/{parsed['database'] or ''}?directConnection=true&authSource=admin&{options}"
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.uri = Address(f"{self._head}:{self._listener.getsockname()[1]}{self._tail}")
        self._start(self._listen)
        return self

    def __exit__(
        self, _: type[BaseException] | None, _error: BaseException | None, _at: TracebackType | None
    ) -> None:
        for open_socket in (self._listener, *self._sockets):
            with suppress(OSError):  # its peer closed it
                open_socket.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for open_socket in (self._listener, *self._sockets):
            open_socket.close()

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _listen(self) -> None:
        with suppress(OSError):  # the listener was shut down
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:  # the server is down
                    client.close()
                    continue
                for opened in (client, server):
                    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += (client, server)
                self._start(self._pass_on, client, server)
                self._start(_pass_back, server, client)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError, EOFError):
            while True:
                header = read_exactly(client, _HEADER)
                length, request, _, operation = struct.unpack("<iiii", header)
                body = read_exactly(client, length - _HEADER)
                reply = self._reply_to(command_in(body)) if operation == _OP_MSG else None
                if reply is None:
                    server.sendall(header + body)
                else:
                    answer = b"\0\0\0\0\0" + bson.encode(reply)
                    client.sendall(
                        struct.pack("<iiii", _HEADER + len(answer), 0, request, _OP_MSG) + answer
                    )
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _reply_to(self, command: Command) -> Mapping[str, Any] | None:
        for rule in self._rules:
            reply = rule(command)
            if reply is not None:
                self.refused[str(reply.get("errmsg", ""))] += 1
                return reply
        self.passed[next(iter(command))] += 1
        return None


def _pass_back(server: socket.socket, client: socket.socket) -> None:
    with suppress(OSError):
        while data := server.recv(65_536):
            client.sendall(data)
    with suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)


def read_exactly(source: socket.socket, size: int) -> bytes:
    """Return the next bytes of a connection; raise an EOFError if it ends before."""
    data = bytearray()
    while len(data) < size:
        part = source.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)


def command_in(body: bytes) -> dict[str, Any]:
    """Return the command of a message, with the documents of its sequences under their names."""
    flags = struct.unpack_from("<I", body)[0]
    position, end = 4, len(body) - (_CHECKSUM if flags & 1 else 0)
    command: dict[str, Any] = {}
    sequences: dict[str, Any] = {}
    while position < end:
        kind = body[position]
        position += 1
        size = struct.unpack_from("<i", body, position)[0]
        section = body[position : position + size]
        position += size
        if kind == 0:
            command = bson.decode(section)
        else:
            name, _, documents = section[4:].partition(b"\0")
            sequences[name.decode()] = bson.decode_all(documents)
    return command | sequences
