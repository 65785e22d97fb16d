#!/bin/bash
# One row of the leaderboard, from a preset to a checked entry, on one GPU:
#
#     experiments/record.sh train RUN PRESET [NAME=VALUE …]     ucan train, with changes of the preset
#     experiments/record.sh certify RUN RADII [OPTION …]        all test inputs, votes until the radii are decided; RUN-certified
#     experiments/record.sh check RUN [REPLAYED] [ATTACKED]     an audit, the entry RUN.json, and its check, kept in RUN.check.json;
#                                                               200 and 120 by default
#
# Each step can be run again: it goes on where it stopped. The seed is derived, so that anyone can draw the same votes. Seconds
# of each step are appended to RUN.seconds.
set -u
here=$(cd "$(dirname "$0")" && pwd)
export PYTHONPATH=$here/../src PYTHONUNBUFFERED=1
step=$1 run=$2
shift 2
mkdir -p "$(dirname "$run")"
ucan() { python3 -m ucan "$@"; }
case $step in
train)
  preset=$1
  shift
  ucan train "$preset" ${*/#/--set } -o "$run" ;;
certify)
  radii=$1
  shift
  ucan certify --model "$run" --stop "$radii" --seed derived -o "$run-certified" "$@" ;;
check)
  ucan audit "$run-certified" --max "${2:-120}" --factors 0.999 --mode live --steps 20 --draws 8
  ucan export "$run-certified" --format leaderboard -o "$run.json"
  python3 - "$run.json" "$run-certified" << 'END'
import json, sys
from pathlib import Path
from ucan.runs.read import Run
from ucan.training.together import Together
path = Path(sys.argv[1])
entry = json.loads(path.read_text())
networks = len(Together.of(Run.open(sys.argv[2]).config.model.spec).folders)
entry["claim"] |= {"networks": networks, "extra_data": False}
path.write_text(json.dumps(entry, indent=1, ensure_ascii=False) + "\n")
END
  ucan leaderboard check "$run.json" --results "$run-certified" --inputs "${1:-200}" --attacks 0 --keep ;;
esac
code=$?
echo "$step: $SECONDS s, exit $code" >> "$run.seconds"
exit $code
