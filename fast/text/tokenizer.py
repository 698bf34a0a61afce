"""A checkpoint's tokenizer: ids from text, bytes from ids, and what the checkpoint says about ending and sampling."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from ft.fast.text.chat import ChatTemplate
from ft.fast.text.pieces import pieces_of

SAMPLING_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
ADDED_TO_TEMPLATES = ("bos_token", "eos_token", "unk_token", "pad_token")


class TokenizerError(ValueError):
    """A tokenizer file is missing or cannot be used; the message names it."""


@dataclass(frozen=True)
class Settings:
    """What stands beside tokenizer.json.

    stop_ids: end a request when emitted. beginning: id put before plain text, None for none. sampling: the
    checkpoint's defaults by parameter. chat: how messages become a prompt, None without a template.
    """

    stop_ids: tuple[int, ...] = ()
    beginning: int | None = None
    sampling: Mapping[str, float] = field(default_factory=dict)
    chat: ChatTemplate | None = None


class Tokenizer:
    """Stateless after construction, and safe to call from several threads."""

    def __init__(self, inner: tokenizers.Tokenizer, settings: Settings, file: Path | None = None) -> None:
        """file: the tokenizer.json it was read from. ValueError when the decoder is of a kind that cannot be taken
        apart by token."""
        self.settings = settings
        self.file = file
        self._inner = inner
        decoder = inner.decoder
        self._spell = pieces_of(None if decoder is None else json.loads(decoder.__getstate__()))
        added = inner.get_added_tokens_decoder()
        self._special = {token for token, entry in added.items() if entry.special}
        self._pieces: dict[int, bytes] = {}

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read a checkpoint folder. TokenizerError names the file that is missing or cannot be used."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise TokenizerError(f"{path}: there is no such file; it must stand beside the weights")
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:
            raise TokenizerError(f"{path}: not a tokenizer that can be read: {error}") from error
        inner.no_truncation()
        inner.no_padding()
        config = read_json(folder / "tokenizer_config.json")
        generation = read_json(folder / "generation_config.json")
        settings = Settings(
            stop_ids=_stop_ids(inner, folder, generation, config),
            beginning=_beginning(inner, config),
            sampling=_sampling(generation),
            chat=_chat(folder, config),
        )
        try:
            return cls(inner, settings, path)
        except ValueError as error:
            raise TokenizerError(f"{path}: {error}") from error

    @property
    def vocabulary(self) -> int:
        """One more than the largest id."""
        return max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self.settings.stop_ids

    def id_of(self, token: str) -> int | None:
        """The id of a token by its spelling."""
        found: int | None = self._inner.token_to_id(token)
        return found

    def encode(self, text: str, plain: bool = True) -> list[int]:
        """Ids of a text. plain: add what starts a document; a rendered chat has it already.

        ValueError when the text holds half of a surrogate pair.
        """
        try:
            ids = self._inner.encode(text, add_special_tokens=plain).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise ValueError("the text is not Unicode: it holds half of a surrogate pair") from error
        start = self.settings.beginning
        return [start, *ids] if plain and start is not None and ids[:1] != [start] else ids

    def piece(self, token: int) -> bytes:
        """What a token adds to the text: nothing for a special token and for an id that has no entry."""
        piece = self._pieces.get(token)
        if piece is None:
            spelled = None if token in self._special else self._inner.id_to_token(token)
            piece = self._pieces[token] = b"" if spelled is None else self._spell(spelled)
        return piece

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.piece, ids)).decode("utf-8", "replace")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file, empty when there is no file. TokenizerError names a file that holds no object."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise TokenizerError(f"{path}: holds {type(content).__name__}, not an object")
    return content


def _stop_ids(
    inner: tokenizers.Tokenizer, folder: Path, generation: dict[str, Any], config: dict[str, Any]
) -> tuple[int, ...]:
    model = read_json(folder / "config.json")
    text = model.get("text_config")
    sources = {
        "generation_config.json": generation.get("eos_token_id"),
        "config.json": model.get("eos_token_id"),
        "config.json text_config": text.get("eos_token_id") if isinstance(text, dict) else None,
    }
    for name, value in sources.items():
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if not all(type(token) is int and token >= 0 for token in ids):
            raise TokenizerError(
                f"{folder / name}: eos_token_id is {value!r}; it must be an id or a list of ids"
            )
        if ids:
            return tuple(dict.fromkeys(ids))
    token = inner.token_to_id(_content(config.get("eos_token")))
    return () if token is None else (token,)


def _content(token: Any) -> str:
    """The spelling of a token in tokenizer_config.json, which stores a string or an object; empty for none."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _beginning(inner: tokenizers.Tokenizer, config: dict[str, Any]) -> int | None:
    token = inner.token_to_id(_content(config.get("bos_token")))
    return token if config.get("add_bos_token") is True else None


def _sampling(generation: dict[str, Any]) -> dict[str, float]:
    return {name: generation[name] for name in SAMPLING_DEFAULTS if generation.get(name) is not None}


def _chat(folder: Path, config: dict[str, Any]) -> ChatTemplate | None:
    path = folder / "chat_template.jinja"
    origin = path if path.is_file() else folder / "tokenizer_config.json"
    found = path.read_text(encoding="utf-8") if path.is_file() else config.get("chat_template")
    if isinstance(found, list):
        named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
        found = named.get("default")
    if not isinstance(found, str):
        return None
    return ChatTemplate(found, {name: _content(config.get(name)) for name in ADDED_TO_TEMPLATES}, str(origin))
