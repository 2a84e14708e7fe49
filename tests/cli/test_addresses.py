"""Addresses: user info and options of one are never shown, however it is written, and errors say what is wrong."""

from __future__ import annotations

import logging
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest
from canary import LOGIN, PASSWORD, USER
from cases import each_case
from command_line import convstore
from hypothesis import example, given
from hypothesis import strategies as st
from properties import STRIDE, sampled
from pymongo.errors import BulkWriteError, OperationFailure, ServerSelectionTimeoutError

from convstore import ConversationStore, InvalidInputError, StoreUnavailableError
from convstore.cli.commands import app
from convstore.cli.import_sources import ImportSource, SourceNames
from convstore.devserver import DevServer, MongodNotFoundError, find_mongod
from convstore.devserver import main as run_devserver
from convstore.exceptions import StoreError
from convstore.mongo.driver import driver_errors, open_client, reason_of
from convstore.values.addresses import is_address, safe_address, without_addresses

CANARY = PASSWORD
HALF = "H4lfCanary"
NUMBER = "40961"

MALFORMED = {
    "another scheme": f"mongo://{LOGIN}@db/app",
    "http": f"http://{LOGIN}@db/app",
    "no scheme": f"{LOGIN}@db/app",
    "one slash": f"mongodb:/{LOGIN}@db/app",
    "no slash": f"mongodb:{LOGIN}@db/app",
    "blank before": f" mongodb://{LOGIN}@db/app",
    "quotes": f'"mongodb://{LOGIN}@db/app"',
    "curly quote": f"\u201cmongodb://{LOGIN}@db/app\u201d",
    "bracket": f"<mongodb://{LOGIN}@db/app>",
    "capitals": f"MONGODB://{LOGIN}@db/app",
    "capitals, srv": f"MongoDB+SRV://{LOGIN}@db/app",
    "line break behind": f"mongodb://{LOGIN}@db/app\n",
    "line break inside": f"mongodb://{LOGIN}\n@db/app",
    "NUL": f"mongodb://{LOGIN}\0@db/app",
    "lone surrogate": f"mongodb://{LOGIN}\udcff@db/app",
    "at in the password": f"mongodb://{LOGIN}@{HALF}@db/app",
    "slash in the password": f"mongodb://{LOGIN}/{HALF}@db/app",
    "number and slash": f"mongodb://{USER}:{NUMBER}/{HALF}@db",
    "number and question mark": f"mongodb://{USER}:{NUMBER}?{HALF}=4@db",
    "at and slash": f"mongodb://{LOGIN}@cr/{HALF}@db",
    "question mark in the password": f"mongodb://{LOGIN}?{HALF}@db/app",
    "colon in the password": f"mongodb://{LOGIN}:{HALF}@db/app",
    "hash in the password": f"mongodb://{LOGIN}#/{HALF}@db/app",
    "percent in the password": f"mongodb://{LOGIN}%{HALF}@db/app",
    "no host": f"mongodb://{LOGIN}@/app",
    "no host, no at": f"mongodb://{LOGIN}",
    "port is no number": f"mongodb://{USER}@db:{CANARY}/app",
    "port out of range": f"mongodb://{LOGIN}@db:99999/app",
    "database with a blank": f"mongodb://{LOGIN}@db/an app",
    "options without a value": f"mongodb://{LOGIN}@db/app?{HALF}",
    "both separators": f"mongodb://db/app?w=1&authSource={CANARY};x={CANARY}",
    "file that is not there": f"mongodb://{LOGIN}@db/app?tls=true&tlsCAFile={HALF}",
    "srv with a port": f"mongodb+srv://{LOGIN}@db.example.org:27017/app",
    "srv with two hosts": f"mongodb+srv://{LOGIN}@one.example.org,two.example.org/app",
    "memory": f"memory://{LOGIN}@app",
}
every_malformed = pytest.mark.parametrize("uri", sampled(MALFORMED.values()), ids=MALFORMED.keys())


def shows_secret(*texts: object) -> bool:
    """Return True if a text has any part of a login."""
    return any(
        part.lower() in str(text).lower() for part in (CANARY, USER, HALF, NUMBER) for text in texts
    )


def said_of(error: BaseException) -> list[str]:
    """All that an error and what led to it say, also where a traceback would leave it out."""
    said = traceback.format_exception(error, chain=True)
    while error is not None:
        said += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    # The source lines of this file hold no secret; those of arguments are not shown.
    return said


