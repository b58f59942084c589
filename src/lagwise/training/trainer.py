"""The Trainer of transformers, with complete checkpoints only and a readable log, and what it calls between steps: the
choice of the best model, stops by a signal, and a progress bar; and processes that share sequences."""

from __future__ import annotations

import functools
import inspect
import json
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from lagwise.data.batches import Examples
from lagwise.files import PARTIAL, one_line, saved_whole
from lagwise.models.heads import VocabularyHead
from lagwise.models.loading import quiet
from lagwise.process import Stopped, denormals_as_zero, group_size, is_first
from lagwise.progress import progress_bar
from lagwise.tasks import TaskData
from lagwise.training.folder import METRICS_FILE, checkpoints, note_content
from lagwise.training.optimizer import clip_gradients, sparse_tables
from lagwise.training.recipe import REDUCE_OVERHEAD, TrainingOptions

BEST = "best"  # folder of the best model of a training
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class BestModel(TrainerCallback):
    """Callback that keeps the weights of the best evaluation, by the log alone, in ``RUN/best``, and stops the training
    after ``patience`` evaluations without a better one (0: never)."""

    def __init__(self, run: Path, metric: str, greater_is_better: bool, patience: int, keep: bool):
        self.folder, self.metric = run / BEST, f"eval_{metric}"
        self.sign = 1 if greater_is_better else -1
        self.patience, self.keep = patience, keep

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps and args.eval_strategy != "no":  # the last model is evaluated too
            control.should_evaluate = True

    def on_evaluate(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        values = [self.sign * line[self.metric] for line in state.log_history if self.metric in line]
        if not values:  # a model without a loss
            return
        since = evaluations_since_best(values)
        if self.keep and since == 0 and state.is_world_process_zero:
            with quiet(), saved_whole(self.folder, "the best model so far", last="config.json") as partial:
                getattr(model, "module", model).save_pretrained(partial)
        if self.patience and since >= self.patience:
            control.should_training_stop = True
            control.should_save = True

    def has_stopped(self, checkpoint: Path) -> bool:
        """Whether the training that wrote a checkpoint had stopped there because the metric no longer improved."""
        history = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
        values = [self.sign * line[self.metric] for line in history if self.metric in line]
        return bool(self.patience and values) and evaluations_since_best(values) >= self.patience

    def take(self, partial: Path) -> bool:
        """Copy the best weights into a folder that is being saved. Returns whether there are any."""
        if not (self.keep and (self.folder / "config.json").is_file()):
            return False
        shutil.copyfile(self.folder / "model.safetensors", partial / "model.safetensors")
        return True

    def remove(self) -> None:
        """Remove the copy, once it is the run's final model."""
        shutil.rmtree(self.folder, ignore_errors=True)


def evaluations_since_best(values: Sequence[float]) -> int:
    """Return the number of values after the first maximum."""
    return len(values) - 1 - max(range(len(values)), key=lambda i: (values[i], -i))


def shared_rows(rows: Any, batch: int, count: int) -> Examples:
    """Repeat every batch once for each process that shares it: the Trainer gives batches to the processes in turn. The
    last batch is filled up with its last row."""
    return Examples(-(-len(rows) // batch) * batch * count, functools.partial(_shared, rows, batch, count))


def _shared(rows: Any, batch: int, count: int, index: int) -> Any:
    number, position = divmod(index, batch)
    return rows[min(number // count * batch + position, len(rows) - 1)]


class Sharing:
    """The group of ``count`` processes, with neighbouring ranks, that share sequences with this process. rows, batch:
    the rows of an evaluation, and those of a batch of it in a process."""

    def __init__(self, count: int, rows: int, batch: int):
        self.count, self.rows, self.batch = count, rows, batch
        self.group: Any = dist.new_subgroups(group_size=count)[0]

    def shard(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Cut this process's shard out of a batch of whole rows."""
        length, rank = max(t.shape[1] for t in inputs.values() if t.dim() > 1), dist.get_rank(self.group)
        own = slice(length * rank // self.count, length * (rank + 1) // self.count)
        return {
            name: t[:, own].contiguous() if isinstance(t, Tensor) and t.dim() > 1 and t.shape[1] == length else t
            for name, t in inputs.items()
        }

    def real_rows(self, number: int) -> int:
        """Count the rows of this process's evaluation batch ``number`` that do not only fill it up."""
        batch = (number * dist.get_world_size() + dist.get_rank()) // self.count
        return min(max(self.rows - batch * self.batch, 0), self.batch)


class LagwiseTrainer(Trainer):
    """A Trainer whose checkpoints appear under their name only when complete. The task's data define batches, the loss
    and the metrics."""

    def __init__(
        self,
        model: Any,
        data: TaskData,
        options: TrainingOptions,
        arguments: TrainingArguments,
        optimizer: torch.optim.Optimizer,
        *,
        show: bool,
    ):
        def metrics(outputs: EvalPrediction) -> dict[str, float]:
            return data.metrics(math.nan, outputs.predictions, outputs.label_ids)

        self.data, self.options = data, options
        metric, run = data.headline, Path(str(arguments.output_dir))
        self.best = BestModel(run, metric.name, metric.greater_is_better, options.patience, options.select == "best")
        training: Any = data.training_examples(options.steps, options.batch_size, options.seed)
        validation: Any = data.validation_examples(options.evaluate_tokens)
        self.sharing = None
        if (count := options.sequence_parallel) > 1:
            self.sharing = Sharing(count, len(validation), arguments.per_device_eval_batch_size)
            training = shared_rows(training, arguments.per_device_train_batch_size, count)
            validation = shared_rows(validation, arguments.per_device_eval_batch_size, count)
            model.split_sequences(self.sharing.group)
        super().__init__(
            model,
            arguments,
            data.collate,
            training,
            validation,
            processing_class=data.tokenizer,
            compute_loss_func=data.loss,
            compute_metrics=metrics,
            callbacks=[self.best, Progress(data, options.batch_size, show)],
            optimizers=(optimizer, None),
        )
        if group_size() == 1 and self.args.device.type == "cpu":
            self.accelerator.clip_grad_norm_ = clip_gradients  # type: ignore[bad-assignment]
        arguments_of_model = inspect.signature(self._module.forward).parameters
        self.label_names = [name for name in ("labels", "future_values") if name in arguments_of_model]
        self._saving, self._logged_at = False, 0.0
        self._evaluated = 0  # validation batches
        self._losses: list[torch.Tensor] = []  # for each validation batch the sum, and the number of its terms
        self.remove_callback(PrinterCallback)

    @property
    def _module(self) -> nn.Module:
        assert self.model is not None
        return self.model

    @denormals_as_zero()
    def train(self, *args: Any, **kwargs: Any) -> Any:
        self._logged_at = time.monotonic()
        with sparse_tables(self._module, self.options):
            return super().train(*args, **kwargs)

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Count the terms of the loss also where labels have another name, so that the loss is the mean over all
        processes and micro-batches."""
        samples, counted = super().get_batch_samples(*args, **kwargs)
        if counted is None and samples and self.label_names != ["labels"]:
            own = torch.stack([self.data.counted(batch) for batch in samples]).sum()
            counted = self.accelerator.gather(own.to(self.args.device)).sum().clamp(min=1)
        return samples, counted

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.options.compile == REDUCE_OVERHEAD:
            torch.compiler.cudagraph_mark_step_begin()
        return super().training_step(*args, **kwargs)

    def compute_loss(self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any) -> Any:
        """Compute the loss, without the logits of a language model if only the loss is needed."""
        if not model.training:
            kwargs.pop("num_items_in_batch", None)  # over all processes; `evaluation_loop` needs this batch's mean
        elif self.sharing is not None and kwargs.get("num_items_in_batch") is not None:  # every sharer counted all
            kwargs["num_items_in_batch"] = kwargs["num_items_in_batch"] // self.sharing.count
        loss_only = not return_outputs or type(self.data).reduce is TaskData.reduce
        if loss_only and isinstance(self.accelerator.unwrap_model(model), VocabularyHead):
            inputs = {**inputs, "skip_logits": True}
        return super().compute_loss(model, inputs, return_outputs, **kwargs)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        inputs = super()._prepare_inputs(inputs)
        return inputs if self.sharing is None else self.sharing.shard(inputs)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        collate, self.data_collator = self.data_collator, functools.partial(self.data.collate, training=False)
        try:
            return super().get_eval_dataloader(eval_dataset)
        finally:
            self.data_collator = collate

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        for name in ("loss", "eval_loss"):
            if name in logs and not math.isfinite(logs[name]):
                raise FloatingPointError(
                    f"{name} is {logs[name]} at step {self.state.global_step}: training has diverged. Try a smaller "
                    "`learning_rate` or `precision=float32`; saved checkpoints are intact"
                )
        if "eval_loss" in logs and f"eval_{self.data.headline.name}" not in logs:  # the task needs only the loss
            logs |= {f"eval_{name}": value for name, value in self.data.metrics(logs["eval_loss"]).items()}
        if "train_loss" in logs:
            losses = [(line["loss"], line["step"]) for line in self.state.log_history if "loss" in line]
            starts = [0, *(step for _, step in losses)]  # the Trainer's value leaves out earlier processes
            total = sum(loss * (step - start) for (loss, step), start in zip(losses, starts, strict=False))
            logs["train_loss"] = total / max(starts[-1], 1)
        now = time.monotonic()
        before = next((line["seconds"] for line in reversed(self.state.log_history) if "seconds" in line), 0.0)
        logs["seconds"] = round(before + now - self._logged_at, 3)  # without the pauses before a resume
        self._logged_at = now
        super().log(logs, *args, **kwargs)
        if self.is_world_process_zero():
            with open(Path(str(self.args.output_dir), METRICS_FILE), "a", encoding="utf-8") as f:
                line = {"step": self.state.global_step, **logs}
                line.pop("epoch", None)  # the Trainer's value counts all examples of the run
                f.write(json.dumps(line) + "\n")

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate with a loss that is the mean over all labels, for any batch size and number of processes. The
        Trainer's loss is a mean over batches."""
        self._losses, self._evaluated = [], 0
        with torch.compiler.set_stance("force_eager") if self.options.compile else nullcontext():
            output = super().evaluation_loop(*args, **kwargs)
        if self._losses:
            sums, counts = self.accelerator.gather(torch.stack(self._losses)).double().unbind(1)
            assert output.metrics is not None
            output.metrics["eval_loss"] = (sums.sum() / counts.sum()).item()
        return output

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Keep only the outputs and labels that the task's metrics need, and the sum of the loss."""
        rows = len(next(iter(inputs.values())))
        real = self._real_rows(rows)
        share = 1 if self.sharing is None else self.sharing.count
        self._evaluated += 1
        inputs = {name: value[: max(1, real)] for name, value in inputs.items()}  # every process needs some
        loss, logits, labels = super().prediction_step(model, inputs, *args, **kwargs)
        if loss is not None:
            count = self.data.counted(inputs).to(loss.device) * (real > 0)
            self._losses.append(torch.stack([torch.where(count > 0, loss.float() * count * share, 0), count]))
        reduced = None if logits is None or labels is None else self.data.reduce(logits, labels)
        if reduced is None:
            return loss, None, None
        if self.sharing is not None:  # sums over tokens, to which the rows that fill a batch add nothing
            reduced = tuple(each * (real > 0) for each in reduced)
            if (more := rows - len(reduced[0])) > 0:
                reduced = tuple(torch.cat([each, each.new_zeros(more, *each.shape[1:])]) for each in reduced)
            return loss, *reduced
        filled = torch.arange(rows).clamp(max=max(1, real) - 1)  # the Trainer gathers as many rows from every process
        return loss, *(each[filled.to(each.device)] for each in reduced)

    def _real_rows(self, rows: int) -> int:
        """Count the rows of a validation batch that no other process has: the last batches are filled up to equal sizes
        with the first rows of the data."""
        if self.sharing is not None:
            return self.sharing.real_rows(self._evaluated)
        state = self.accelerator.gradient_state
        if not state.end_of_dataloader or state.remainder <= 0:
            return rows
        return min(max(state.remainder - self.args.process_index * rows, 0), rows)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        # Processes of a group on CPUs have the device cpu:0, to which torch cannot load.
        if not checkpoint or self.args.device.type != "cpu":
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        parts: Any = {"optimizer": self.optimizer, "scheduler": self.lr_scheduler}
        for name, part in parts.items():
            part.load_state_dict(torch.load(Path(checkpoint, f"{name}.pt"), weights_only=True))

    def _get_output_dir(self, trial: Any) -> str:
        run = super()._get_output_dir(trial)
        return os.path.join(run, PARTIAL) if self._saving else run

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Refuse weights that do not fit the model, of which the Trainer only warns. Tied weights are saved once, so
        their second name is expected to be missing."""
        tied = set(getattr(self.model, "_tied_weights_keys", None) or ())
        if wrong := [*load_result.unexpected_keys, *(set(load_result.missing_keys) - tied)]:
            raise ValueError(f"a checkpoint's weights do not fit the model, such as {wrong[0]}; another version?")
        model: Any = self.accelerator.unwrap_model(self.model)
        model.tie_weights()

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        run = Path(super()._get_output_dir(trial))
        name = f"checkpoint-{self.state.global_step}"
        if self.args.should_save and not all(p.isfinite().all() for p in model.parameters()):
            raise FloatingPointError(
                f"a weight is not finite at step {self.state.global_step}: the earlier checkpoints are kept as they are"
            )
        self._saving = True
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if self.args.should_save:
                note_content(run, run / PARTIAL / name)
        except Exception as error:  # on a full disk, each of the writing libraries raises another type
            shutil.rmtree(run / PARTIAL, ignore_errors=True)
            raise OSError(
                f"cannot save {name} in {str(run)!r} ({one_line(error)}); earlier checkpoints are whole: free space, "
                "then resume the run"
            ) from error
        finally:
            self._saving = False
        if self.args.should_save:
            shutil.rmtree(run / name, ignore_errors=True)
            os.replace(run / PARTIAL / name, run / name)
            for old in checkpoints(run)[: -self.options.keep_checkpoints]:
                shutil.rmtree(old)
        self.accelerator.wait_for_everyone()


class Progress(TrainerCallback):
    """A progress bar for the whole training: loss, validation metric, and tokens or images per second."""

    def __init__(self, data: TaskData, batch_size: int, show: bool):
        sizes = data.sizes(batch_size)
        self.data, self.tokens_per_step, self.unit, self.show = data, batch_size * sizes.tokens, sizes.unit, show
        self.shown: dict[str, str] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.first, self.started = state.global_step, time.monotonic()
        self.bar = progress_bar(
            desc="training", total=state.max_steps, initial=state.global_step, unit="step", show=self.show
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.update(state.global_step - self.bar.n)
        if control.should_save:
            control.should_log = True  # the losses of a resumed run are then averaged over the same steps

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        logs = logs or {}
        if "loss" in logs:
            self.shown["loss"] = f"{logs['loss']:.3f}"
            speed = (state.global_step - self.first) * self.tokens_per_step / (time.monotonic() - self.started)
            self.shown[f"{self.unit}/s"] = f"{speed:,.0f}"
        if f"eval_{self.data.headline.name}" in logs:
            self.shown[f"valid {self.data.headline.label}"] = f"{logs[f'eval_{self.data.headline.name}']:.3f}"
        self.bar.set_postfix(self.shown, refresh=False)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.close()


class _StopAfterStep(TrainerCallback):
    """Callback that saves a checkpoint and ends the training after the step in which any process got a signal."""

    def __init__(self, processes: int):
        self.number = 0  # the number of the signal
        # On the CPU, so that no process waits for its GPU.
        self.group = dist.new_group(backend="gloo") if processes > 1 else None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.group is not None:
            number = torch.tensor(self.number, device="cpu")
            dist.all_reduce(number, dist.ReduceOp.MAX, self.group)
            self.number = int(number)
        if self.number:
            control.should_save = control.should_log = control.should_training_stop = True


@contextmanager
def saved_when_stopped(trainer: Trainer) -> Iterator[None]:
    """On Ctrl-C or SIGTERM within the context, complete the step and save a checkpoint before `Stopped` is raised, in
    all processes if any of them gets the signal. A second signal to a single process stops it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stop = _StopAfterStep(trainer.args.world_size)
    # A handler that someone else has set, such as that of a notebook or a scheduler, stays.
    before = {number: signal.getsignal(number) for number in _SIGNALS if signal.getsignal(number) in _DEFAULTS}

    def handle(number: int, frame: FrameType | None) -> None:
        again = bool(stop.number)
        stop.number = number
        if stop.group is None:
            for each in before:
                signal.signal(each, signal.default_int_handler)
        if is_first() and not again:
            hint = "; again to stop at once" if stop.group is None else ""
            print(f"\nStopping after this step{hint}.", file=sys.stderr, flush=True)

    trainer.add_callback(stop)
    try:
        for number in before:
            signal.signal(number, handle)
        yield
        if stop.number and trainer.state.global_step < trainer.state.max_steps:
            raise Stopped(stop.number)
    finally:
        trainer.remove_callback(stop)
        for number, handler in before.items():
            signal.signal(number, handler)
