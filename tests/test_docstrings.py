"""The examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch

PACKAGE = Path(__file__).parents[1] / "src" / "lagwise"
WITH_EXAMPLES = [
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if "    >>> " in path.read_text()
]

#: Public functions and classes whose docstrings have no example, and where one is instead.
WITHOUT_EXAMPLE = {
    "ops": "Reduction SKIPlan block_scan causal_ski_product online_prefill",  # parts of what kernels and mixers do
    "kernels": "CEMAKernel DSSKernel DiagonalKernel HyenaKernel KernelLinear KernelNetwork S4Kernel SGConvKernel "
    "SpectralKernel register_kernel",  # as LagKernel; docs/tutorials/kernel.md
    "mixers": "ChunkedAttention GridMixer ShortConvMixer register_mixer",  # as GTU2d and ChunkedAttentionMixer
    "blocks": "Block ChainBlock MLP QueryKey",  # docs/index.md
    "models": "LagwiseLinearConfig LagwiseLinearForImageClassification LagwiseLinearForSequenceClassification "
    "StreamingRegressor",  # made by training: docs/first-answers.md, docs/signals.md
    "forecasting": "Candidate Columns Scores SeriesTable reason write_forecast",  # results and inputs of the others
    "data": "BucketedExamples DocumentPackingCollator EncodedExamples LabelledData MaskedExamples RowEncoder RowSource "
    "ScheduledExamples SeriesSource Source StreamLoader StreamedText TextStream TokenData collate_documents "
    "content_key label_cells masked_example open_series open_source open_stream "
    "prepare prepare_labelled read_labelled rows_to_score stream_key token_bytes with_pairs",  # what tasks make of data
    "tasks": "Forecasting ImageClassification LanguageModelling MaskedLanguageModelling "
    "SequenceClassification SequenceLabelling SignalToSignal Table Task TaskData",
    # recipes name them: docs/tasks.md
}


@pytest.mark.parametrize("package", WITHOUT_EXAMPLE)
def test_the_list_of_names_without_an_example_is_complete(package: str) -> None:
    module = importlib.import_module(f"lagwise.{package}")
    public = {name: getattr(module, name) for name in module.__all__}
    documented = {name: each for name, each in public.items() if inspect.isclass(each) or inspect.isfunction(each)}
    without = {name for name, each in documented.items() if ">>> " not in str(each.__doc__)}
    assert without == set(WITHOUT_EXAMPLE[package].split())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_run(name: str) -> None:
    if name == "lagwise.forecasting.sktime":
        pytest.importorskip("sktime")
    result = doctest.testmod(importlib.import_module(name), extraglobs={"torch": torch})
    assert result.attempted
    assert not result.failed


def test_every_option_of_a_part_is_explained() -> None:
    """A recipe may set the keyword-only arguments of tasks, blocks, mixers and kernels, and the configuration's."""
    from lagwise.blocks import BLOCKS
    from lagwise.blocks.channel import CHANNEL_MIXERS
    from lagwise.kernels import KERNELS
    from lagwise.mixers import MIXERS
    from lagwise.models.configuration import LagwiseConfig, field_types
    from lagwise.tasks import TASKS

    parts = [part for table in (TASKS, BLOCKS, CHANNEL_MIXERS, MIXERS, KERNELS) for part in table.values()]
    assert len(parts) >= 25
    for part in parts:
        names = {p.name for p in inspect.signature(part).parameters.values() if p.kind is p.KEYWORD_ONLY} - {"causal"}
        explained = (inspect.getdoc(part) or "").partition("Options")[2]
        missing = {name for name in names if not re.search(rf"\b{name}\b", explained)}
        assert not missing, f"{part.__name__}: {missing}"
    missing = {name for name in field_types() if name not in (LagwiseConfig.__doc__ or "")}
    assert not missing, f"LagwiseConfig: {missing}"