@every_malformed
async def test_a_malformed_address_is_refused_and_not_repeated(uri: Any) -> None:
    """A malformed address raises InvalidInputError. Neither the error nor its causes show any part of the address."""
    with pytest.raises(InvalidInputError, match="address") as caught:
        await ConversationStore.connect(uri)
    assert not shows_secret(*said_of(caught.value))
    assert not shows_secret(safe_address(uri), without_addresses(f"not {uri!r}"))


@pytest.mark.parametrize(
    "uri",
    [f"mongodb://{LOGIN}@db/app".encode(), [f"mongodb://{LOGIN}@db"], Path(LOGIN), None],
    ids=["bytes", "list", "path", "None"],
)
async def test_what_is_no_text_is_not_repeated_either(uri: Any) -> None:
    """Only its type is named."""
    with pytest.raises(InvalidInputError, match=type(uri).__name__) as caught:
        await ConversationStore.connect(uri)
    assert not shows_secret(*said_of(caught.value))


def opened(uri: str) -> list[str]:
    """Open an address; return its error, or its hosts and its safe form if it has a login."""
    try:
        client, _ = open_client(uri)
    except InvalidInputError as error:
        return said_of(error)
    has_login = "@" in uri  # without one, the text at its position is a host
    return [repr(client).partition("document_class")[0], safe_address(uri)] if has_login else []


any_text = st.text(max_size=6)
special = st.text(alphabet="@/:?#[]%&=; \\'\"\n,.+0129é", max_size=4)


@example(scheme="mongodb://", inside=("", "@", ""), behind="")
@given(
    scheme=st.sampled_from(
        ["mongodb://", "mongodb+srv://", "mongodb:", "MONGODB://", "memory://", ""]
    )
    | any_text,
    inside=st.tuples(special, special, special),
    behind=special | st.just("@db/app") | st.just("@db/app?w=1"),
)
def test_whatever_is_written_no_secret_comes_out(scheme: Any, inside: Any, behind: Any) -> None:
    """An address is refused without a word of it, or opened with hosts that are none of its secrets."""
    # it is after the last @, so no part of the login
    is_host = "@" in inside[1] and "@" not in inside[2] + behind
    uri = f"{scheme}{inside[0]}{USER}:{CANARY}{inside[1]}{'host' if is_host else HALF}{inside[2]}{behind}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        said = opened(uri)
    assert not shows_secret(*said, *(warning.message for warning in caught))


async def test_an_unknown_option_is_a_warning_without_its_name_or_value() -> None:
    """The warning about an unknown option shows neither its name nor its value, which may be part of a password."""
    with pytest.warns(UserWarning, match="option of the address") as caught:
        store = await ConversationStore.connect(
            f"mongodb://db/app?{HALF}=x&connectTimeoutMS={CANARY}"
        )
    assert not shows_secret(*(warning.message for warning in caught))
    assert not shows_secret(store, repr(store), store.conversation(user_id="ada", thread_id="t"))
    await store.close()


# A server


async def test_a_wrong_password_says_so(server_uri: str) -> None:
    """A wrong password raises a StoreError that says so and shows nothing else of the login."""
    uri = server_uri.replace(f"{LOGIN}@", f"{USER}:{HALF}@")
    async with await ConversationStore.connect(uri) as store:
        with pytest.raises(StoreError, match="refused the user name or the password") as caught:
            await store.setup()
    assert type(caught.value) is StoreError
    assert type(caught.value.__cause__).__name__ == "OperationFailure"
    assert not shows_secret(*said_of(caught.value))


async def test_a_password_that_cannot_be_sent_says_so(server_uri: str) -> None:
    """SASLprep refuses some characters before anything is sent."""
    uri = server_uri.replace(f"{LOGIN}@", f"{LOGIN}%00@").replace(
        "?", "?authMechanism=SCRAM-SHA-256&"
    )
    async with await ConversationStore.connect(uri) as store:
        with pytest.raises(StoreError, match="contains a character that cannot be sent") as caught:
            await store.setup()
    assert not shows_secret(*said_of(caught.value))


