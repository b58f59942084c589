"""The file in every saved folder that lets its model load where lagwise has not been imported."""

from __future__ import annotations

from pathlib import Path

_MODULE = "modeling_lagwise"
#: The Auto class that loads each of our classes.
AUTO_CLASSES = {
    "AutoConfig": "LagwiseConfig",
    "AutoModel": "LagwiseModel",
    "AutoModelForCausalLM": "LagwiseForCausalLM",
    "AutoModelForImageClassification": "LagwiseForImageClassification",
    "AutoModelForMaskedLM": "LagwiseForMaskedLM",
    "AutoModelForMultipleChoice": "LagwiseForMultipleChoice",
    "AutoModelForQuestionAnswering": "LagwiseForQuestionAnswering",
    "AutoModelForSequenceClassification": "LagwiseForSequenceClassification",
    "AutoModelForTimeSeriesPrediction": "LagwiseForPrediction",
    "AutoModelForTokenClassification": "LagwiseForTokenClassification",
}
#: Their entry in config.json: transformers imports ``modeling_lagwise.py`` if trust_remote_code=True.
AUTO_MAP = {auto: f"{_MODULE}.{name}" for auto, name in AUTO_CLASSES.items()}

_CODE = '''"""Loads the model in this folder with trust_remote_code=True, where lagwise is installed."""

from lagwise.models import ({names}
)
'''


def write_code(folder: Path) -> None:
    """Write the file that `AUTO_MAP` names. If lagwise is not installed, transformers asks to "Run `pip install
    lagwise`"."""
    names = "".join(f"\n    {name}," for name in sorted(AUTO_CLASSES.values()))
    (folder / f"{_MODULE}.py").write_text(_CODE.format(names=names))
