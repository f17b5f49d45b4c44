#!/usr/bin/env bash
# Slurm's Prolog: drain the node if healthcheck.sh found it bad within the last day.
#
#   slurm.conf:   Prolog=/path/to/prolog.sh
#
# It measures nothing and starts no program: it reads the first line of a local file. Exit code 1
# makes Slurm drain the node and requeue the job; it is used for a fresh verdict `fail` only. A
# verdict that is missing, older than MAX_AGE_S, from the future, unreadable or of another owner,
# and every fault of this script, is exit code 0. To change:
STATE=${STATE:-/run/torchcoll/health} # as in healthcheck.sh
MAX_AGE_S=${MAX_AGE_S:-86400}
# After a repair: the next healthcheck.sh on the idle node replaces the verdict; or delete STATE.
# After a change of driver or NCCL: measure a new baseline first, or every node may fail its check.

failed=no
judge() {
    [ -f "$STATE" ] && [ -O "$STATE" ] || return
    read -r written verdict reason <"$STATE" || return
    case $written in '' | *[!0-9]* | 0* | ????????????*) return ;; esac
    printf -v now '%(%s)T' -1
    [ $((now - written)) -ge 0 ] && [ $((now - written)) -le "$MAX_AGE_S" ] || return
    [ "$verdict" != fail ] || failed=yes
}
judge 2>/dev/null
[ "$failed" = yes ] || exit 0
echo "torchcoll: this node failed its health check: $reason" >&2
exit 1
