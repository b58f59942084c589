"""Tokenizers: bytes, characters, a byte-level BPE or the words of the data, GPT-2's files, or any tokenizer folder."""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from lagwise.files import expanded, one_line
from lagwise.outside import Registry, elsewhere
from lagwise.tables import LARGEST_VOCABULARY
from lagwise.text import split_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# occurrences of what becomes a token of an uncased BPE: the vectors of rarer ones would hardly be trained
_MIN_OCCURRENCES = 5
_MAX_WORD_CHARACTERS = 2048  # characters: the time to train a BPE grows with the square of a word's length
#: Modules for values of ``data.tokenizer``. ``tokenizer()`` makes one of `tokenizers`, ``notes(texts)`` says what
#: is unusual about training texts.
TOKENIZERS = Registry("tokenizer", None, "lagwise.tokenizers", {})
END_OF_TEXT, PAD, MASK, UNKNOWN = "<|endoftext|>", "<|pad|>", "<|mask|>", "<|unknown|>"
UNCASED = "bpe-uncased"
BYTE_PAIRS = ("bpe", UNCASED)
_FILES = {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "vocab.txt"}
WORDS = ("bytes", *BYTE_PAIRS, "words", "characters")  # by name; a folder of such a name is written with its path


def letter_tokenizer(tokens: Sequence[str], *, unknown: str, replaced: Sequence[tuple[str, str]] = ()) -> Any:
    """A tokenizer of `tokenizers` in which every character is a token; ids are indices in ``tokens``.

    Other characters become ``unknown``, one of the tokens. A letter whose other case alone is a token is that token.
    replaced: pairs of a character and the one that it counts as.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    letters = {token for token in tokens if len(token) == 1}
    pairs = [
        *replaced,
        *((c.swapcase(), c) for c in sorted(letters) if {c.swapcase()} - letters and len(c.swapcase()) == 1),
    ]
    tokenizer: Any = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token=unknown))
    if pairs:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(a, b) for a, b in pairs])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def word_tokenizer(words: Sequence[str], unknown: str | None = None) -> PreTrainedTokenizerBase:
    """A fast tokenizer of exactly these words, separated by spaces; a word's id is its index.

    The two ids after them are end of text and padding. Any other word is ``unknown``, one of the words, or an error.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer: Any = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=unknown))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _wrap(tokenizer)


def _most_frequent(name: str, vocab_size: int, texts: Iterator[str] | None) -> list[str]:
    """The unknown token and the words or characters of texts, the most frequent first, at most ``vocab_size`` less 2
    for the end of text and padding. Errors as `_texts_for`."""
    counts: Counter[str] = Counter()
    for text in _texts_for(name, vocab_size, texts, 4):
        counts.update(text.split() if name == "words" else text)
    del counts[UNKNOWN]
    return [UNKNOWN, *sorted(counts, key=lambda part: (-counts[part], part))[: vocab_size - 3]]


def _texts_for(tokenizer: str, vocab_size: int, texts: Any, min_size: int) -> Any:
    """The texts whose vocabulary is that of a tokenizer. ValueError if there are none, and for other sizes."""
    if texts is None:
        raise ValueError(f"the vocabulary of tokenizer {tokenizer!r} is that of the data: give texts")
    if not min_size <= vocab_size <= LARGEST_VOCABULARY:
        raise ValueError(f"vocab_size must be at least {min_size} and at most {LARGEST_VOCABULARY}, got {vocab_size}")
    return texts


def tokenizer_folder(name: str) -> Path | None:
    """The folder that a tokenizer's name stands for; None for one of WORDS, and where there is no folder."""
    if not name or name in WORDS or name in TOKENIZERS:
        return None
    path = expanded(name)
    return path if path.is_dir() else None


def tokenizer_files(folder: Path) -> list[Path]:
    """The files in a folder that make a tokenizer."""
    return [file for file in sorted(folder.glob("*")) if file.name in _FILES or file.suffix == ".model"]


def copy_tokenizer(folder: Path, target: Path) -> None:
    """Copy the files that make a tokenizer."""
    target.mkdir()
    for file in tokenizer_files(folder):
        shutil.copyfile(file, target / file.name)


