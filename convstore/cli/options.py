"""Options that several commands share: their definitions, the parsing of their values, and the store to open."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from inspect import Parameter, Signature, cleandoc, signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

from convstore.cli.output import Answer, answer, plain
from convstore.exceptions import CorruptDocumentError, InvalidInputError, NotSetUpError
from convstore.values import environment
from convstore.values.addresses import check_address, safe_address
from convstore.values.policy import HistoryPolicy, parse_policy
from convstore.values.scope import check_partial_scope, check_scope_keys
from convstore.values.usage import Prices, check_prices

if TYPE_CHECKING:
    from convstore import ConversationStore

Pairs = list[str] | None
DEFAULT_SCOPE_KEYS = ("user_id", "thread_id")
_LOOKED_AT = 100
"""Number of newest conversations whose scope keys are read."""

_LEADING = ("uri", "database", "scope")
"""Shared options that a command's help lists before its own."""
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_EXAMPLES = ("Examples:", "Examples:\n  export CONVSTORE_URI=mongodb://localhost:27017/app")


def _environment_callback(read: Callable[[Mapping[str, str]], Any]) -> Callable[..., Any]:
    """Return the callback of an option that reads an environment variable as `ConversationStore.from_env` does."""

    def value_of(context: typer.Context, parameter: typer.CallbackParam, given: Any) -> Any:
        source = context.get_parameter_source(str(parameter.name))
        return _read_environment(read) if source and source.name == "ENVIRONMENT" else given

    return value_of


def _read_environment(read: Callable[[Mapping[str, str]], Any]) -> Any:
    with wrong_usage():
        return read(os.environ)


@contextmanager
def wrong_usage(option: str = "") -> Iterator[None]:
    """Report an InvalidInputError as a wrong command line, which ends with exit code 2; the error names the `option`.

    Use it for checks of values before anything is read or written. A value that does not match the stored data, such as
    a scope key that they do not have, is a failure instead.
    """
    try:
        yield
    except InvalidInputError as error:
        text = f"{option}: {error}" if option else str(error)
        raise typer.BadParameter(text) from error


def keys_option(text: str) -> Any:
    """Return the option for scope keys, with its help text."""
    read = _environment_callback(
        lambda variables: list(environment.options_in(variables)["scope_keys"])
    )
    variable = environment.SCOPE_KEYS
    return typer.Option(
        "--scope-key", metavar="KEY", help=text, callback=read, envvar=variable, show_envvar=False
    )


Uri = Annotated[
    str,
    typer.Option(
        "--uri",
        metavar="ADDRESS",
        help="mongodb://host/database.",
        envvar=environment.URI,
        callback=_environment_callback(environment.address_in),
    ),
]
AnyUri = Annotated[
    str,
    typer.Option(
        "--uri",
        metavar="ADDRESS",
        help="mongodb://host/database, or memory://, which keeps nothing.",
        show_default=True,
    ),
]
Database = Annotated[
    str, typer.Option("--database", help="The database, if the address does not name one.")
]
ScopeKeys = Annotated[
    Pairs, keys_option("A scope key of your store; once for each. Default: those of its data.")
]
ScopeValues = Annotated[
    Pairs, typer.Option("--scope", metavar="KEY=VALUE", help="Only those with this value.")
]
Policy = Annotated[
    str | None,
    typer.Option(help="Such as max_tokens=8000,stub_tools=never, or JSON; else as last loaded."),
]
Prefix = Annotated[
    str,
    typer.Option(
        help="The collection_prefix of your store.",
        envvar=environment.COLLECTION_PREFIX,
        show_envvar=False,
    ),
]
Everything = Annotated[
    bool, typer.Option("--everything", help="All conversations; not with --scope.")
]
Yes = Annotated[bool, typer.Option("--yes", help="Remove them; without it they are only counted.")]
PriceOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="MODEL=INPUT,OUTPUT[,FROM_CACHE[,TO_CACHE]]",
        help="Price of a million tokens, also of those from and to a cache; once for each model.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]


