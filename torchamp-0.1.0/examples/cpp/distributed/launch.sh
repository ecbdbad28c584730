#!/bin/sh
# Runs a program on several ranks of this machine, with torchrun's variables:
#
#     launch.sh 2 ./distributed --steps 200
#
# Once a rank has failed, the others are stopped, and it exits with 1.
if [ "$#" -lt 2 ]; then
  echo "usage: $0 ranks program [argument…]" >&2
  exit 2
fi
export WORLD_SIZE="$1" MASTER_ADDR=127.0.0.1
export MASTER_PORT="${MASTER_PORT:-$((20000 + $$ % 10000))}"
shift

ranks=
trap 'trap "" TERM; kill $ranks 2>/dev/null; wait; exit 1' INT TERM
rank=0
while [ "$rank" -lt "$WORLD_SIZE" ]; do
  {
    RANK=$rank "$@" &
    program=$!
    trap 'kill $program 2>/dev/null' TERM
    wait "$program" || kill -s TERM $$
  } &
  ranks="$ranks $!"
  rank=$((rank + 1))
done
wait
