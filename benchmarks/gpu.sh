#!/usr/bin/env bash
# Records on a machine with a GPU what the other scripts record on a CPU: passes, eager and compiled, and methods with
# passes as heavy as LlamaGen-XL's. Under ten minutes. Rows that are there stay, so a run that was cut off goes on
# where it was.
#
#     bash benchmarks/gpu.sh                     # into benchmarks/results
#     RESULTS=/tmp/gpu SECONDS_EACH=60 bash benchmarks/gpu.sh
#
# Without a GPU it says so and does nothing; a part that fails or runs out of time is named, and the others go on.
set -u

cd "$(dirname "$0")/.." || exit 1
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python="${PYTHON:-python}"
results="${RESULTS:-benchmarks/results}"
limit="${SECONDS_EACH:-80}"

ask='import sys, torch; print("torch", torch.__version__); sys.exit(not torch.cuda.is_available())'
if ! torch="$("$python" -c "$ask")"; then
    echo "skipped: torch finds no GPU here ($torch)"
    exit 0
fi
mkdir -p "$results" || exit 1

failed=0
record() { # record NAME COMMAND...
    local name="$1"
    shift
    echo "== $name"
    timeout "$limit" "$@" || {
        echo "$name: ended with $? after at most $limit s; the rows that were measured are kept"
        failed=$((failed + 1))
    }
}

record "passes of the shipped model, B and L" \
    "$python" benchmarks/passes.py --device cuda --models shipped B L --tokens 1 8 32 64 \
    --buffer_mib 1024 --output "$results/passes_cuda.json"
record "passes of XL" \
    "$python" benchmarks/passes.py --device cuda --models XL --dtypes bfloat16 --tokens 1 8 32 64 --batch_sizes 1 8 \
    --buffer_mib 1024 --output "$results/passes_cuda.json"
record "cache lengths of XL" \
    "$python" benchmarks/passes.py --device cuda --models XL --dtypes bfloat16 --tokens 1 8 --lengths 256 1024 4096 \
    --buffer_mib 1024 --output "$results/passes_cuda.json"
record "compiled passes" \
    "$python" benchmarks/passes.py --device cuda --models shipped --dtypes bfloat16 --tokens 1 8 --compiled \
    --buffer_mib 1024 --output "$results/passes_compiled_cuda.json"
record "steps as graphs" \
    "$python" -m pytest -n 0 -q -m gpu tests/specdecode/graphs/test_static_step.py
record "methods with heavy passes" \
    "$python" benchmarks/weighted_bench.py --device cuda \
    --methods ar,jacobi,jacobi-wide,vvs-jacobi-wide,benchmarks/methods/eagle-sampled-25.yaml \
    --num_prompts 4 --weighted_by LlamaGen-XL --weight_dtype bfloat16 --output "$results/bench_weighted_cuda"
echo "$failed parts failed; results lie in $results"
exit "$((failed > 0))"
