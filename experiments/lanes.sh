#!/bin/bash
# The whole suite on one GPU: a list of jobs, most important first, and several processes side by side that take one after
# the other. While one compiles or looks at votes, the others keep the GPU busy.
#
#     experiments/lanes.sh SECONDS OUT RUNS [LANES]     4 lanes by default
#
# Records go to OUT/suite and OUT/audits, logs to OUT/logs, weights to RUNS; what is there already is gone on with. Choices
# on held-out data are made first, unless OUT/suite has them.
set -u
export out=$2 runs=$3 lanes=${4:-4}
here=$(cd "$(dirname "$0")" && pwd) end=$(($(date +%s) + $1))
export here end PYTHONPATH=$here/../src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=4
mkdir -p "$out/suite" "$out/audits" "$out/logs"

left() { echo $((end - $(date +%s) > 1 ? end - $(date +%s) : 1)); }
suite() { timeout $(($(left) + 15)) python "$here/suite.py" --out "$out/suite" --runs "$runs" --seconds "$(left)" "$@"; }
attack() { timeout "$(left)" python "$here/audits.py" rows --suite "$out/suite" --out "$out/audits" --runs "$runs" "$@"; }

# Rows of the tables, all of the test set: with votes for most inputs, and attacked; later with votes for all.
rows() { suite --backend compile --passes 10000:10000 --only "$@" && attack --certificates 25 --only "$@"; }
deeper() { suite --backend compile --passes 10000:10000 10000:100000 --only "$@" && attack --certificates 25 --only "$@"; }
# One network of an ensemble, so that those of one row are trained side by side; the row itself comes in the second list.
network() { suite --network "$1" --only "${@:2}"; }
# Rows of the figures, a part of the test set: first a small one, and attacked; later a larger one.
figure() { suite --passes 500:10000 --only "$@" && attack --certificates 12 --only "$@"; }
wider() { suite --passes 1000:10000 --only "$@"; }

job() {
  local name="$*"
  "$@" >> "$out/logs/${name//[^a-z0-9.-]/_}.log" 2>&1 < /dev/null || true
}
export -f left suite attack rows deeper network figure wider job
side_by_side() { xargs -P "$lanes" -I {} bash -fc 'job {}'; }

suite --choose
side_by_side <<'JOBS'
rows cifar10-certification
rows cifar10-consistency-0.21
network 2 cifar10-ensemble-*
network 3 cifar10-ensemble-*
network 4 cifar10-ensemble-*
rows cifar10-consistency-0.42
rows cifar10-consistency-0.32
rows cifar10-certification-laplace
rows cifar10-alm
rows cifar10-isotropic-1
figure cifar10-universal-dataset-laplace cifar10-universal-dataset-expinf
figure cifar10-universal-dataset-uniform cifar10-universal-dataset-powerlaw
figure cifar10-versus-dataset cifar10-universal-dataset-gaussian
figure cifar10-versus-dataset-no-offset cifar10-universal-pattern-uniform
figure cifar10-versus-pattern-2 cifar10-universal-pattern-gaussian
figure cifar10-versus-isotropic cifar10-universal-isotropic-gaussian
figure cifar10-versus-certification cifar10-universal-certification-gaussian
figure cifar10-versus-certification-no-offset cifar10-versus-certification-gamma-5
figure cifar10-bands
figure cifar10-versus-pattern-1 cifar10-versus-pattern-inf
figure cifar10-universal-isotropic-laplace cifar10-universal-isotropic-expinf
figure cifar10-universal-isotropic-uniform cifar10-universal-isotropic-powerlaw
figure cifar10-universal-pattern-laplace cifar10-universal-pattern-expinf
figure cifar10-versus-basis cifar10-universal-pattern-powerlaw
rows mnist-certification
rows mnist-basis
rows cifar10-isotropic-0.5
rows cifar10-isotropic-0.25
rows cifar10-certification-uniform
rows cifar10-consistency-0.15
rows cifar10-sphere-0.5
rows cifar10-gaussian-0.08
rows cifar10-consistency-0.12
rows cifar10-sphere-0.19
rows cifar10-sphere-0.3
rows cifar10-sphere-0.42
rows cifar10-sphere-0.52
rows cifar10-sphere-drop-0.42 cifar10-sphere-on-0.42 cifar10-sphere-0.54 cifar10-sphere-far-0.54 cifar10-sphere-far-0.57 cifar10-sphere-0.75
rows cifar10-sphere-1
rows mnist-sphere-*
rows mnist-lenet-* mnist-consistency-* mnist-smoothmix-0.25 mnist-catrs-0.57
figure cifar10-universal-certification-laplace cifar10-universal-certification-expinf
figure cifar10-universal-certification-uniform cifar10-universal-certification-powerlaw
figure cifar10-versus-certification-alm-loss
figure mnist-versus-*
JOBS
side_by_side <<'JOBS'
deeper cifar10-ensemble-0.32 cifar10-consistency-0.32
deeper cifar10-ensemble-0.42 cifar10-consistency-0.42
deeper cifar10-ensemble-on-0.3 cifar10-ensemble-on-0.42
deeper cifar10-consistency-0.21
wider cifar10-bands
deeper cifar10-certification
deeper cifar10-consistency-0.15
deeper cifar10-sphere-0.5
deeper cifar10-gaussian-0.08
deeper cifar10-consistency-0.12
deeper cifar10-sphere-0.19
deeper cifar10-sphere-0.3
deeper cifar10-sphere-0.42
deeper cifar10-sphere-0.52
deeper cifar10-sphere-drop-0.42 cifar10-sphere-on-0.42 cifar10-sphere-0.54 cifar10-sphere-far-0.54 cifar10-sphere-far-0.57 cifar10-sphere-0.75
deeper cifar10-sphere-1
deeper mnist-sphere-*
deeper mnist-lenet-* mnist-consistency-* mnist-smoothmix-0.25 mnist-catrs-0.57
deeper cifar10-certification-laplace
deeper cifar10-alm
deeper cifar10-isotropic-1
deeper cifar10-isotropic-0.*
deeper cifar10-certification-uniform
deeper mnist-certification mnist-basis
wider cifar10-versus-*
wider mnist-versus-*
JOBS
