"""Fixtures of the server's tests."""

from __future__ import annotations

import pytest
from served_model import WORDS, make_model
from transformers import PreTrainedTokenizerBase

from lagwise.data.tokenizers import word_tokenizer
from lagwise.models import LagwiseForCausalLM


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return word_tokenizer(WORDS)


@pytest.fixture(scope="session")
def model() -> LagwiseForCausalLM:
    return make_model()