def load_tokenizer(name: str, *, vocab_size: int = 8192, texts: Iterator[Any] | None = None) -> PreTrainedTokenizerBase:
    """A fast tokenizer by name.

    ``bytes``: token id = byte, 256 and 257 are end of text and padding. ``bpe``: a byte-level BPE of ``vocab_size``
    tokens trained on ``texts``, each a string or its parts. ``bpe-uncased``: the same in lower case, with merges only
    of what occurs five times or more, so that texts with few words have a small vocabulary. ``words``: the most
    frequent words of ``texts`` (separated by spaces), and one token for all others, at most ``vocab_size`` in all.
    ``characters``: the same with characters. A name in `TOKENIZERS`. A folder: the tokenizer saved in it, or GPT-2's
    ``vocab.json`` and ``merges.txt``. Documents are separated by ``eos_token``. ValueError if the folder holds no
    tokenizer or it has no end of text.

    >>> load_tokenizer("bytes")("Hi")["input_ids"]
    [72, 105]
    >>> words = load_tokenizer("words", texts=iter(["to be or not to be"]))
    >>> words.decode(words("be not")["input_ids"])
    'be not'
    """
    if name == "bytes":
        return _wrap(_byte_level({char: byte for byte, char in enumerate(_byte_alphabet())}, []))
    if name in BYTE_PAIRS:
        return _wrap(_trained(name, vocab_size, texts))
    if name == "words":
        return word_tokenizer(_most_frequent(name, vocab_size, texts), UNKNOWN)
    if name == "characters":
        return _wrap(letter_tokenizer(_most_frequent(name, vocab_size, texts), unknown=UNKNOWN))
    if name in TOKENIZERS:
        return _wrap(TOKENIZERS[name].tokenizer())
    folder = tokenizer_folder(name)
    if folder is None:
        if advice := elsewhere(name):
            raise ValueError(f"tokenizer {advice}")
        names = ", ".join(map(repr, (*WORDS, *TOKENIZERS)))
        raise ValueError(f"tokenizer must be {names} or a folder, got {name!r}")
    try:
        if (folder / "merges.txt").is_file() and not (folder / "tokenizer.json").is_file():
            from tokenizers.models import BPE

            return _wrap(_byte_level(*BPE.read_file(str(folder / "vocab.json"), str(folder / "merges.txt"))))
        from transformers import AutoTokenizer

        tokenizer: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        raise ValueError(f"no tokenizer in folder {name!r}: {one_line(error)}") from error
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer in {name!r} has no eos_token to separate documents with")
    return tokenizer


