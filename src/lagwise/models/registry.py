"""Every model class by name. Importing this module registers them all with the Auto classes of transformers."""

from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto

from lagwise import models
from lagwise.models.configuration import LagwiseConfig, LagwiseLinearConfig
from lagwise.models.remote_code import CLASSES, LINEAR_CLASSES

#: Model classes by name, without configurations.
HEADS: dict[str, type[PreTrainedModel]] = {}
for _config, _classes in ((LagwiseConfig, CLASSES), (LagwiseLinearConfig, LINEAR_CLASSES)):
    for _name, _auto in _classes.items():
        if _auto != "AutoConfig":
            HEADS[_name] = getattr(models, _name)
            getattr(modeling_auto, _auto).register(_config, HEADS[_name], exist_ok=True)
# For these names the Trainer shifts labels by one token when it computes a loss itself (label_smoothing_factor).
modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[LagwiseConfig.model_type] = "LagwiseForCausalLM"
