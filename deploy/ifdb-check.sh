#!/bin/sh
# Is the task queue of the IFDB site well? Exit code 0: yes. 1: something needs attention. 2: the worker or Redis is down.
# Every five minutes, from cron or a monitor. It takes the password from the site's settings, never from a command line.
SITE=${SITE:-/home/ifdb/ifdb}
PYTHON=${PYTHON:-$SITE/venv/bin/python}

say() { echo "$1: $2"; exit "$3"; }

for unit in ifdb-worker redis-server; do
    state=$(systemctl is-active "$unit" 2>/dev/null)
    [ "$state" = active ] || say CRITICAL "$unit is ${state:-unknown}" 2
done
cd "$SITE" || say CRITICAL "there is no $SITE" 2
report=$("$PYTHON" manage.py redis_queue_status 2>&1)
case $? in
    0) say OK "the task queue is well" 0 ;;
    1) say WARNING "$report" 1 ;;
    *) say CRITICAL "$report" 2 ;;
esac