@each_case("scheme", ["mongodb", "mongodb+srv"])
async def test_a_host_that_does_not_resolve_says_so(scheme: str) -> None:
    """The error names the host, and no topology."""
    uri = f"{scheme}://{LOGIN}@nobody.invalid/app?serverSelectionTimeoutMS=200"
    async with await ConversationStore.connect(uri) as store:
        with pytest.raises(
            StoreUnavailableError, match=r"nobody\.invalid.*does not resolve"
        ) as caught:
            await store.ping()
    assert "Topology" not in str(caught.value)
    assert "Timeout" not in str(caught.value)
    assert caught.value.__cause__ is not None
    assert not shows_secret(*said_of(caught.value))


@each_case(
    ("option", "seconds"),
    [("", 5.0), ("?serverSelectionTimeoutMS=300", 0.3), ("?SERVERSELECTIONTIMEOUTMS=400", 0.4)],
)
async def test_a_server_that_is_down_is_an_error_after_five_seconds(
    option: str, seconds: float
) -> None:
    """Unless the address names another time."""
    store = await ConversationStore.connect(f"mongodb://{LOGIN}@127.0.0.1:1/app{option}")
    assert store._client.options.server_selection_timeout == seconds
    await store.close()


async def test_an_error_of_a_server_that_is_down_has_no_topology(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """PyMongo's topology description is in the cause only."""
    caplog.set_level(logging.DEBUG, logger="convstore")
    began = time.monotonic()
    async with await ConversationStore.connect(
        f"mongodb://{LOGIN}@127.0.0.1:1/?serverSelectionTimeoutMS=200"
    ) as store:
        with pytest.raises(StoreUnavailableError) as caught:
            await store.setup()
    assert time.monotonic() - began < 5
    assert "Topology" in str(caught.value.__cause__)
    assert "Topology" not in str(caught.value)
    assert "127.0.0.1:1" in str(caught.value)
    assert not shows_secret(*said_of(caught.value), caplog.text)


@each_case(
    ("error", "said"),
    [
        (
            ServerSelectionTimeoutError(
                "a:1: refused (configured timeouts: socketTimeoutMS: 20.0ms, connectTimeoutMS: 20.0ms),b:2: no route "
                "(configured timeouts: connectTimeoutMS: 20.0ms), Timeout: 5.0s, Topology Description: <… id: 1>"
            ),
            "a:1: refused,b:2: no route",
        ),
        (
            OperationFailure(
                'not authorized on app to execute command { insert: "log", documents: [ { x: 1 } ] }',
                13,
            ),
            'not authorized on app to execute command { insert: "log" … }',
        ),
        (
            BulkWriteError(
                {"writeErrors": [{"errmsg": "too large", "op": {"x": "a whole message"}}]}
            ),
            "too large",
        ),
        (
            OperationFailure("Authentication failed.", 18, {"ok": 0.0, "$clusterTime": 1}),
            "Authentication failed.",
        ),
    ],
)
async def test_a_message_has_the_reason_and_nothing_else(error: Any, said: str) -> None:
    """Every host, but neither PyMongo's details nor what was to be written; the cause keeps it all."""
    with pytest.raises(StoreError) as caught:
        async with driver_errors():
            raise error
    assert reason_of(error) == said
    assert said.rstrip(".") in str(caught.value)
    assert not any(
        word in str(caught.value)
        for word in ("Timeout:", "timeouts", "Topology", "full error", "message")
    )
    assert caught.value.__cause__ is error


# The command line


COMMANDS = {
    "demo": [],
    "migrate": [],
    "import": ["FILE", "--scope", "user_id=ada"],
    "export": [],
    "erase": ["--everything"],
    "prune": ["--older-than", "90d"],
    "doctor": [],
    "inspect": [],
    "list": [],
    "search": ["orcas", "--scope", "user_id=ada"],
    "show": ["user_id=ada", "thread_id=orcas"],
    "stats": [],
    "sums": [],
}
WITHOUT_JSON = {"export"}


def said_by(*arguments: str, **environment: str) -> str:
    """All that a command prints; it must not end well."""
    result = convstore(*arguments, width=400, **environment)
    assert result.exit_code in (1, 2), result.output
    return result.stdout + result.stderr


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A file with one conversation."""
    path = tmp_path / "chats.jsonl"
    path.write_text(
        '{"id": "a", "messages": [{"role": "user", "content": "Hi"}]}\n', encoding="utf-8"
    )
    return str(path)


def test_every_command_is_tried() -> None:
    """A new command joins the table."""
    assert set(COMMANDS) == {command.name for command in app.registered_commands}


@pytest.mark.costly
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_repeats_a_malformed_address(command: str, file: str) -> None:
    """No command prints a malformed address, wherever it is given.

    It may be an option, a variable of the environment, an extra argument, or the value of another option.
    """
    arguments = [command, *(file if text == "FILE" else text for text in COMMANDS[command])]
    as_json = [] if command in WITHOUT_JSON else ["--json"]
    for name, uri in [*MALFORMED.items()][:: 2 * STRIDE - 1]:
        tried = [
            said_by(*arguments, "--uri", uri),
            said_by(*arguments, *as_json, "--uri", uri),
            said_by(*arguments, *as_json, "--uri", "memory://none", "--jobs", uri),
            said_by(*arguments, uri, "--uri", "mongo://x"),
        ]
        if "\0" not in uri and command != "demo":
            tried.append(said_by(*arguments, CONVSTORE_URI=uri))
        assert not shows_secret(*tried), name


@pytest.mark.costly
@every_malformed
def test_nothing_repeats_an_address_in_the_place_of_something_else(
    uri: Any, file: str, tmp_path: Path
) -> None:
    """A command's name, a file to read or to write, an age, a scope."""
    assert not shows_secret(said_by(uri))
    assert not shows_secret(said_by("import", uri, "--uri", "memory://", "--scope", "user_id=ada"))
    assert not shows_secret(
        said_by("import", uri, "--json", "--uri", "memory://", "--scope", "user_id=ada")
    )
    assert not shows_secret(said_by("import", file, "--uri", "memory://", "--scope", uri))
    assert not shows_secret(said_by("prune", "--uri", "memory://", "--older-than", uri))
    if "\0" not in uri:
        assert not shows_secret(
            said_by("export", "--uri", "memory://", "-o", str(tmp_path / "none" / uri))
        )


def test_a_source_that_does_not_answer_is_not_repeated() -> None:
    """An import from a database names neither its login nor its options."""
    source = f"mongodb://{LOGIN}@127.0.0.1:1/old?serverSelectionTimeoutMS=100&appName={HALF}"
    said = said_by("import", source, "--uri", "memory://", "--scope", "user_id=ada", "--json")
    assert "cannot be reached" in said
    assert not shows_secret(said)


def test_a_document_names_the_database_without_login_and_options() -> None:
    """The options can hold a password too."""
    uri = f"mongodb://{LOGIN}@db.example.org:27018,[::1]:27019/app?tlsCertificateKeyFilePassword={HALF}"
    assert safe_address(uri) == "mongodb://…@db.example.org:27018,[::1]:27019/app"
    assert safe_address("memory://app") == "memory://app"
    assert safe_address("mongodb+srv://db.example.org/?w=1") == "mongodb+srv://db.example.org/"


def test_a_name_of_a_file_is_no_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is there is one, whatever it is called."""
    assert not any(
        map(
            is_address,
            ("chats.jsonl", "mongodb.jsonl", "data/mongodb/ada@home.jsonl", "C:/x/y.jsonl"),
        )
    )
    monkeypatch.chdir(tmp_path)
    odd = "backup:2024@home.jsonl"
    Path(odd).write_text("{}", encoding="utf-8")
    assert is_address(odd)
    assert not ImportSource(odd, SourceNames("c", "w", "s", "h")).is_address


def test_no_repr_has_an_address() -> None:
    """The repr of `ImportSource` shows no secret of its address."""
    uri = f"mongodb://{LOGIN}@db/app?appName={HALF}"
    assert not shows_secret(repr(ImportSource(uri, SourceNames("c", "w", "s", "h"))))


# The development server


@every_malformed
def test_the_development_server_repeats_no_address(
    uri: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The development server prints no malformed address, given as its argument or as the path of `mongod`."""
    with pytest.raises(SystemExit):
        run_devserver([uri])
    with pytest.raises(SystemExit):
        run_devserver(["--nodes", uri])
    assert not shows_secret(*capsys.readouterr())
    with pytest.raises(MongodNotFoundError) as caught:
        DevServer(mongod=uri).start()
    assert not shows_secret(*said_of(caught.value))
    if "\0" not in uri:
        monkeypatch.setenv("CONVSTORE_MONGOD", uri)
        with pytest.raises(MongodNotFoundError) as caught:
            find_mongod()
        assert not shows_secret(*said_of(caught.value))
