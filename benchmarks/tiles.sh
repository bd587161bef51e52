#!/usr/bin/env bash
# Records what rows cost, and what methods gain, on a processor with AMX: by tiles, and by the kernels without them. Two
# quiet cores; hours in all. What is finished stays, so the same command goes on. The folder is the record: send it whole.
#
#     bash benchmarks/tiles.sh                   # into benchmarks/results/tiles
#     SIZE=tiny PROCESSES=1 PROMPTS=1 BATCHES=1 METHODS=jacobi PASSES=--smoke RESULTS=/tmp/tiles bash benchmarks/tiles.sh
#
# The second asks whether it runs; its figures mean nothing. MODEL is the folder of another LlamaGen than the shipped one. A processor without AMX records the other column.
set -u

cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" OMP_NUM_THREADS="${OMP_NUM_THREADS:-2}"
python="${PYTHON:-python}"
results="${RESULTS:-benchmarks/results/tiles}"
size="${SIZE:-LlamaGen-XL}"
prompts="${PROMPTS:-4}"
methods="${METHODS:-jacobi,jacobi-wide,scd,scd-wide,vvs-jacobi,vvs-jacobi-wide,likeness-quality,rows-fast}"
MINUTES="${MINUTES:-1000}"
. benchmarks/pieces.sh

kind="$("$python" -m vargen --version --verbose)" || exit 1
echo "$kind"
case "$kind" in
*torch*)
    echo "skipped: the kernels are not built here; vargen --version --verbose says torch"
    exit 0
    ;;
*+amx*)
    kinds="auto off"
    record tests "$python" -m pytest -n 0 -q tests/specdecode/kernels/test_tiles.py # both forms of tiles
    ;;
*)
    kinds="${KINDS:-auto}"
    echo "this processor has no AMX: figures are those without tiles"
    ;;
esac

for tiles in $kinds; do
    export VARGEN_TILES="$tiles"
    # shellcheck disable=SC2086
    record "passes_$tiles" "$python" benchmarks/passes.py --num_threads "$OMP_NUM_THREADS" --dtypes bfloat16 \
        ${PASSES:---models XL shipped --tokens 1 4 8 16 32 64} --output "$results/passes_$tiles/passes.json"
    record "weighted_$tiles" "$python" benchmarks/weighted_bench.py --weighted_by "$size" --weight_dtype bfloat16 \
        --dtype bfloat16 --device cpu --methods "$methods" --num_prompts "$prompts" --processes "${PROCESSES:-5}" \
        ${MODEL:+--model "$MODEL"} --output "$results/weighted_$tiles"
    for batch in ${BATCHES:-1 8}; do
        record "shipped_${batch}_$tiles" "$python" -m vargen bench --dtype bfloat16 --device cpu --judge false \
            --methods "$methods" --batch_size "$batch" --num_prompts $((prompts * batch)) \
            --processes "${PROCESSES:-5}" ${MODEL:+--model "$MODEL"} --output "$results/shipped_${batch}_$tiles"
    done
    # Of the shipped model alone.
    [ -n "${MODEL:-}" ] || record "guided_$tiles" "$python" benchmarks/guided_seconds.py --dtype bfloat16 --batch_size "${batch}" \
        --num_prompts "$((prompts * batch))" --processes "${PROCESSES:-5}" --output "$results/guided_$tiles"
done
finish
