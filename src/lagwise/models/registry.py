"""Every model class by name. Importing this module registers them all with the Auto classes of transformers."""

import importlib

from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

from lagwise.models.classes import CLASSES, HOMES, LINEAR_CLASSES
from lagwise.models.configuration import LagwiseConfig, LagwiseLinearConfig

#: Model classes by name, without configurations.
HEADS: dict[str, type[PreTrainedModel]] = {}
for _config, _classes in ((LagwiseConfig, CLASSES), (LagwiseLinearConfig, LINEAR_CLASSES)):
    for _name, _each in _classes.items():
        if _each.auto != "AutoConfig":
            HEADS[_name] = getattr(importlib.import_module(HOMES[_name]), _name)
            getattr(modeling_auto, _each.auto).register(_config, HEADS[_name], exist_ok=True)
# For these names the Trainer shifts labels by one token when it computes a loss itself (label_smoothing_factor).
modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[LagwiseConfig.model_type] = "LagwiseForCausalLM"
