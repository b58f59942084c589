"""Documents of different lengths packed into rows, to reduce computation on padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lagwise.tables import check_integer

IGNORED = -100  # the label that losses skip
NO_DOCUMENT = -1  # the number of padding in seq_idx


class PackingCollator:
    """Packs the examples of a batch into rows of at most ``length`` tokens: a collator for DataLoader and Trainer.

    Takes mappings with input_ids ``(tokens,)``, and optionally labels and attention_mask like it (tensors, arrays or
    lists), one document each. Their own padding, where attention_mask is zero, is dropped, and so are empty documents.
    Labels are input_ids if not given.

    Gives input_ids, labels, seq_idx and attention_mask ``(rows, longest row)``, with which a model treats every
    document separately. labels are -100, which losses skip, at padding and at the first token of every document, which
    cannot be predicted; so a mean over the other labels is a mean over the predicted tokens. seq_idx numbers a row's
    documents from 0 and is -1 at padding, where attention_mask is 0.

    Documents go, longest first, into the first row with enough space (first-fit decreasing); nothing is random.
    ValueError for a document longer than ``length``, labels of another length than input_ids, or no token at all.

    >>> batch = PackingCollator(5)([{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5]}, {"input_ids": [6]}])
    >>> batch["input_ids"].tolist(), batch["seq_idx"].tolist()
    ([[1, 2, 3, 4, 5], [6, 0, 0, 0, 0]], [[0, 0, 0, 1, 1], [0, -1, -1, -1, -1]])
    """

    def __init__(self, length: int):
        self.length = check_integer("length", length)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        documents = [_document(number, example) for number, example in enumerate(examples)]
        seq_idx, places = pack([len(ids) for ids, _ in documents], self.length)
        input_ids, labels = torch.zeros_like(seq_idx), torch.full_like(seq_idx, IGNORED)
        for i, row, place in places:
            input_ids[row, place], labels[row, place] = documents[i]
            labels[row, place.start] = IGNORED
        mask = (seq_idx != NO_DOCUMENT).long()
        return {"input_ids": input_ids, "labels": labels, "seq_idx": seq_idx, "attention_mask": mask}


class DocumentPackingCollator:
    """Packs the examples of a batch into rows of at most ``length`` positions, with one label a document.

    Takes mappings with input_ids ``(tokens,)`` and perhaps token_type_ids, or input_values ``(vectors, features)``, and
    perhaps ``label``. Gives those, zero at padding, with seq_idx and attention_mask ``(rows, longest row)`` as
    `PackingCollator`, and labels ``(documents,)`` in the order of the documents: row by row, in a row by their number.

    Rows are made as in `PackingCollator`. ValueError for a document longer than ``length`` or of no position at all.
    """

    def __init__(self, length: int):
        self.length = check_integer("length", length)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        inputs = input_tensors(examples)
        sizes = [len(each) for each in next(iter(inputs.values()))]
        if 0 in sizes:
            raise ValueError(f"document {sizes.index(0)} of the batch is empty, so it cannot be classified")
        seq_idx, places = pack(sizes, self.length)
        batch = {}
        for name, documents in inputs.items():
            batch[name] = documents[0].new_zeros(*seq_idx.shape, *documents[0].shape[1:])
            for i, row, place in places:
                batch[name][row, place] = documents[i]
        batch |= {"seq_idx": seq_idx, "attention_mask": (seq_idx != NO_DOCUMENT).long()}
        return batch | label_tensor([examples[i] for i, _, _ in places])


def input_tensors(examples: Sequence[Mapping[str, Any]]) -> dict[str, list[Tensor]]:
    """The inputs that examples have: input_ids and token_type_ids as int64, input_values as float32."""
    kinds = {"input_ids": torch.long, "token_type_ids": torch.long, "input_values": torch.float32}
    return {
        name: [torch.as_tensor(example[name], dtype=kind) for example in examples]
        for name, kind in kinds.items()
        if name in examples[0]
    }


def label_tensor(examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Stack labels as ``labels (examples,)``, int64 for classes and float32 for numbers, or ``(examples, labels)`` for
    several; nothing if the examples have none."""
    if "label" not in examples[0]:
        return {}
    labels = torch.stack([torch.as_tensor(example["label"]) for example in examples])
    return {"labels": labels.float() if labels.is_floating_point() else labels}


def pack(sizes: Sequence[int], length: int) -> tuple[Tensor, list[tuple[int, int, slice]]]:
    """Where documents of these sizes go in rows of at most ``length``.

    Returns seq_idx ``(rows, longest row)`` and (document, row, its place in it), row by row, in order of their numbers;
    empty documents are left out. ValueError if a document does not fit a row, or all are empty.
    """
    for number, size in enumerate(sizes):
        if size > length:
            raise ValueError(
                f"document {number} of the batch has {size} tokens, more than a row of {length}; cut it into "
                "pieces, or make the rows longer"
            )
    if not any(sizes):
        raise ValueError(f"none of the {len(sizes)} documents of the batch has a token")
    rows = first_fit_decreasing(sizes, length)
    seq_idx = torch.full((len(rows), max(sum(sizes[i] for i in row) for row in rows)), NO_DOCUMENT)
    places = []
    for r, row in enumerate(rows):
        start = 0
        for number, i in enumerate(i for i in row if sizes[i]):
            places.append((i, r, slice(start, start + sizes[i])))
            seq_idx[r, start : start + sizes[i]] = number
            start += sizes[i]
    return seq_idx, places


def first_fit_decreasing(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """The items of each bin: the largest first, each into the first bin with enough space, equal ones in order.

    Never needs more than 11/9 of the fewest bins possible, and one. Every size must be at most the capacity.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for item in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        place = next((b for b, left in enumerate(room) if left >= sizes[item]), len(bins))
        if place == len(bins):
            bins.append([])
            room.append(capacity)
        bins[place].append(item)
        room[place] -= sizes[item]
    return bins


def _document(number: int, example: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    ids = torch.as_tensor(example["input_ids"], dtype=torch.long)
    labels = torch.as_tensor(example.get("labels", ids), dtype=torch.long)
    mask = torch.as_tensor(example.get("attention_mask", torch.ones_like(ids))).bool()
    for name, value in (("labels", labels), ("attention_mask", mask)):
        if ids.dim() != 1 or value.shape != ids.shape:
            raise ValueError(
                f"document {number} of the batch must have input_ids (tokens,) and {name} like it, got "
                f"{tuple(ids.shape)} and {tuple(value.shape)}"
            )
    return ids[mask], labels[mask]
