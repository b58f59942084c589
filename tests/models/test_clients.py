"""Command lines of other programs load a saved folder, in processes that have not imported lagwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lagwise import LagwiseConfig, LagwiseForCausalLM, LagwiseForSequenceClassification
from lagwise.data import load_tokenizer
from lagwise.models import generate_text
from lagwise.models.loading import load_language_model, save_tokenizer
from lagwise.runs import evaluate_run

pytestmark = pytest.mark.slow
FIELDS = {"vocab_size": 258, "hidden_size": 16, "num_hidden_layers": 1, "pad_token_id": 257, "eos_token_id": 256}
TASKS = {
    "choice": {
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": ["a", "b"],
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    },
    "rolling": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    },
    "text": {
        "output_type": "generate_until",
        "doc_to_text": "{{text}}",
        "doc_to_target": "b",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 4},
        "metric_list": [{"metric": "exact_match"}],
    },
}


def saved(folder: Path, head: type, **fields: object) -> Path:
    model = head(LagwiseConfig(**{**FIELDS, **fields}))
    model.save_pretrained(folder)
    save_tokenizer(load_tokenizer("bytes"), folder, model.length_limit)
    return folder


def run(*arguments: object) -> str:
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **offline})
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.mark.parametrize("limit", [None, 256])
def test_lm_eval(tmp_path: Path, limit: int | None) -> None:
    """With an automatic batch size, for which lm-eval tries texts of the maximum length."""
    pytest.importorskip("lm_eval")
    folder = saved(tmp_path / "model", LagwiseForCausalLM, max_position_embeddings=limit)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": "ab" * (i + 1), "answer": i % 2}) + "\n" for i in range(4)))
    for name, task in TASKS.items():
        data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(rows)}}, "test_split": "test"}
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"task": name, **data, **task}))  # JSON is YAML
    out = tmp_path / "out"
    run(
        *("lm_eval", "--model", "hf", "--model_args", f"pretrained={folder},trust_remote_code=True"),
        *("--tasks", ",".join(TASKS), "--include_path", tmp_path, "--batch_size", "auto", "--device", "cpu"),
        *("--output_path", out),
    )
    (results,) = out.rglob("results_*.json")
    found = json.loads(results.read_text())["results"]
    assert found.keys() == TASKS.keys()
    assert 7 < found["rolling"]["bits_per_byte,none"] < 9  # a fresh model has 8, as all bytes are alike to it


@pytest.mark.parametrize("script", ["sft", "chat", "dpo", "kto", "reward"])
def test_trl(tmp_path: Path, script: str) -> None:
    pytest.importorskip("trl")
    head = LagwiseForSequenceClassification if script == "reward" else LagwiseForCausalLM
    own = {"num_labels": 1, "pooling": "last"} if script == "reward" else {}
    folder = saved(tmp_path / "model", head, **own)
    pair = {"prompt": "say ", "chosen": "something good", "rejected": "nothing"}
    rows = {
        "sft": [{"text": "say something good"}],
        "chat": [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "good day"}]}],
        "kto": [
            {"prompt": "say ", "completion": text, "label": text != "nothing"} for text in ("something", "nothing")
        ],
    }.get(script, [pair])
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
    template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
    (folder / "chat_template.jinja").write_text(template)
    run(
        *(
            f"trl.scripts.{'sft' if script == 'chat' else script}",
            "--model_name_or_path",
            folder,
            "--trust_remote_code",
            "--dataset_name",
        ),
        *(tmp_path / "data", "--output_dir", tmp_path / "out", "--max_steps", 1, "--per_device_train_batch_size", 2),
        *("--use_cpu", "--bf16", "False", "--report_to", "none"),
    )
    trained = head.from_pretrained(tmp_path / "out")
    assert type(trained) is head
    assert (tmp_path / "out" / "modeling_lagwise.py").is_file()
    if script == "chat":
        (tmp_path / "held-out.txt").write_text("user: hi\nassistant: good day\n" * 50)
        found = evaluate_run(tmp_path / "out", source=str(tmp_path / "held-out.txt"), lengths=[64], progress=False)
        assert 0 < found["test"][0]["bits_per_byte"] < 10
        model, tokenizer = load_language_model(tmp_path / "out")
        assert tokenizer.chat_template == template
        assert isinstance(generate_text(model, tokenizer, "hi", chat=True, max_new_tokens=3, seed=0), str)
