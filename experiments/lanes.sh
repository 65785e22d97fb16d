#!/bin/bash
# The suite on one GPU as five processes side by side, each with its own rows: while one compiles or looks at votes, the
# others keep the GPU busy.
#
#     experiments/lanes.sh SECONDS OUT RUNS     records go to OUT/suite and OUT/audits, logs to OUT, weights to RUNS
set -u
seconds=$1 out=$2 runs=$3
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here/../src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2 TORCHINDUCTOR_COMPILE_THREADS=4
mkdir -p "$out/suite"
cp -n "$here"/recorded/suite/choice-*.json "$out/suite"  # what was chosen on held-out data stays chosen
SECONDS=0

suite() { python "$here/suite.py" --out "$out/suite" --runs "$runs" --seconds $((seconds - SECONDS)) "$@"; }
audit() { timeout $((seconds - SECONDS + 1)) python "$here/audits.py" rows --suite "$out/suite" --out "$out/audits" --runs "$runs" "$@"; }

gaussian() {
  suite --backend compile --passes 10000:10000 --only cifar10-certification cifar10-isotropic-1 cifar10-isotropic-0.5
  audit --certificates 100 --only cifar10-isotropic-1 cifar10-isotropic-0.5
}
basis() {
  suite --backend compile --passes 10000:10000 --only cifar10-basis
  audit --certificates 100 --only cifar10-basis
  suite --backend compile --passes 10000:100000 --only cifar10-basis cifar10-ensemble-0.25
}
sizes() {
  suite --backend compile --passes 10000:10000 --choose cifar10-alm \
    --only cifar10-alm cifar10-certification-laplace cifar10-certification-uniform
  audit --certificates 100 --only cifar10-alm
  suite --backend compile --passes 10000:100000 --only cifar10-alm cifar10-certification-laplace cifar10-bands
}
consistency() {
  suite --backend compile --passes 10000:10000 10000:100000 --only cifar10-consistency-0.35
  audit --certificates 100 --only cifar10-consistency-0.35
  suite --backend compile --passes 10000:10000 10000:100000 --only cifar10-ensemble-0.35
}
figures() {
  suite --passes 500:4000 --choose 'mnist-*' cifar10-dataset --only 'cifar10-versus-*' 'cifar10-universal-*'
  suite --backend compile --passes 10000:10000 --only mnist-certification mnist-basis
  audit --certificates 100 --only mnist-basis
}

for name in gaussian basis sizes consistency figures; do $name > "$out/$name.log" 2>&1 & done
wait
