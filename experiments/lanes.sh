#!/bin/bash
# The suite on one GPU as many processes side by side, each with its own rows: while one compiles or looks at votes, the
# others keep the GPU busy.
#
#     experiments/lanes.sh SECONDS OUT RUNS     records go to OUT/suite and OUT/audits, logs to OUT, weights to RUNS
set -u
seconds=$1 out=$2 runs=$3
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here/../src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=4
mkdir -p "$out/suite" "$out/audits"
cp -rn "$here/recorded/suite/." "$out/suite"  # choices stay, and what is open is gone on with if training repeats
SECONDS=0

left() { echo $((seconds - SECONDS > 1 ? seconds - SECONDS : 1)); }
suite() { timeout $(($(left) + 15)) python "$here/suite.py" --out "$out/suite" --runs "$runs" --seconds "$(left)" "$@"; }
audit() { timeout "$(left)" python "$here/audits.py" rows --suite "$out/suite" --out "$out/audits" --runs "$runs" "$@"; }
row() { suite --backend compile --only "$1" --passes "${@:2}"; }

certification() { row cifar10-certification 10000:10000 10000:100000; }
laplace() { row cifar10-certification-laplace 10000:10000; }
alm() {
  row cifar10-alm 10000:10000
  audit --certificates 50 --only cifar10-alm
  row cifar10-bands 10000:10000
  audit --certificates 50 --only cifar10-bands
}
isotropic() { row "cifar10-isotropic-$1" 10000:10000; audit --certificates 50 --only "cifar10-isotropic-$1"; }
consistency() { row "cifar10-consistency-$1" 10000:10000; audit --certificates 50 --only "cifar10-consistency-$1"; }
versus() {
  suite --passes 500:4000 --shard "$1" --only 'cifar10-versus-*' 'cifar10-universal-*-gaussian'
  [ "$1" = 1/2 ] && audit --certificates 25 --only cifar10-versus-{pattern-2,dataset,basis}
}
universal() { suite --passes 500:4000 --shard "$1" --only cifar10-universal-*-{laplace,expinf,uniform,powerlaw}; }

while read -r lane arguments; do
  # shellcheck disable=SC2086
  $lane $arguments > "$out/$lane-${arguments//[ \/:]/-}.log" 2>&1 < /dev/null &
done <<'LANES'
certification
laplace
alm
isotropic 1
isotropic 0.5
consistency 0.15
consistency 0.21
consistency 0.32
consistency 0.42
versus 1/2
versus 2/2
universal 1/3
universal 2/3
universal 3/3
LANES
wait
