# shellcheck shell=bash
# Sourced by gpu_check: runs steps with a time limit each, keeps going after a failure, and sums up.
# LOGS is the folder for logs; summary.py reads the steps.tsv in it.

# Whether STEPS, an extended regular expression, asks for this step.
wanted() { [[ $1 =~ ${STEPS:-.} ]]; }

# step NAME SECONDS FIGURE COMMAND...: FIGURE is an extended regular expression; the last line of the output that
# matches it is the step's figure in the table ('' for none). Steps that are not wanted are left out.
step() {
  local name=$1 limit=$2 figure=$3
  shift 3
  wanted "$name" || return 0
  local log=$LOGS/$name.log started status=0 found=
  say "$name"
  started=$(date +%s)
  timeout --kill-after=20 "$limit" "$@" >"$log" 2>&1 </dev/null || status=$?
  if [ -n "$figure" ]; then
    found=$(grep -aE "$figure" "$log" | tail -n 1 | tr '\t' ' ' || true)
  fi
  if [ "$status" -ne 0 ]; then
    tail -n 25 "$log"
    [ "$status" -ne 124 ] || echo "(no end within $limit s)"
  fi
  printf '%s\t%s\t%s\t%s\n' "$name" "$status" "$(($(date +%s) - started))" "$found" >>"$LOGS/steps.tsv"
}

# skip NAME REASON: a step that this machine or build cannot run, said in the table.
skip() {
  wanted "$1" || return 0
  printf '%s\tskipped\t0\t%s\n' "$1" "$2" >>"$LOGS/steps.tsv"
}
