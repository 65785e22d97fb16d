#!/bin/bash
# Trainings, certifications and checks of several rows side by side on one GPU, each as soon as what it needs is there:
#
#     experiments/jobs.sh SECONDS RUNS PLAN
#
# PLAN is a file of lines `NAME NEEDS COMMAND…`: the job's name, the jobs that it waits for (with commas; - for none), and a step
# of record.sh, or any other command, in which RUNS stands for the folder, as in
#
#     wide -    train RUNS/wide cifar10-sphere law.scale=0.5 epochs=50
#     sure wide certify RUNS/wide 0,1 --data cifar10 --n 100000 --backend compile --precision bf16
#     seen sure check RUNS/wide
#
# Stopped by the end of its time, or run again, it goes on where it was: RUNS/done has what is finished, RUNS/log what was said,
# RUNS/log/times.txt how long each took. A job that fails ends all that wait for it, and the others go on.
set -u
seconds=$1 runs=$2 plan=$3
here=$(cd "$(dirname "$0")" && pwd) end=$(($(date +%s) + seconds))
export PYTHONPATH=$here/../src PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=4 COLUMNS=150
mkdir -p "$runs/log" "$runs/done"
rm -f "$runs"/done/*.failed

left() { echo $((end - $(date +%s) > 1 ? end - $(date +%s) : 1)); }
# Wait for all of them; not for what has failed, or fails to be ready in time.
ready() {
  local need
  for need in ${1//,/ }; do
    until [ "$need" = - ] || [ -e "$runs/done/$need" ]; do
      if [ -e "$runs/done/$need.failed" ] || [ "$(left)" -le 3 ]; then return 1; fi
      sleep 0.5
    done
  done
}
job() {
  local name=$1 needs=$2 code=0 begun
  shift 2
  case $1 in train | certify | check) set -- bash "$here/record.sh" "$@" ;; esac
  if ! ready "$needs"; then touch "$runs/done/$name.failed"; return; fi
  begun=$(date +%s)
  timeout -s TERM -k 8 "$(left)" "$@" >> "$runs/log/$name.log" 2>&1 < /dev/null || code=$?
  if [ $code = 0 ]; then touch "$runs/done/$name"; else touch "$runs/done/$name.failed"; fi
  echo "$name: $(($(date +%s) - begun)) s, exit $code" >> "$runs/log/times.txt"
}
while read -r name needs command; do
  if [ -z "$name" ] || [ "${name#\#}" != "$name" ] || [ -e "$runs/done/$name" ]; then continue; fi
  job "$name" "$needs" ${command//RUNS/$runs} &
done < "$plan"
wait
cat "$runs/log/times.txt"
