#!/usr/bin/env bash
# Checks that need a GPU, in ten minutes at most; run it from a checkout after make setup:
#
#   scripts/gpu_check.sh              # writes results/gpu/<GPU>/: records, tables, shapes-*.json
#   scripts/gpu_check.sh --rehearse   # the same steps at toy sizes on a CPU, into a temporary folder
#
# 1. the tests marked gpu; 2. time per cycle on a random target of Vicuna-7B's shape (scripts/benchmarks/gpu_shapes.py),
# on the stock module and on CUDA graphs;
# 3. the embedded model in bfloat16 and float16: every method that has weights, ten questions a task, T=0 and T=1.
# A step that runs out of its time is stopped between two blocks; the same command goes on with what it lacks.
# DRAFTBENCH_PYTHON names another Python than .venv's, DRAFTBENCH_TOKENS the new tokens of a turn.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
python=${DRAFTBENCH_PYTHON:-.venv/bin/python}
tokens=${DRAFTBENCH_TOKENS:-24}
export PYTHONUNBUFFERED=1 PYTHONPATH=$PWD

if [[ ${1:-} == --rehearse ]]; then
  out=$(mktemp -d) shapes=(--tiny --device cpu --dtype float32 --rounds 1 --prompt 20 --tokens 6)
  dtypes=(bfloat16 float32) # float16 is slow on a CPU
  runtimes=(hf fused)       # graph needs a GPU
  grid=(model.device=cpu task.count=1 decode.max_new_tokens=4 measure.warmup_tokens=2 "task=[gsm8k]")
else
  name=$("$python" -c 'import torch; print(torch.cuda.get_device_name().replace(" ", "-"))' 2>/dev/null) ||
    { echo "no GPU that torch sees; scripts/gpu_check.sh --rehearse runs without one" >&2; exit 2; }
  out=results/gpu/$name shapes=() dtypes=(bfloat16 float16) runtimes=(hf graph)
  grid=(model.device=cuda task.count=10 decode.max_new_tokens="$tokens")
fi
mkdir -p "$out"

failed=()
step() { # name, seconds, command: its output is shown and kept
  local name=$1 seconds=$2 code
  shift 2
  echo "== $name ($(date -u +%T), at most $seconds s): $*"
  timeout --signal=TERM --kill-after=20 "$seconds" "$@" 2>&1 | tee "$out/$name.log"
  code=${PIPESTATUS[0]}
  [[ $code -eq 0 ]] || failed+=("$name (exit code $code)")
}

step tests 100 "$python" -m pytest -m gpu -rs -s
for runtime in "${runtimes[@]}"; do
  step "shapes-$runtime" 80 "$python" -m scripts.benchmarks.gpu_shapes --runtime "$runtime" --results "$out" "${shapes[@]}"
done
for dtype in "${dtypes[@]}"; do
  step "$dtype" 160 "$python" -m bench.run table=table1 profile=embedded model.dtype="$dtype" results="$out/$dtype" "${grid[@]}"
done

echo "== written to $out ($(date -u +%T))"
if ((${#failed[@]})); then
  printf 'NOT DONE: %s\n' "${failed[@]}" >&2
  exit 1
fi
