"""Muon: against torch's, which matrices it takes, and checkpoints."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist
from processes import run_together
from torch import nn

from lagwise.models import LagwiseConfig, LagwiseForCausalLM
from lagwise.training import optimizer as optimizer_module
from lagwise.training.optimizer import AdamW, Muon, clip_gradients, make_optimizer, orthogonal, sparse_tables
from lagwise.training.recipe import TrainingOptions


@pytest.fixture
def in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_module, "bfloat16_is_fast", lambda: True)


@pytest.mark.usefixtures("in_bfloat16")
@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_matrices_take_the_steps_of_torchs_muon(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    own, other = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.empty(shape))
    other.data.copy_(own)
    muon = Muon([{"params": [own], "momentum": 0.95}], lr=0.1, weight_decay=0.2)
    torchs = torch.optim.Muon([other], lr=0.1, weight_decay=0.2, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        own.grad = torch.randn(shape)
        other.grad = own.grad.clone()
        muon.step()
        torchs.step()
        assert own.grad is None
        torch.testing.assert_close(own, other, rtol=1e-5, atol=1e-6)


def test_other_parameters_take_the_steps_of_adamw() -> None:
    torch.manual_seed(0)
    matrix, own, other = (nn.Parameter(torch.randn(5, 5)) for _ in range(3))
    other.data.copy_(own)
    muon = Muon([{"params": [matrix], "momentum": 0.95}, {"params": [own], "weight_decay": 0.3}], lr=0.1)
    adamw = torch.optim.AdamW([other], lr=0.1, weight_decay=0.3)
    for _ in range(3):
        own.grad, matrix.grad = torch.randn(5, 5), torch.randn(5, 5)
        other.grad = own.grad.clone()
        muon.step()
        adamw.step()
        assert torch.equal(own, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5)])
def test_the_update_is_nearly_orthogonal(shape: tuple[int, int], dtype: torch.dtype) -> None:
    left, _, right = torch.linalg.svd(
        torch.randn(shape, generator=torch.Generator().manual_seed(0)), full_matrices=False
    )
    matrix = (left * torch.linspace(0.1, 1, left.shape[1])) @ right
    values = left.T @ orthogonal(matrix, dtype).float() @ right.T
    tolerance = 0.03 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(values, values.diagonal().diag(), rtol=0, atol=tolerance)  # the same singular vectors
    assert values.diagonal().min() > 0.6
    assert values.diagonal().max() < 1.3
    assert not orthogonal(torch.zeros(shape), dtype).any()


def on_two_processors() -> None:
    """Some steps of one of two processes: one of them is on a processor that has no fast bfloat16."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for fast in ((True, False), (False, True)):
        setattr(optimizer_module, "bfloat16_is_fast", lambda fast=fast: fast[rank])  # noqa: B010 (its type is another)
        torch.manual_seed(0)
        matrix = nn.Parameter(torch.randn(6, 4))
        muon = Muon([{"params": [matrix], "momentum": 0.95}], lr=0.1)
        for _ in range(3):
            matrix.grad = torch.randn(6, 4)
            muon.step()
        both = [torch.empty(6, 4), torch.empty(6, 4)]
        dist.all_gather(both, matrix.detach())
        assert torch.equal(*both)
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_processes_on_different_processors_keep_the_same_weights() -> None:
    assert run_together(on_two_processors) == [0, 0]


def test_muon_takes_the_matrices_of_linear_layers_in_blocks() -> None:
    mixer = {"name": "gtu", "kernel": {"name": "rpe", "layers": 1, "hidden": 4}}
    config = LagwiseConfig(
        vocab_size=11, hidden_size=8, num_hidden_layers=2, block={"name": "prenorm", "token_mixer": mixer}
    )
    model = LagwiseForCausalLM(config)
    optimizer = make_optimizer(model, TrainingOptions(optimizer="muon", weight_decay=0.1))
    names = {id(p): name for name, p in model.named_parameters()}
    taken = {id(p) for group in optimizer.param_groups if "momentum" in group for p in group["params"]}
    linear = {f"{part}.weight" for part in ("gate", "value", "out")}
    expected = {
        f"model.layers.{n}.block.{part}.{w}"
        for n in (0, 1)
        for part in ("token_mixer", "channels.mixer")
        for w in linear
    }
    assert {names[each] for each in taken} == expected
    grouped = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(grouped) == sorted(names)
    for group in optimizer.param_groups:
        assert group["lr"] == TrainingOptions().learning_rate
    assert type(make_optimizer(model, TrainingOptions())) is AdamW