@asynccontextmanager
async def open_store(
    uri: str,
    keys: Sequence[str] | None = None,
    prefix: str = "",
    *,
    scope: Mapping[str, str] | None = None,
    setup: bool = False,
    warns: bool = False,
    exported_keys: Sequence[str] = (),
    **options: Any,
) -> AsyncIterator[ConversationStore]:
    """Open the store at an address, and close it at the end; `setup` runs pending migrations.

    The scope keys are `keys`, else those of the stored conversations, else `exported_keys`. `scope` has the scope
    values of the command line; they are checked before the address is opened. With `warns`, a line on stderr says if
    the stored conversations have other scope keys than `keys`. Values of application types that this process does not
    know are kept unchanged.
    """
    from convstore import ConversationStore  # noqa: PLC0415 - loads the database driver
    from convstore.integration import host_of  # noqa: PLC0415 - as above

    chosen = dict(scope or {})
    options["collection_prefix"] = prefix
    with wrong_usage():
        names = check_scope_keys(
            keys or exported_keys or [*dict.fromkeys([*DEFAULT_SCOPE_KEYS, *chosen])]
        )
        check_partial_scope(names, chosen)
        opened = await ConversationStore.connect(uri, scope_keys=names, **options)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(opened)
        if setup:
            await set_up(store)
        elif not keys and (stored := await stored_keys(store, chosen, exported_keys)) not in (
            (),
            names,
        ):
            store = await stack.enter_async_context(
                await ConversationStore.connect(uri, scope_keys=stored, **options)
            )
        elif keys and warns:
            await warn_of_other_keys(store)
        host_of(store).codec.keep_unknown()
        yield store


@dataclass(frozen=True, kw_only=True)
class DatabaseTarget:
    """The options of all commands on a database."""

    uri: Uri = field(repr=False)
    database: Database = ""
    scope_key: ScopeKeys = None
    collection_prefix: Prefix = ""
    as_document: Json = False

    @property
    def address(self) -> str:
        """The address to print, with the name of the database, without user info and options.

        >>> StoreTarget(uri="mongodb://ada:secret@db/").address
        'mongodb://…@db/convstore'
        """
        address = safe_address(self.uri)
        return f"{address}{environment.DEFAULT_DATABASE}" if address.endswith("/") else address


@dataclass(frozen=True, kw_only=True)
class StoreTarget(DatabaseTarget):
    """The options of all commands on conversations, and the store that they open."""

    scope: ScopeValues = None

    @property
    def chosen(self) -> dict[str, str]:
        """The scope values that select the command's conversations."""
        return read_pairs("--scope", self.scope)

    @property
    def policy(self) -> HistoryPolicy | None:
        """The policy that the environment sets."""
        policy: HistoryPolicy | None = _read_environment(environment.options_in).get("policy")
        return policy

    def open(self, **options: Any) -> AbstractAsyncContextManager[ConversationStore]:
        """Open the store, by default with the policy of the environment; see `open_store`."""
        options = {"policy": self.policy} | options
        return open_store(
            self.uri,
            self.scope_key,
            self.collection_prefix,
            scope=self.chosen,
            warns=True,
            **options,
        )


def on_database(command: Callable[..., Coroutine[Any, Any, Answer | None]]) -> Callable[..., None]:
    """Return the typer command of a function that gets a target and its own options, and returns its answer.

    An option of the function replaces the shared option of the same name. The first line of the examples in the help
    sets the address.
    """
    first, *own = signature(command, eval_str=True).parameters.values()
    names = {parameter.name for parameter in own}
    options = signature(first.annotation, eval_str=True).parameters.values()
    shared = [parameter for parameter in options if parameter.name not in names]

    def run_command(**given: Any) -> None:
        values = {parameter.name: given.pop(parameter.name) for parameter in shared}
        target = first.annotation(**values)
        target = replace(target, uri=in_database(target.uri, target.database))
        work = command(target, **given)
        answer(work, as_document=target.as_document, database=target.address)

    parameters = [
        *(parameter for parameter in shared if parameter.name in _LEADING),
        *(parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own),
        *(parameter for parameter in shared if parameter.name not in _LEADING),
    ]
    run_command.__name__ = command.__name__
    run_command.__doc__ = cleandoc(str(command.__doc__)).replace(*_EXAMPLES)
    run_command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return run_command


