"""The tokenizer against the library it is built on, and against folders that are wrong."""

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models

from ft.fast.text.pieces import pieces_of
from ft.fast.text.tokenizer import Settings, Tokenizer, TokenizerError

from .stored import FOLDER, change

TOKENIZER = Tokenizer.load(FOLDER)
LIBRARY = tokenizers.Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
VALID = "née 😀漢\n\ttail  end"


def marked_library() -> tokenizers.Tokenizer:
    """A vocabulary that marks spaces and falls back to bytes."""
    words = ["▁", "▁a", "b", "é", *(f"<0x{byte:02X}>" for byte in range(256)), "<end>"]
    library = tokenizers.Tokenizer(
        models.BPE({word: n for n, word in enumerate(words)}, [], byte_fallback=True)
    )
    library.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    library.add_special_tokens([AddedToken("<end>", special=True)])
    return library


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=24))
def test_any_ids_decode_as_the_library_decodes_them(ids: list[int]) -> None:
    """Catches a wrong byte table, special tokens in the text, and ids beyond the vocabulary."""
    assert TOKENIZER.decode(ids) == LIBRARY.decode(ids, skip_special_tokens=True)


def test_a_text_survives_the_round_trip() -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(VALID)) == VALID
    assert TOKENIZER.encode(VALID) == LIBRARY.encode(VALID).ids


def test_byte_fallback_decodes_as_the_library_does() -> None:
    """Catches a byte token shown by its name, and a space mark left in the text."""
    library = marked_library()
    ours = Tokenizer(library, Settings())
    bytes_of = [4 + byte for byte in "😀漢".encode()]
    ids = [0, 1, 2, *bytes_of, 3, 1, 260]
    assert ours.decode(ids) == library.decode(ids, skip_special_tokens=True) == "  ab😀漢é a"


def test_an_added_token_with_a_space_is_plain_text() -> None:
    spell = pieces_of({"type": "ByteLevel"})
    assert spell("<a b>") == b"<a b>"
    assert spell("Ġa") == b" a"


@pytest.mark.parametrize("decoder", [None, {"type": "WordPiece"}, {"type": "Sequence", "decoders": []}])
def test_an_unknown_decoder_is_refused(decoder: dict[str, object] | None) -> None:
    with pytest.raises(ValueError, match="is not supported; supported are ByteLevel"):
        pieces_of(decoder)


def test_stop_ids_of_the_generation_config_win() -> None:
    assert TOKENIZER.stop_ids == (258, 256)


def test_stop_ids_come_from_the_next_file_that_has_them(folder: Path) -> None:
    (folder / "generation_config.json").unlink()
    assert Tokenizer.load(folder).stop_ids == (256,)  # text_config of config.json
    change(folder, "config.json", eos_token_id=[257, 257, 3])
    assert Tokenizer.load(folder).stop_ids == (257, 3)
    (folder / "config.json").unlink()
    assert Tokenizer.load(folder).stop_ids == (258,)  # <|im_end|> of tokenizer_config.json
    (folder / "tokenizer_config.json").unlink()
    assert Tokenizer.load(folder).stop_ids == ()


def test_the_checkpoint_names_its_sampling() -> None:
    assert TOKENIZER.settings.sampling == {"temperature": 1.0, "top_k": 20, "top_p": 0.95}


def test_a_beginning_is_added_once_to_plain_text_only(folder: Path) -> None:
    change(folder, "tokenizer_config.json", add_bos_token=True, bos_token={"content": "<|endoftext|>"})
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.encode("a") == [256, *TOKENIZER.encode("a")]
    assert tokenizer.encode("<|endoftext|>a") == tokenizer.encode("a")
    assert tokenizer.encode("a", plain=False) == TOKENIZER.encode("a")


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="half of a surrogate pair"):
        TOKENIZER.encode("a\ud800")


def test_vocabulary_counts_to_the_largest_id() -> None:
    assert TOKENIZER.vocabulary == LIBRARY.get_vocab_size()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "there is no such file"),
        ("tokenizer.json", "{}", "not a tokenizer that can be read"),
        ("tokenizer_config.json", "{", "not JSON"),
        ("generation_config.json", "[]", "holds list, not an object"),
        ("generation_config.json", '{"eos_token_id": "x"}', "it must be an id or a list of ids"),
        ("generation_config.json", '{"eos_token_id": [true]}', "it must be an id or a list of ids"),
    ],
)
def test_a_wrong_file_is_named(folder: Path, name: str, content: str | None, message: str) -> None:
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_text(content)
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.load(folder)
    assert str(folder / name) in str(caught.value)
