#!/bin/bash
# The comparison of methods.py on one GPU: several rows side by side, most important first. Then those that are trained get
# more votes.
#
#     experiments/methods.sh SECONDS OUT RUNS [LANES] [ROW …]     5 lanes and all rows by default
#
# In the environment: training=0 begins a training however little time is left; further="100000" are the votes of the later
# passes ("" for none); more="--all" holds options of methods.py. A row may be
# NAME-0.25 or NAME-1.
# Records go to OUT (OUT/methods.json holds them all), logs to OUT/logs, weights to RUNS; what is there already is gone on with.
set -u
end=$(($(date +%s) + $1)) out=$2 runs=$3 lanes=${4:-5}
shift $(($# < 4 ? $# : 4))
here=$(cd "$(dirname "$0")" && pwd)
rows=${*:-consistency catrs acr smoothadv sphere macer smoothmix gaussian stability drt}
export here end out runs PYTHONPATH=$here/../src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=4
mkdir -p "$out/logs" "$runs"

left() { echo $((end - $(date +%s) > 1 ? end - $(date +%s) : 1)); }
job() {
  local row=$1
  timeout $(($(left) + 15)) python3 "$here/methods.py" "$row" --out "$out" --runs "$runs" --seconds "$(left)" ${more:-} "${@:2}" \
    >> "$out/logs/$row.log" 2>&1 < /dev/null || true
}
export -f left job
side_by_side() { printf '%s\n' $rows | xargs -P "$lanes" -I {} bash -c "job {} $*"; }

side_by_side --caps 10000 --training "${training:-200}"
for caps in ${further-30000 100000}; do
  [ "$(left)" -gt 30 ] && side_by_side --caps "$caps" --training 1000000
done
python3 "$here/methods.py" --out "$out" --merge "$out/methods.json"