def test_hooks_of_a_step_run_once() -> None:
    torch.optim.AdamW([nn.Parameter(torch.ones(1))])  # from now on AdamW's own step runs hooks
    optimizer, seen = Muon([nn.Parameter(torch.ones(1))]), []
    optimizer.register_step_post_hook(lambda *_: seen.append("post"))
    optimizer.step()
    assert seen == ["post"]


@pytest.mark.parametrize("kind", [AdamW, Muon])
def test_rows_of_a_sparse_gradient_are_updated_as_by_sparse_adam(kind: type[AdamW]) -> None:
    tables = [nn.Embedding(20, 3, sparse=True) for _ in range(2)]
    tables[1].load_state_dict(tables[0].state_dict())
    dense = nn.Parameter(torch.ones(2))
    own = kind([tables[0].weight, dense], lr=0.1, weight_decay=0.0, fused=True)
    expected = torch.optim.SparseAdam([tables[1].weight], lr=0.1, betas=(0.0, 0.999))
    for ids in ([1, 4, 4], [4, 7, 1], [0, 0, 0]):
        for table in tables:
            (table(torch.tensor(ids)).sin() * torch.arange(3.0)).sum().backward()
        dense.grad = torch.ones(2)
        own.step()
        expected.step()
        expected.zero_grad()
    torch.testing.assert_close(tables[0].weight, tables[1].weight)
    assert bool((dense < 1).all())


def test_only_rows_that_a_step_reads_change_in_tables_of_ngrams() -> None:
    config = LagwiseConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1, ngram_sizes=[2], match_sizes=[1])
    model, options = LagwiseForCausalLM(config), TrainingOptions()
    table = model.get_submodule("model.embed_ngrams.table")
    before, ids = table.weight.detach().clone(), torch.tensor([[1, 2, 3, 1, 2]])
    optimizer = make_optimizer(model, options)
    dense = torch.autograd.grad(model(input_ids=ids, labels=ids).loss, table.weight)[0]
    with sparse_tables(model, options):
        model(input_ids=ids, labels=ids).loss.backward()
    assert table.weight.grad.is_sparse
    assert not table.sparse
    torch.testing.assert_close(table.weight.grad.to_dense(), dense)
    optimizer.step()
    assert torch.equal((table.weight != before).any(1), (dense != 0).any(1))


def test_sparse_gradients_are_clipped_with_the_others() -> None:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(6, 2)) for _ in range(4)]
    rows = torch.tensor([[1, 3, 3]])
    sparse = torch.sparse_coo_tensor(rows, torch.randn(3, 2), (6, 2), check_invariants=True)
    for parameter in parameters[::2]:
        parameter.grad = torch.full((6, 2), 2.0)
    parameters[1].grad, parameters[3].grad = sparse, sparse.to_dense()
    norms = clip_gradients(parameters[:2], 1.0), nn.utils.clip_grad_norm_(parameters[2:], 1.0)
    torch.testing.assert_close(*norms)
    torch.testing.assert_close(parameters[1].grad.to_dense(), parameters[3].grad)
    torch.testing.assert_close(parameters[0].grad, parameters[2].grad)


def test_a_closure_computes_the_loss() -> None:
    matrix = nn.Parameter(torch.eye(3))
    muon = Muon([{"params": [matrix], "momentum": 0.95}], lr=0.1)
    assert muon.step(lambda: (loss := matrix.square().sum()).backward() or loss).item() == 3
    assert not torch.equal(matrix, torch.eye(3))
