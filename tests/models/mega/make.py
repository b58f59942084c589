"""Make the tiny MEGA models of this folder with transformers' own classes, which only earlier versions have.

Run it in a separate environment: ``pip install transformers==4.41.2 torch 'numpy<2'``, then ``python make.py
[FOLDER]``. Weights are random. Each folder gets config.json, model.safetensors, and expected.json with ids, mask and
logits.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers

mega: Any = transformers  # today's has no classes of MEGA

SMALL = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 2, "intermediate_size": 12, "max_positions": 24}
SMALL |= {"ema_projection_size": 3, "shared_representation_size": 6, "nffn_hidden_size": 10, "pad_token_id": 1}
CAUSAL = {"is_decoder": True, "bidirectional": False, "use_cache": False}
MODELS = {
    "masked": (mega.MegaForMaskedLM, {}),
    "masked-laplace": (
        mega.MegaForMaskedLM,
        {
            "attention_activation": "laplace",
            "relative_positional_bias": "simple",
            "activation": "gelu",
            "normalization_type": "layernorm",
            "add_token_type_embeddings": True,
            "tie_word_embeddings": False,
            "use_chunking": True,
            "chunk_size": 8,
            "truncation": 5,
        },
    ),
    "masked-one-sided": (
        mega.MegaForMaskedLM,
        {
            "bidirectional": False,
            "normalization_type": "batchnorm",
            "attention_activation": "relu2",
            "norm_affine": False,
            "add_lm_hidden_dense_layer": False,
            "use_normalized_ffn": False,
        },
    ),
    "causal": (mega.MegaForCausalLM, {**CAUSAL, "relative_positional_bias": "simple"}),
    "causal-chunks": (
        mega.MegaForCausalLM,
        {
            **CAUSAL,
            "use_chunking": True,
            "chunk_size": 8,
            "attention_activation": "laplace",
            "norm_affine": False,
            "add_lm_hidden_dense_layer": False,
        },
    ),
    "sequences": (mega.MegaForSequenceClassification, {"num_labels": 3, "classifier_dropout": 0.3}),
    "tokens": (mega.MegaForTokenClassification, {"num_labels": 4, "attention_activation": "laplace"}),
}


def make(folder: Path) -> None:
    torch.manual_seed(0)
    for name, (kind, options) in MODELS.items():
        model = kind(mega.MegaConfig(**{**SMALL, **options})).eval()
        with torch.no_grad():
            for key, value in model.state_dict().items():  # far from where they begin, so that each of them shows
                if value.is_floating_point() and "_float_tensor" not in key:
                    noise = torch.randn_like(value)
                    value.copy_(noise.exp() if key.endswith("running_var") else value + 0.3 * noise)
        model.save_pretrained(folder / name)
        ids = torch.randint(2, SMALL["vocab_size"], (2, 16))
        mask = torch.ones_like(ids)
        if kind is not mega.MegaForCausalLM:
            mask[1, ..., 11:] = 0
        types = {"token_type_ids": (ids % 2)} if options.get("add_token_type_embeddings") else {}
        with torch.no_grad():
            out = model(ids, attention_mask=mask, **types)
        outputs = {n: t.double().round(decimals=7) for n, t in out.items() if n.endswith("logits")}
        expected = {"input_ids": ids, "attention_mask": mask, **types, **outputs}
        lists = {key: value.tolist() for key, value in expected.items()}
        (folder / name / "expected.json").write_text(json.dumps(lists) + "\n")
        (folder / name / "generation_config.json").unlink(missing_ok=True)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
