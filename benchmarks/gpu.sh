#!/usr/bin/env bash
# Records on a machine with a GPU what the other scripts record on a CPU: methods with passes as heavy as LlamaGen-XL's
# and an 8B model's, eagerly and captured; methods for videos; passes. Ten minutes in all. What is finished stays, so
# the same command goes on where time ran out.
#
#     bash benchmarks/gpu.sh                     # into benchmarks/results/gpu, the table in table.md
#     RESULTS=/tmp/gpu MINUTES=30 BACKEND=inductor bash benchmarks/gpu.sh     # captured steps are fused, too
#     DEVICE=cpu SIZES=tiny BATCHES=1 bash benchmarks/gpu.sh                  # does it run? Its figures mean nothing
#
# Without a GPU it says so and does nothing; a part that fails or runs out of time is named, and the others go on.
set -u

cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python="${PYTHON:-python}"
device="${DEVICE:-cuda}"
results="${RESULTS:-benchmarks/results/gpu}"
methods="${METHODS:-jacobi,jacobi-wide,scd,scd-wide,vvs,vvs-paper-uniform,likeness-quality,rows-fast}"
MINUTES="${MINUTES:-10}"

ask='import sys, torch; print("torch", torch.__version__); sys.exit(not torch.cuda.is_available())'
if [ "$device" = cuda ] && ! torch="$("$python" -c "$ask")"; then
    echo "skipped: torch finds no GPU here ($torch)"
    exit 0
fi
. benchmarks/pieces.sh

for batch in ${BATCHES:-1 8}; do
    for size in ${SIZES:-XL 8B}; do
        for steps in eager captured; do
            name="${size}_${batch}_$steps"
            record "$name" "$python" benchmarks/weighted_bench.py --device "$device" --apart ${MODEL:+--model "$MODEL"} \
                --methods "$methods" --weighted_by "$size" --batch_size "$batch" --num_prompts $((2 * batch)) \
                $([ "$steps" = captured ] && echo --compile "${BACKEND:-eager}") --output "$results/$name"
        done
    done
done
record "video_1_eager" "$python" -m vargen bench --task video --device "$device" --methods sd,flash \
    --num_videos "${VIDEOS:-4}" --output "$results/video_1_eager"
# shellcheck disable=SC2046
record "passes" "$python" benchmarks/passes.py --device "$device" --output "$results/passes/passes.json" \
    $([ "$device" = cuda ] && echo --models shipped XL --dtypes bfloat16 --tokens 1 8 32 --compiled --buffer_mib 1024 ||
        echo --smoke --no_kernels)
[ "$device" = cuda ] && record "graphs" "$python" -m pytest -n 0 -q -m gpu tests/specdecode/graphs/test_static_step.py
"$python" benchmarks/gpu_table.py "$results"
finish
