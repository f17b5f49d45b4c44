#!/usr/bin/env bash
# Slurm's HealthCheckProgram: a short run on an idle node, whose verdict prolog.sh reads.
#
#   slurm.conf:   HealthCheckProgram=/path/to/healthcheck.sh
#                 HealthCheckInterval=3600
#                 HealthCheckNodeState=IDLE,CYCLE
#
# It measures only if Slurm says that the node is idle (a drained node without jobs is, too), and
# stops as soon as a job starts. It ends before Slurm's limit of 60 s, leaves no process, and exits
# with 0 whatever happens. The verdict is that of `torchcoll check`: pass (PASS or WARN), fail, or
# unknown where it could not be reached, which drains nothing. To change:
PYTHON=${PYTHON:-python3}          # with torchcoll
RANKS=${RANKS:-8}                  # GPUs of the node
ARGS=${ARGS:---collectives all_reduce,all_gather -b 64M -e 1G -f 4 --max-time 0.3}
CHECK=${CHECK:-}                   # the reference: --baseline FILE or --fabric NAME;
                                   # empty: what torchcoll knows of the machine's fabric
STATE=${STATE:-/run/torchcoll/health} # 'SECONDS-SINCE-1970 VERDICT REASON', on a local file system
DEADLINE_S=${DEADLINE_S:-45}
NODE=${NODE:-${HOSTNAME%%.*}}      # the name of this node in slurm.conf
trap 'exit 0' EXIT HUP INT TERM
umask 022
NOT_IDLE=77 FAILED=1 # exit codes of measure

# A job step of Slurm on this node: 'slurmstepd: [JOB.STEP]'. A bare slurmstepd is no job.
has_job() { pgrep -f '^slurmstepd: \[' >/dev/null; }

measure() {
    set +m # all ranks stay in the process group of this function
    state=$(scontrol --oneliner show node "$NODE" | sed -n 's/.* State=\([^ ]*\).*/\1/p')
    case $state in
        IDLE | IDLE+DRAIN | IDLE+CLOUD | IDLE+CLOUD+DRAIN | IDLE+DYNAMIC_NORM) ;;
        *) exit "$NOT_IDLE" ;;
    esac
    ! has_job || exit "$NOT_IDLE"
    # Not with torchrun, whose workers leave the process group and would outlive the deadline.
    ranks=()
    for ((rank = 0; rank < RANKS; rank++)); do
        # shellcheck disable=SC2086  # ARGS holds several words
        RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=$RANKS LOCAL_WORLD_SIZE=$RANKS OMP_NUM_THREADS=1 \
            "$PYTHON" -m torchcoll.suite $ARGS --quiet --label node="$NODE" \
            --rendezvous-file "$folder/rendezvous" -J "$folder/run.jsonl" &
        ranks+=($!)
    done
    for pid in "${ranks[@]}"; do
        code=0
        wait "$pid" || code=$?
        [ "$code" -le 1 ] || exit 3 # 1: a case failed, which check judges
    done
    # shellcheck disable=SC2086  # CHECK holds several words
    "$PYTHON" -m torchcoll check "$folder/run.jsonl" $CHECK --gate >"$folder/answer"
}

mkdir -p "${STATE%/*}" || exit
exec 9>"$STATE.lock"
flock --nonblock 9 || exit # another check is under way
folder=$(mktemp -d "${STATE%/*}/check.XXXXXX") || exit
set -m # a background job gets a process group of its own
measure >"$STATE.log" 2>&1 9>&- &
group=$!
set +m
trap 'kill -KILL -- -"$group" 2>/dev/null; rm -rf "$folder"; exit 0' EXIT HUP INT TERM

verdict=unknown reason="no verdict after $DEADLINE_S s"
while [ "$SECONDS" -lt "$DEADLINE_S" ]; do
    if ! kill -0 "$group" 2>/dev/null; then
        code=0
        wait "$group" || code=$?
        # The first line of check, or else the last one of what went wrong before.
        reason=$({ grep -m 1 . "$folder/answer" || grep . "$STATE.log" | tail -n 1; } 2>/dev/null |
            cut -c 1-200)
        case $code in
            0) verdict=pass ;;
            "$FAILED") verdict=fail ;;
            "$NOT_IDLE") exit ;;
        esac
        break
    fi
    ! has_job || exit # the last verdict stays
    sleep 0.5
done
printf '%s %s %s\n' "$(date +%s)" "$verdict" "${reason:-exit code $code}" >"$STATE.new" && mv -f "$STATE.new" "$STATE"
