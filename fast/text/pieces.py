"""The bytes that one token adds to a text, for each kind of decoder that a tokenizer.json may name.

The bytes of a sequence joined are its text in UTF-8, so a text can grow token by token and no split matters.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

Pieces = Callable[[str], bytes]
"""From a token as the vocabulary spells it to its bytes."""

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
SUPPORTED = "ByteLevel; a sequence of Replace, Metaspace, ByteFallback, Fuse and Strip"


def pieces_of(decoder: Mapping[str, Any] | None) -> Pieces:
    """The rule of the `decoder` entry of a tokenizer.json. ValueError names one that is not supported."""
    steps = _steps(decoder)
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return byte_level
    if not kinds or not set(kinds) <= {"Replace", "Metaspace", "ByteFallback", "Fuse", "Strip"}:
        raise ValueError(f"decoder {kinds or None} is not supported; supported are {SUPPORTED}")
    replacements = [_replacement(step) for step in steps if step["type"] in ("Replace", "Metaspace")]
    has_bytes = "ByteFallback" in kinds

    def marked(token: str) -> bytes:
        match = BYTE_TOKEN.fullmatch(token) if has_bytes else None
        if match:
            return bytes.fromhex(match[1])
        for old, new in replacements:
            token = token.replace(old, new)
        return token.encode()

    return marked


def byte_level(token: str) -> bytes:
    """One letter a byte; a token with any other letter (an added one) is plain text."""
    try:
        return bytes(BYTE_OF[letter] for letter in token)
    except KeyError:
        return token.encode()


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    return list(decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _replacement(step: Mapping[str, Any]) -> tuple[str, str]:
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    pattern = step["pattern"]
    if "String" not in pattern:
        raise ValueError(f"decoder Replace with pattern {pattern} is not supported; it must be a string")
    return pattern["String"], step["content"]


def _byte_letters() -> dict[str, int]:
    """The letter of each byte: printable Latin-1 stands for itself, the rest follow from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


BYTE_OF = _byte_letters()
