# Pieces of a record, for scripts that others run on their machines: each is made once, and what is finished stays.
# To be sourced with `results`, a folder, and `MINUTES` for all pieces.

mkdir -p "$results" || exit 1
set -o pipefail
until=$((SECONDS + 60 * MINUTES))
failed=0

record() { # record NAME COMMAND...: once, and within the time that is left; NAME/said.txt has what it prints
    local name="$1" limit=$((until - SECONDS))
    shift
    [ -e "$results/$name/done" ] && return
    echo "== $name"
    mkdir -p "$results/$name"
    if [ "$limit" -gt 0 ] && timeout "$limit" "$@" | tee "$results/$name/said.txt"; then
        touch "$results/$name/done"
    else
        echo "$name: not finished; the same command goes on, and what was measured is kept"
        failed=$((failed + 1))
    fi
}

finish() { # say how it went, and end
    echo "$failed parts are not finished; results lie in $results"
    exit "$((failed > 0))"
}
