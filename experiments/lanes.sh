#!/bin/bash
# The whole suite on one GPU as several processes side by side, each with its own rows: while one compiles or looks at votes,
# the others keep the GPU busy.
#
#     experiments/lanes.sh SECONDS OUT RUNS     records go to OUT/suite and OUT/audits, logs to OUT, weights to RUNS
#
# What is in OUT and RUNS already is gone on with. Choices on held-out data are made first, unless OUT/suite has them.
set -u
seconds=$1 out=$2 runs=$3
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here/../src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=4
mkdir -p "$out/suite" "$out/audits"
SECONDS=0

left() { echo $((seconds - SECONDS > 1 ? seconds - SECONDS : 1)); }
suite() { timeout $(($(left) + 15)) python "$here/suite.py" --out "$out/suite" --runs "$runs" --seconds "$(left)" "$@"; }
audit() { timeout "$(left)" python "$here/audits.py" rows --suite "$out/suite" --out "$out/audits" --runs "$runs" "$@"; }

# Rows of the tables: certified with few votes, attacked, and gone on with.
rows() {
  suite --backend compile --passes 10000:10000 --only "$@"
  audit --certificates 50 --only "$@"
  suite --backend compile --passes 10000:100000 --only "$@"
}
# Rows of the figures: a part of the test set.
figure() { suite --passes 500:4000 1000:10000 --shard "$1" --only "${@:2}"; }

suite --choose
while read -r lane names; do
  read -ra names <<< "$names"
  $lane "${names[@]}" >> "$out/$lane-${names[0]//\//-of-}.log" 2>&1 < /dev/null &
done <<'LANES'
rows cifar10-certification cifar10-certification-uniform
rows cifar10-certification-laplace
rows cifar10-alm cifar10-bands
rows cifar10-isotropic-1 cifar10-isotropic-0.5 cifar10-isotropic-0.25
rows cifar10-consistency-0.21 cifar10-consistency-0.15 cifar10-basis cifar10-ensemble-0.25
rows cifar10-consistency-0.42 cifar10-consistency-0.32 cifar10-consistency-0.35 cifar10-ensemble-0.35
rows mnist-certification mnist-basis
figure 1/3 cifar10-versus-* cifar10-universal-*
figure 2/3 cifar10-versus-* cifar10-universal-*
figure 3/3 cifar10-versus-* cifar10-universal-*
figure 1/1 mnist-versus-*
LANES
wait
