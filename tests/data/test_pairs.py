"""Encoding of pairs of texts that a model processes separately."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lagwise.data import prepare_labelled


def test_separate_texts_each_have_half_of_the_length(tmp_path: Path) -> None:
    rows = [{"a": f"{i}" * 4, "b": "z" * 9, "label": i % 2} for i in range(10)]
    path = str(tmp_path / "a.jsonl")
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))
    joined = prepare_labelled(path, text=["a", "b"], length=9, cache=tmp_path, progress=False)
    for _ in range(2):  # encoded, then from the cache
        data = prepare_labelled(path, text=["a", "b"], length=9, separate=True, cache=tmp_path, progress=False)
        assert data.key != joined.key
        assert all(row[:4] == row[:1] * 4 and row[4:] == [*b"zzzz"] for row in data.splits["train"]["input_ids"])
        assert sum(data.cut.values()) == 10
        encoded = data.encode([{"a": "", "b": "1234567"}, rows[0]])
        assert encoded["input_ids"][:] == [[256, *b"1234"], [*b"0000zzzz"]]
        assert encoded["token_type_ids"][:] == [[0] + [1] * 4, [0] * 4 + [1] * 4]
    with pytest.raises(ValueError, match=r"`separate` is for a pair of texts, got text 'a'"):
        prepare_labelled(path, text="a", separate=True, cache=tmp_path, progress=False)