async def set_up(store: ConversationStore, **options: Any) -> None:
    """Set up the store; Python's warning about other scope keys is replaced by the line of `warn_of_other_keys`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        await store.setup(**options)
    await warn_of_other_keys(store)


async def warn_of_other_keys(store: ConversationStore) -> None:
    """Print a line on stderr if conversations are stored, but the newest hundred all have other keys than the store."""
    with suppress(NotSetUpError, CorruptDocumentError):
        newest = (await store.list_conversations(limit=_LOOKED_AT, everything=True)).conversations
        stored = {tuple(sorted(info.scope)): ", ".join(info.scope) for info in newest if info.scope}
        if stored and tuple(sorted(store.scope_keys)) not in stored:
            text = (
                f"the stored conversations have the scope keys {' or '.join(stored.values())}; "
                "an application with these does not find conversations with the keys "
                f"{', '.join(store.scope_keys)}"
            )
            typer.echo(f"convstore: {plain(text)}", err=True)


async def stored_keys(
    store: ConversationStore, scope: Mapping[str, str], preferred: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the scope keys of a conversation with these values, else of the newest one; () if nothing is stored.

    In a database of several stores, the `preferred` keys are returned if one of the newest hundred conversations has
    them.
    """
    with suppress(NotSetUpError, CorruptDocumentError):  # the command itself reports them
        for values in (scope, {}):
            limit = _LOOKED_AT if preferred else 1
            page = await store.list_conversations(limit=limit, everything=not values, **values)
            names = [tuple(info.scope) for info in page.conversations]
            if names:
                return next((keys for keys in names if set(keys) == set(preferred)), names[0])
    return ()


def in_database(uri: str, database: str) -> str:
    """Return an address with a database, which is `database` if the address does not name one.

    Raises:
        typer.BadParameter: The address is malformed, or both name a database.
    """
    with wrong_usage("--uri"):
        check_address(uri)
    if not database:
        return uri
    with wrong_usage():
        return environment.with_database(uri, database, "--uri", "--database")


def read_policy(text: str | None) -> HistoryPolicy | None:
    """Parse the value of ``--policy``; None if it is not given."""
    with wrong_usage("--policy"):
        return None if text is None else parse_policy(text)


def read_pairs(option: str, given: Pairs, *, form: str = "KEY=VALUE") -> dict[str, str]:
    """Split each value of a repeatable option at its first ``=``.

    >>> read_pairs("--scope", ["user_id=ada", "thread_id=a=b"])
    {'user_id': 'ada', 'thread_id': 'a=b'}

    Raises:
        typer.BadParameter: A name or value is empty, a key is not a Python name, or a name occurs twice.
    """
    pairs: dict[str, str] = {}
    for text in given or []:
        name, sign, value = text.partition("=")
        if (
            not sign
            or not name
            or not value
            or (form.startswith("KEY") and not name.isidentifier())
        ):
            raise typer.BadParameter(f"{option} takes {form}, not {text!r}")
        if name in pairs:
            raise typer.BadParameter(f"{option} names {name!r} twice")
        pairs[name] = value
    return pairs


def read_prices(given: list[str] | None) -> Prices:
    """Parse each value of ``--price``: a model, whose name may have equals signs, and its prices.

    >>> read_prices(["gpt-5=1.25,10"])
    {'gpt-5': (1.25, 10.0)}

    Raises:
        typer.BadParameter: A model is missing or occurs twice, or its prices are not two to four numbers.
    """
    found: dict[str, Any] = {}
    for text in given or ():
        model, _, prices = text.rpartition("=")
        if not model:
            raise typer.BadParameter(f"--price takes MODEL=INPUT,OUTPUT, not {text!r}")
        if model in found:
            raise typer.BadParameter(f"--price names {model!r} twice")
        # check_prices refuses text that is not a number
        found[model] = tuple(
            float(price) if price.replace(".", "", 1).isdecimal() else price
            for price in prices.split(",")
        )
    with wrong_usage("--price"):
        return check_prices(found)


def read_age(text: str) -> timedelta:
    """Parse an age such as 90d, 12w, 36h or 30m; it must not lead to a date before the year 1.

    >>> read_age("90d"), read_age("36h")
    (datetime.timedelta(days=90), datetime.timedelta(days=1, seconds=43200))
    """
    found = re.fullmatch(r"(\d{1,6})([mhdw])", text)
    age = timedelta(**{_UNITS[found[2]]: int(found[1])}) if found else timedelta.max
    if age > datetime.now(UTC) - datetime.min.replace(tzinfo=UTC):
        raise typer.BadParameter(
            f"an age must be a number and m, h, d or w, such as 90d, not {text!r}"
        )
    return age
