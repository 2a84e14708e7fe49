"""The rules of the providers as one table: a row for each API or family of models.

Every writer of requests reads the row of the requested model, so a changed rule of a provider is changed only here. A
row is chosen by the name of a provider, or by the name of a model as any gateway spells it. Users may pass a row of
their own, such as `replace(ProviderRules.named("openai"), reasoning="always")`.

Sources: the API references and guides of OpenAI ("Reasoning models", "Function calling", "Images and vision"),
Anthropic ("Extended thinking", "Preserved thinking", "Server tools", "Images and vision", "PDF support"), Google
("Thought signatures", "Image understanding", "Document understanding"), Amazon ("API restrictions"), Mistral ("Function
calling", "Vision", and the package mistral-common), DeepSeek ("Thinking mode"), Moonshot ("Thinking models") and Z.ai
("Preserved thinking").
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from convstore.exceptions import InvalidInputError
from convstore.values.call_id_templates import CallIdTemplate
from convstore.values.plain import shown_value, suggests_options
from convstore.values.scope import check_one_of

_PREFIX: Final = re.compile(r"^(?:[a-z]+(?:-[a-z]+)*\.)+")
"""A region and a vendor, as in ``us.anthropic.claude-opus-5``."""
_VERSION: Final = re.compile(
    r"(@.*|-v\d+:\d+(:\w+)?|:(free|nitro|floor|online|exacto|extended|thinking|beta))$"
)
_SNAPSHOT: Final = re.compile(r"-(latest|\d{8}|\d{4}-\d{2}-\d{2})$")
_POINT: Final = re.compile(r"(?<=\d)[.p](?=\d)")
_CLAUDE: Final = re.compile(r"claude-([a-z]+)-(\d{1,2})(?:-(\d{1,2}))?$")
_CLAUDE_3: Final = re.compile(r"claude-(\d|instant|v\d)")
_BOUND_FROM: Final = {
    "opus": (5, 5),
    "sonnet": (5, 5),
    "haiku": (5, 5),
    "fable": (5, 1),
    "mythos": (5, 1),
}

_Systems = Literal["anywhere", "first", "before_answers"]
_Turns = Literal["open_turn", "always", "never"]
_Writers = Literal["model", "family", "any"]
_ResultMedia = Literal["kept", "moved", "named"]
_CHOICES: Final = {
    "system": get_args(_Systems),
    "reasoning": get_args(_Turns),
    "reasoning_of": get_args(_Writers),
    "result_media": get_args(_ResultMedia),
}


@suggests_options
@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderRules:
    """Rules of a provider for requests.

    Attributes:
        name: The name of the row.
        package: The name that LangChain's package writes into ``response_metadata["model_provider"]`` of its answers,
            which are sent back unchanged; "" without a package. Rows with the same package are a family whose models
            may accept each other's reasoning; without a package, rows with the same name.
        models: Beginnings of the names of its models; the longest one that fits chooses the row.
        call_ids: Form of new tool call ids, such as ``"call_{r:24:x}"``; see `CallIdTemplate`.
        own_call_ids: True if the API accepts only ids of this form.
        system: Where system messages are accepted: "anywhere", at the beginning ("first"), or also after a user
            message ("before_answers"). Elsewhere they become user messages.
        human_first: True if an answer must not be the first message after the system messages.
        answer_after_results: True if an answer must stand between tool results and the next user message.
        text_beside_calls: False if an answer has a text or calls, not both.
        reasoning: When reasoning is sent back: in the "open_turn", "always", or "never".
        reasoning_of: Whose reasoning is sent back: that of the same "model", of any model of its "family", or of "any".
        reasoning_needed: True if each answer must have `reasoning_content`; answers without it get a blank.
        signature_needed: True if the first call of a step needs a signature; calls without one get a documented value.
        bound_thinking: True if the API refuses a block of thinking once anything before it has changed. Views then
            leave the block out. Texts have the same form with and without a mark for the prompt cache.
        result_media: Where images and files of tool results go: "kept" if the provider accepts them there, or its
            package moves them; "moved" to a user message after the results; "named" by a text.
        failed_media: False if a failed result must be text only.
        result_names: True if a result needs the name of its tool.
        image_characters: Maximum length of the Base64 of an image, 0 without a limit.
        max_images: Maximum number of images in a request, None without a known limit.
        max_pages: Maximum number of PDF pages in a request, None without a known limit.
        package_omits: Parts of an answer that LangChain's package does not send: the "reasoning" beside the content, or
            the "text_beside_calls". A view reports that reasoning as left out, and has that text as a message before
            the calls.
        response_items: True if LangChain's package may use OpenAI's Responses API. A text of an answer then keeps the
            id of its item, and the result of a custom tool has a form of its own.

    Raises:
        InvalidInputError: A value is not one of those above.
    """

    name: str
    package: str = ""
    models: tuple[str, ...] = ()
    call_ids: str = "call_{r:24:x}"
    own_call_ids: bool = False
    system: _Systems = "anywhere"
    human_first: bool = False
    answer_after_results: bool = False
    text_beside_calls: bool = True
    reasoning: _Turns = "open_turn"
    reasoning_of: _Writers = "model"
    reasoning_needed: bool = False
    signature_needed: bool = False
    bound_thinking: bool = False
    result_media: _ResultMedia = "kept"
    failed_media: bool = True
    result_names: bool = False
    image_characters: int = 0
    max_images: int | None = None
    max_pages: int | None = None
    package_omits: frozenset[str] = frozenset()
    response_items: bool = False

    def __post_init__(self) -> None:
        CallIdTemplate(self.call_ids)
        for name, choices in _CHOICES.items():
            check_one_of(getattr(self, name), *choices, name=name)
        for omitted in self.package_omits:
            check_one_of(omitted, "reasoning", "text_beside_calls", name="package_omits")
        object.__setattr__(self, "package_omits", frozenset(self.package_omits))
        object.__setattr__(self, "models", tuple(self.models))

    @staticmethod
    def named(name: str) -> ProviderRules:
        """Return the rules of a provider.

        Raises:
            InvalidInputError: The name is unknown; the error lists all names.

        >>> ProviderRules.named("moonshot").reasoning
        'always'
        """
        if not isinstance(name, str) or name not in ROWS:
            raise InvalidInputError(
                f"provider must be one of {', '.join(ROWS)}, or ProviderRules; not "
                f"{shown_value(name)}"
            )
        return ROWS[name]

    def takes_reasoning_of(self, writer: str, asked: str) -> bool:
        """Return True if the reasoning of the model `writer` is sent to the model `asked`; "" is an unknown model."""
        if self.reasoning_of == "any" or model_family(writer) == model_family(asked):
            return True
        if self.reasoning_of == "model":
            return False
        return not writer or self.is_own(writer)

    def is_own(self, model: str) -> bool:
        """Return True if a model belongs to this family."""
        return bool(model) and row_of_model(model).kin == self.kin

    @property
    def kin(self) -> str:
        """Name of the family: the package, or else the name."""
        return self.package or self.name


def changed_fields(options: Any) -> dict[str, Any]:
    """Return the fields of rules or of a policy that differ from the defaults, as JSON values.

    >>> changed_fields(ProviderRules(name="own", models=("my-",)))
    {'name': 'own', 'models': ['my-']}
    """
    given = {field: getattr(options, field.name) for field in fields(options)}
    return {
        field.name: field_as_json(value) for field, value in given.items() if value != field.default
    }


def field_as_json(value: Any) -> Any:
    """Return the value of a field as a JSON value."""
    if isinstance(value, ProviderRules):
        return changed_fields(value)
    if isinstance(value, frozenset):
        return sorted(value)
    return list(value) if isinstance(value, tuple) else value


def _thinking_always(name: str, models: tuple[str, ...]) -> ProviderRules:
    return ProviderRules(
        name=name,
        package=name,
        models=models,
        reasoning="always",
        reasoning_of="family",
        reasoning_needed=True,
        result_media="moved",
        package_omits=frozenset({"reasoning"}),
    )


_ANTHROPIC: Final = ProviderRules(
    name="anthropic",
    package="anthropic",
    models=("claude",),
    call_ids="toolu_{r:24:b}",
    system="first",
    human_first=True,
    reasoning_of="family",
    failed_media=False,
    image_characters=5 * 1024 * 1024,
    max_images=100,  # "Images and vision", for models with a context of 200,000 tokens
    max_pages=100,  # "PDF support", for the same
)
_GEMINI: Final = ProviderRules(
    name="google_genai",
    package="google_genai",
    models=("gemini",),
    system="first",
    human_first=True,
    reasoning_of="family",
    signature_needed=True,
    result_names=True,
    max_images=3_000,  # Vertex AI, "Image understanding"; the Gemini API says 3,600
    max_pages=1_000,  # "Document understanding"
)
_MISTRAL: Final = ProviderRules(
    name="mistralai",
    package="mistralai",
    models=("mistral", "ministral", "codestral", "magistral", "devstral", "pixtral", "voxtral"),
    call_ids="{r:9:x}",
    own_call_ids=True,
    system="before_answers",
    answer_after_results=True,
    result_media="named",
    result_names=True,
    max_images=8,  # "Vision", FAQ
    package_omits=frozenset({"text_beside_calls"}),
)
COMPATIBLE: Final = ProviderRules(name="compatible", models=("gpt-oss",), result_media="moved")
"""Any other server with the API of OpenAI."""
_ANY: Final = ProviderRules(name="any", reasoning_of="any")
"""Rules that every provider accepts, for a model without a row."""
_OPENAI_IMAGES: Final = 1_500
"""The figure in "Images and vision" since April 2026; it was 500 before."""
_OPENAI_MODELS: Final = ("gpt-", "chatgpt", "codex", "computer-use", "o1", "o3", "o4")

ROWS: Final = {
    row.name: row
    for row in (
        _ANTHROPIC,
        replace(
            _ANTHROPIC,
            name="anthropic_bound",
            models=(),
            reasoning="always",
            bound_thinking=True,
            max_images=600,  # "Images and vision", for all models with a larger context
            max_pages=600,
        ),
        ProviderRules(
            name="bedrock_converse",
            package="bedrock_converse",
            call_ids="tooluse_{r:22:b}",
            system="first",
            human_first=True,
            max_pages=100,  # "API restrictions", for models of Claude
        ),
        COMPATIBLE,
        _thinking_always("deepseek", ("deepseek",)),
        _GEMINI,
        replace(
            _GEMINI,
            name="google_genai_2",
            models=("gemini-1", "gemini-2"),
            signature_needed=False,
        ),
        _MISTRAL,
        replace(
            _MISTRAL,
            name="mistral_v3",
            models=("open-mistral", "open-mixtral", "mistral-nemo", "mistral-large-2407"),
            text_beside_calls=False,
        ),
        _thinking_always("moonshot", ("kimi", "moonshot")),
        ProviderRules(
            name="openai",
            package="openai",
            models=_OPENAI_MODELS,
            reasoning="never",
            result_media="moved",
            max_images=_OPENAI_IMAGES,
            package_omits=frozenset({"reasoning"}),
            response_items=True,
        ),
        ProviderRules(name="openrouter", package="openrouter", result_media="moved"),
        ProviderRules(
            name="responses",
            package="openai",
            max_images=_OPENAI_IMAGES,
            response_items=True,
        ),
        _thinking_always("zai", ("glm", "chatglm", "zai-glm")),
    )
}
"""The rows by name."""


def rules_for(
    provider: str | ProviderRules | None, model: str | None, *, default: ProviderRules
) -> ProviderRules:
    """Return the row of a provider, or else of a model, or else the default.

    Raises:
        InvalidInputError: The provider's name is unknown.
    """
    if isinstance(provider, ProviderRules):
        return provider
    if provider is not None:
        return ProviderRules.named(provider)
    return row_of_model(model) if model else default


def rules_of_framework(provider: str | ProviderRules | None, model: str | None) -> ProviderRules:
    """Return the rules for a framework: of the provider, or else of the model, or else the rules that all accept.

    Raises:
        InvalidInputError: The provider's name is unknown.
    """
    known = _known_row(model) if model else None
    return rules_for(provider, None, default=known or _ANY)


def row_of_model(model: str) -> ProviderRules:
    """Return the row of a model by its name, `COMPATIBLE` for an unknown name.

    >>> row_of_model("accounts/fireworks/models/deepseek-v4-pro").name, row_of_model("gpt-5").name
    ('deepseek', 'openai')
    """
    return _known_row(model) or COMPATIBLE


@lru_cache(maxsize=1_000)
def _known_row(model: str) -> ProviderRules | None:
    """Return the row of a model, None for an unknown name."""
    name = model_family(model)
    if _binds_thinking(name):
        return ROWS["anthropic_bound"]
    found = _rows_with(name) or _rows_with(*re.split(r"[./]", model.lower()))
    return max(found, key=lambda each: each[0])[1] if found else None


def _rows_with(*names: str) -> list[tuple[int, ProviderRules]]:
    """Return each row with a prefix in `models` that one of the names begins with, and the length of that prefix."""
    return [
        (len(start), row)
        for row in ROWS.values()
        for start in row.models
        if any(name.startswith(start) for name in names)
    ]


@lru_cache(maxsize=1_000)
def model_family(model: str) -> str:
    """Return the name of a model without prefixes of gateways and regions, versions and dates of snapshots.

    >>> model_family("us.anthropic.claude-opus-5-v1:0"), model_family("deepseek/deepseek-v4-pro")
    ('claude-opus-5', 'deepseek-v4-pro')
    >>> model_family("gpt-5-2025-08-07"), model_family("accounts/fireworks/models/kimi-k2p6")
    ('gpt-5', 'kimi-k2-6')
    """
    name = model.lower().rpartition("/")[2]
    name = _PREFIX.sub("", name)
    name = _VERSION.sub("", name)
    return _POINT.sub("-", _SNAPSHOT.sub("", name))


def _binds_thinking(model: str) -> bool:
    """Return True for a Claude model that refuses thinking after changed messages, and for unknown Claude models.

    >>> _binds_thinking("claude-opus-5-5"), _binds_thinking("claude-opus-5"), _binds_thinking("gpt-5")
    (True, False, False)
    """
    if not model.startswith("claude") or _CLAUDE_3.match(model):
        return False
    found = _CLAUDE.match(model)
    if found is None:
        return True
    version = (int(found[2]), int(found[3] or 0))
    return version >= _BOUND_FROM.get(found[1], (0, 0))