def without_template(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A tokenizer that adds no tokens to a text, as models are trained: the same, or a copy if it adds any. A token for
    the beginning would be one that the model has not seen there, and after one for the end it would begin anew."""
    if tokenizer.num_special_tokens_to_add(pair=False) == tokenizer.num_special_tokens_to_add(pair=True) == 0:
        return tokenizer
    plain: Any = copy.deepcopy(tokenizer)
    for name in ("add_bos_token", "add_eos_token"):  # classes that have these make their template when loaded
        if getattr(plain, name, False):
            setattr(plain, name, False)
        plain.init_kwargs[name] = False
    return _with_pairs(plain, "$A:0 $B:1")


def with_pairs(tokenizer: PreTrainedTokenizerBase, *, separate: bool = False) -> PreTrainedTokenizerBase:
    """A copy of a tokenizer that encodes a pair as ``first <end of text> second`` with token_type_ids 0 and 1, or if
    separate without the end of text, as `RowEncoder` does, for pipelines and for collators of transformers."""
    paired: Any = copy.deepcopy(tokenizer)
    paired.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    paired.init_kwargs["model_input_names"] = paired.model_input_names  # only init_kwargs are saved
    return _with_pairs(paired, "$A:0 $B:1" if separate else f"$A:0 {paired.eos_token}:0 $B:1")


def _with_pairs(tokenizer: Any, template: str) -> Any:
    """Let a tokenizer add nothing to a text, and to a pair what a template says."""
    from tokenizers.processors import TemplateProcessing

    special = [(tokenizer.eos_token, tokenizer.eos_token_id)]
    processor = TemplateProcessing(single="$A", pair=template, special_tokens=special)
    tokenizer.backend_tokenizer.post_processor = processor
    return tokenizer


def with_mask(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """A copy of a tokenizer with a mask token, the id after its last, unless it has one. A mask in running text
    replaces a word and the space before it, except where every byte is a token.

    >>> with_mask(load_tokenizer("bytes")).mask_token_id
    258
    """
    masked: Any = copy.deepcopy(tokenizer)
    if masked.mask_token is None:
        from tokenizers import AddedToken

        by_bytes = len(masked) - len(masked.all_special_ids) <= 256
        mask = AddedToken(MASK, lstrip=not by_bytes, special=True, normalized=False)
        masked.add_special_tokens({"mask_token": mask})
    masked.padding_side = "right"  # nothing is generated; positions of answers and labels count from the left
    return masked


def word_edges(tokenizer: PreTrainedTokenizerBase) -> tuple[np.ndarray, np.ndarray]:
    """Return two boolean arrays by token id: whether a token can continue a word that began before it, and whether
    another can continue it. Words are runs of letters, digits and bytes of characters beyond ASCII; in a vocabulary of
    words every token is one."""
    continues, extends = np.zeros(len(tokenizer), dtype=bool), np.zeros(len(tokenizer), dtype=bool)
    special, by_bytes = set(tokenizer.all_special_ids), is_byte_level(tokenizer)
    letters = {char for byte, char in enumerate(_byte_alphabet()) if byte > 127 or chr(byte).isalnum()}
    model = _described(tokenizer)["model"]
    prefix = model.get("continuing_subword_prefix")
    if model.get("type") == "WordLevel":
        return continues, extends
    for token, index in tokenizer.get_vocab().items():
        if index in special or not token:
            continue
        if by_bytes:
            continues[index], extends[index] = token[0] in letters, token[-1] in letters
        elif prefix:
            continues[index], extends[index] = token.startswith(prefix), True
        else:
            continues[index], extends[index] = token[0].isalnum(), token[-1].isalnum()
    return continues, extends


def _described(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The parts of a fast tokenizer, as its file has them."""
    return json.loads(cast(Any, tokenizer).backend_tokenizer.to_str())


def is_byte_level(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether every character of a token is one byte of text, as in GPT-2's tokenizer and ours."""
    decoder = _described(tokenizer)["decoder"] or {}
    return any(part.get("type") == "ByteLevel" for part in (decoder, *decoder.get("decoders", ())))


def token_bytes(tokenizer: PreTrainedTokenizerBase, bytes_per_token: float) -> np.ndarray:
    """Return the bytes of text of each token id; special tokens have none.

    Exact for byte-level tokenizers, of text in lower case for an uncased one. Others drop and add spaces, so their
    tokens do not correspond to bytes; there every token counts as ``bytes_per_token``, the average over the whole text.
    """
    if is_byte_level(tokenizer):
        return np.array([len(text) for text in spellings(tokenizer)], dtype=np.float64)
    sizes = np.full(len(tokenizer), bytes_per_token)
    sizes[tokenizer.all_special_ids] = 0
    return sizes


def spellings(tokenizer: PreTrainedTokenizerBase) -> list[bytes]:
    """The text of each token id, in UTF-8; special tokens have none. Exact for byte-level tokenizers; of others, what
    the token adds to a text after a word, with its space.

    >>> spellings(load_tokenizer("bytes"))[65:68]
    [b'A', b'B', b'C']
    """
    special = set(tokenizer.all_special_ids)
    spelled = [b""] * len(tokenizer)
    vocabulary = [(token, index) for token, index in tokenizer.get_vocab().items() if index not in special]
    if is_byte_level(tokenizer):
        byte = {char: bytes([number]) for number, char in enumerate(_byte_alphabet())}
        for token, index in vocabulary:
            spelled[index] = b"".join(byte[char] for char in token)
        return spelled
    word = next((index for token, index in vocabulary if token.isalpha()), vocabulary[0][1])
    before: Any = tokenizer.decode([word])
    texts: Any = tokenizer.batch_decode([[word, index] for _, index in vocabulary])
    for (_, index), text in zip(vocabulary, texts, strict=True):
        spelled[index] = text.removeprefix(before).encode()
    return spelled


def _byte_alphabet() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte, in the order of bytes (GPT-2's map)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def _byte_level(vocab: dict[str, int], merges: list[tuple[str, str]], *, uncased: bool = False):
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer: Any = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    if uncased:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _trained(name: str, vocab_size: int, texts: Iterator[str] | Iterator[Iterable[str]] | None):
    from tokenizers.trainers import BpeTrainer

    documents: Any = _texts_for(name, vocab_size, texts, 258)  # 256 bytes and 2 special tokens
    tokenizer = _byte_level({}, [], uncased=name == UNCASED)
    trainer = BpeTrainer(
        vocab_size=vocab_size - 2,
        min_frequency=_MIN_OCCURRENCES if name == UNCASED else 0,
        initial_alphabet=_byte_alphabet(),
        show_progress=sys.stderr.isatty(),  # elsewhere it writes empty lines
    )
    chunks = (chunk for text in documents for chunk in split_text(text, _MAX_WORD_CHARACTERS))
    tokenizer.train_from_iterator(chunks, trainer)
    return tokenizer


def _wrap(tokenizer) -> PreTrainedTokenizerBase:
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    from lagwise.models.tokenizer import ByteLevelTokenizer

    has_end = tokenizer.token_to_id(END_OF_TEXT) is not None
    tokenizer.add_special_tokens([END_OF_TEXT] if has_end else [END_OF_TEXT, PAD])
    kind = ByteLevelTokenizer if isinstance(tokenizer.pre_tokenizer, ByteLevel) else PreTrainedTokenizerFast
    return kind(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT if has_end else PAD,
        unk_token=UNKNOWN if tokenizer.token_to_id(UNKNOWN) is not None else None,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def encode_texts(texts: list[str], tokenizer: PreTrainedTokenizerBase, as_bytes: bool) -> list[np.ndarray]:
    """Return the token ids of each text, without any that the tokenizer adds."""
    if as_bytes:  # token id = byte, so no tokenizer is needed
        return [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts]
    # <|endoftext|> in a text does not end it: special tokens are split like any other text.
    options = {"add_special_tokens": False, "split_special_tokens": True, "return_attention_mask": False}
    return [np.asarray(ids, dtype=np.int64) for ids in tokenizer(texts, **options)["input_ids"]]
