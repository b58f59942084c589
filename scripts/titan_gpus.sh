#!/bin/bash
# Train models by torchtitan on every GPU of this machine, go on from a checkpoint, and make model folders of the
# results, which lagwise evaluates. It stops at the first failure.
set -euo pipefail
out=${1:?name a new folder for the results}
gpus=$(nvidia-smi --list-gpus | wc -l)
mkdir "$out"
for config in tnn_48m fd_tnn_48m mega_39m megalodon_200m best_lm_14m; do
  run=(torchrun --nproc-per-node "$gpus" -m torchtitan.train --module lagwise.titan --config "$config"
    --dump_folder "$out/$config" --dataloader.dataset stdlib --training.seq_len 2048 --training.local_batch_size 4
    --training.global_batch_size -1 --checkpoint.enable --checkpoint.interval 50 --checkpoint.no-last-save-model-only
    --metrics.log_freq 5 --compile.enable)
  "${run[@]}" --training.steps 50
  "${run[@]}" --training.steps 100 activation_checkpoint:selective # from step 50
  python -m lagwise.titan.export "$out/$config/checkpoint/step-100" "$out/$config/model"
  lagwise evaluate "$out/$config/model" --data stdlib --tokens 100000
done
