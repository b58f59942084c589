"""Documents of different lengths packed into rows, so that little is computed on padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from lagwise.tables import whole_number

IGNORED = -100  # the label that losses skip
NO_DOCUMENT = -1  # the number of padding in seq_idx


class PackingCollator:
    """Packs the examples of a batch into rows of at most ``length`` tokens: a collator for DataLoader and Trainer.

    Takes mappings with input_ids ``(tokens,)``, and perhaps labels and attention_mask like it (tensors, arrays or
    lists): a document each. Padding of their own, where attention_mask is zero, is dropped, and so are empty documents.
    Labels are input_ids if not given.

    Gives input_ids, labels, seq_idx and attention_mask ``(rows, longest row)``, with which a model treats every
    document as if it stood alone. labels are -100, which losses skip, at padding and at the first token of every
    document, which nothing before it foretells; so a mean over the other labels is a mean over what is predicted.
    seq_idx numbers a row's documents from 0 and is -1 at padding, where attention_mask is 0.

    Documents go, longest first, into the first row with room (first-fit decreasing); nothing is random. ValueError for
    a document longer than ``length``, labels of another length than input_ids, or no token at all.
    """

    def __init__(self, length: int):
        self.length = whole_number("length", length)

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        documents = [_document(number, example) for number, example in enumerate(examples)]
        sizes = [len(ids) for ids, _ in documents]
        for number, size in enumerate(sizes):
            if size > self.length:
                raise ValueError(
                    f"document {number} of the batch has {size} tokens, more than a row of {self.length}; cut it into "
                    "pieces, or make the rows longer"
                )
        if not any(sizes):
            raise ValueError(f"none of the {len(sizes)} documents of the batch has a token")
        rows = first_fit_decreasing(sizes, self.length)
        shape = (len(rows), max(sum(sizes[i] for i in row) for row in rows))
        input_ids = torch.zeros(shape, dtype=torch.long)
        labels, seq_idx = torch.full(shape, IGNORED), torch.full(shape, NO_DOCUMENT)
        for r, row in enumerate(rows):
            start = 0
            for number, i in enumerate(i for i in row if sizes[i]):
                place = slice(start, start + sizes[i])
                input_ids[r, place], labels[r, place] = documents[i]
                labels[r, start], seq_idx[r, place] = IGNORED, number
                start += sizes[i]
        mask = (seq_idx != NO_DOCUMENT).long()
        return {"input_ids": input_ids, "labels": labels, "seq_idx": seq_idx, "attention_mask": mask}


def first_fit_decreasing(sizes: Sequence[int], capacity: int) -> list[list[int]]:
    """Which items go together into bins: the largest first, each into the first bin with room, equal ones in order.

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
