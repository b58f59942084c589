"""States carried from one piece of a text to the next."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lagwise.data.examples import CarriedPieces
from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.training import Recipe, load_recipe, make_task, train
from lagwise.training.carrying import CarriedStates

END = 256


def text_of(sizes: list[int]) -> np.ndarray:
    random = np.random.default_rng(0)
    return np.concatenate([np.append(random.integers(0, 256, n), END) for n in sizes]).astype(np.uint16)


@pytest.mark.parametrize("lengths", [[16], [8, 12, 16]])
def test_pieces_of_a_row_are_its_documents_in_order(lengths: list[int]) -> None:
    tokens = text_of([70, 5, 31, 200, 64, 1, 33])
    pieces = CarriedPieces(tokens, END, lengths, 3, 134, seed=2, most=1000)
    wanted = {tuple(map(int, part)) for part in np.split(tokens, np.flatnonzero(tokens == END))[1:]}
    seen: set[tuple[int, ...]] = set()
    for row in range(3):
        text: list[int] = []
        for index in range(row, 400, 3):
            piece = pieces[index]
            real = int(piece["attention_mask"].sum())
            assert piece["row"] == row
            assert (piece["labels"][real:] == -100).all()
            assert (piece["labels"][:real] == piece["input_ids"][:real]).all()
            if piece["begins"]:
                seen.add(tuple(text))
                text = []
            length = len(piece["input_ids"])
            assert {length} <= set(lengths)
            assert length == len(pieces[index - row]["input_ids"])  # of all rows of a step
            assert real == length or index + 3 >= 400 or pieces[index + 3]["begins"]  # padding only at an end
            text += piece["input_ids"][:real].tolist()
    whole = {part for part in wanted if len(part) <= len(tokens) // 3 and len(part) > 1}
    assert len(whole) >= 5
    assert all(any(text[: len(part)] == part for text in seen) for part in whole)
    with pytest.raises(ValueError, match="not more than 30 rows of 16"):
        CarriedPieces(tokens, END, [16], 30, 1, seed=0, most=1000)


def one_text(rows: int, most: int = 1000) -> CarriedPieces:
    """A text without ends, of which every row has a part."""
    return CarriedPieces(text_of([999])[:-1], END, [16], rows, 2500, seed=1, most=most)


def test_a_single_text_is_cut_into_a_part_for_every_row() -> None:
    pieces = one_text(4)
    first = {pieces[row]["input_ids"][0].item() for row in range(4)}
    assert len(first) == 4
    assert pieces[16 * 4 + 1]["begins"]  # a row begins again
    assert not pieces[15 * 4 + 1]["begins"]
    pieces = one_text(4, most=3)
    assert [bool(pieces[4 * step]["begins"]) for step in range(9)] == 3 * [True, False, False]


@pytest.mark.parametrize("recipe", ["mega-lm", "megalodon-lm", "fd-tnn-lm", "tcnca-lm", "ski-tnn-lm", "best-lm"])
def test_pieces_have_the_losses_and_gradients_of_whole_documents(recipe: str) -> None:
    """Logits are those of a whole document, whatever the other rows do; and the gradient of a piece is that with the
    state as a constant."""
    torch.manual_seed(0)
    fields = {**load_recipe(recipe).model, "vocab_size": 257, "hidden_size": 32}
    fields["num_hidden_layers"] = min(2, fields["num_hidden_layers"])
    model = LagwiseForCausalLM(LagwiseConfig(**fields)).double()
    model.train()
    documents = [torch.randint(0, 256, (1, n)) for n in (40, 23, 9, 64)]
    expected = [model(document).logits for document in documents]
    carried = CarriedStates(model, 0)
    # row 0: documents 0 and 1; row 1: documents 2 and 3; pieces of 8 tokens
    rows = [[(d, a) for d in pair for a in range(0, documents[d].shape[1], 8)] for pair in ((0, 1), (2, 3))]
    for pieces in zip(*rows, strict=False):
        ids, mask = torch.zeros(2, 8, dtype=torch.long), torch.zeros(2, 8, dtype=torch.long)
        for row, (document, start) in enumerate(pieces):
            part = documents[document][0, start : start + 8]
            ids[row, : len(part)], mask[row, : len(part)] = part, 1
        begins = torch.tensor([start == 0 for _, start in pieces])
        given = {} if mask.all() else {"attention_mask": mask}
        cache = carried.before(0, begins)
        logits = model(ids, past_key_values=cache, **given).logits
        carried.after(0, cache)
        for row, (document, start) in enumerate(pieces):
            n = int(mask[row].sum())
            wanted = expected[document][0, start : start + n]
            torch.testing.assert_close(logits[row, :n], wanted, rtol=0, atol=1e-9)
        logits.square().sum().backward()  # the graph of a piece is used once
    parameters, random = list(model.parameters()), torch.Generator().manual_seed(0)
    steps = [torch.randn(p.shape, generator=random, dtype=p.dtype) for p in parameters]

    def last() -> Tensor:
        held = carried.held[0]
        logits = model(ids, past_key_values=carried.before(0, torch.tensor([False, False]))).logits
        carried.held[0] = held
        return logits.square().sum()

    gradients = torch.autograd.grad(last(), parameters, allow_unused=True)
    named = zip(model.named_parameters(), gradients, strict=True)
    assert not [name for (name, _), g in named if g is None or (not g.any() and ".shift" not in name)]
    slope = sum((g * step).sum() for g, step in zip(gradients, steps, strict=True) if g is not None)
    found = []
    with torch.no_grad():
        for sign in (1, -2, 1):
            for p, step in zip(parameters, steps, strict=True):
                p.add_(step, alpha=sign * 1e-6)
            found.append(last())
    torch.testing.assert_close((found[0] - found[1]) / 2e-6, slope, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.gradient_checkpointing=true"], "does not go with `gradient_checkpointing`"),
        (["training.shard=true"], "here 4, does not go with `shard`"),
        (["model=transformer"], "AttentionMixer has none"),
        (["model.max_position_embeddings=64"], "takes at most 64 tokens"),
        (["model.stochastic_depth=0.1"], "`stochastic_depth`"),
    ],
)
def test_what_does_not_go_with_it_is_named(
    overrides: list[str], message: str, tiny_recipe: Recipe, tmp_path: Path
) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(tiny_recipe.to_yaml())
    recipe = load_recipe(str(path), ["training.carry_states=4", *overrides])
    with pytest.raises(ValueError, match=message):
        train(recipe, tmp_path / "run", progress=False)


def test_other_tasks_have_no_states_to_carry(recall_recipe: Recipe, tmp_path: Path) -> None:
    recall_recipe.training.carry_states = 4
    with pytest.raises(ValueError, match="is for the task language_modelling"):
        train(recall_recipe, tmp_path / "run", progress=False)
    assert make_task(recall_recipe)
