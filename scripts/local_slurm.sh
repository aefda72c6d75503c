#!/bin/bash
# A real Slurm of one node on this machine, for tests: no systemd, no accounting, nothing outside FOLDER, loopback only.
#
#   scripts/local_slurm.sh up FOLDER     writes FOLDER/env.sh (source it, then sbatch works) when the node is idle
#   scripts/local_slurm.sh down FOLDER   ends the jobs and the daemons that `up` started
#
# LOCAL_SLURM_CPUS (2) and LOCAL_SLURM_PORT (16917, and the next) may be set. FOLDER must be short: unix sockets.
set -euo pipefail
folder=$(mkdir -p "$2" && cd "$2" && pwd -P)
export SLURM_CONF=$folder/slurm.conf

began() { # a process's start in ticks since boot; fails if it is gone. A pid alone may have been given to another.
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  # shellcheck disable=SC2086
  set -- ${stat##*) }
  [[ $1 != [ZX] ]] && echo "${20}"
}

daemon() { # NAME COMMAND...: start it in a session of its own, and note who it is
  setsid "${@:2}" >>"$folder/$1.log" 2>&1 </dev/null &
  echo "$! $(began $!)" >"$folder/$1.pid"
}

until_true() { # SECONDS NAME COMMAND...
  local left=$(($1 * 5))
  until "${@:3}" >/dev/null 2>&1; do
    ((left-- > 0)) || { tail -n 20 "$folder/$2.log" >&2; echo "local_slurm: $2 did not come up" >&2; exit 1; }
    sleep 0.2
  done
}

stop() { # NAME: TERM, then KILL, to the very process that was started
  local pid start
  read -r pid start 2>/dev/null <"$folder/$1.pid" || return 0
  for signal in TERM KILL; do
    [[ $(began "$pid") == "$start" ]] || break
    kill -$signal "$pid" || true
    for _ in {1..100}; do [[ $(began "$pid") == "$start" ]] || break; sleep 0.1; done
  done
  rm -f "$folder/$1.pid"
}

node_is_idle() { [[ $(sinfo -h -o %t) == idle ]]; }

up() {
  local host port=${LOCAL_SLURM_PORT:-16917} memory
  host=$(hostname -s)
  # srun is called back on the address of the host name; with Debian's usual 127.0.1.1 it would wait for ever.
  [[ $(getent ahostsv4 "$host" | awk '{print $1; exit}') == 127.0.0.1 ]] ||
    { echo "local_slurm: put '127.0.0.1 $host' first in /etc/hosts" >&2; exit 1; }
  memory=$(awk '/MemTotal/ {print int($2 / 1024)}' /proc/meminfo)
  mkdir -p "$folder"/{state,spool,bin}
  (umask 077 && head -c 128 /dev/urandom >"$folder/munge.key")
  cat >"$SLURM_CONF" <<CONF
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
# A requeued job waits until its old credential has expired: 120 s by default.
AuthInfo=socket=$folder/munge.socket,cred_expire=5
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/state/slurmctld.pid
SlurmdPidFile=$folder/state/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
# Without it a job that asks for no memory takes all of it, and an array runs one by one.
DefMemPerCPU=256
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,bf_interval=5,sched_interval=5
# The sacct below knows a job only as long as the controller does.
MinJobAge=3600
KillWait=5
NodeName=node NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=${LOCAL_SLURM_CPUS:-2} RealMemory=$memory
PartitionName=main Nodes=node Default=YES DefaultTime=60 MaxTime=INFINITE State=UP
CONF
  # submitit asks sacct how a task ended, and waits for ever without an answer. This one asks the controller.
  cat >"$folder/bin/sacct" <<'SACCT'
#!/bin/bash
echo 'JobID|State|NodeList'
for word in "$@"; do
  [[ $word =~ ^[0-9]+ ]] || continue
  scontrol show job -o "${BASH_REMATCH[0]}" 2>/dev/null | awk '{
    delete f
    for (i = 1; i <= NF; i++) { p = index($i, "="); k = substr($i, 1, p - 1); if (!(k in f)) f[k] = substr($i, p + 1) }
    task = f["ArrayTaskId"]; if (task ~ /[^0-9]/) task = "[" task "]"
    print (task == "" ? f["JobId"] : f["ArrayJobId"] "_" task) "|" f["JobState"] "|" f["NodeList"]
  }'
done
SACCT
  chmod +x "$folder/bin/sacct"
  printf 'export SLURM_CONF=%q PATH=%q:$PATH\n' "$SLURM_CONF" "$folder/bin" >"$folder/env.sh"

  daemon munged munged --foreground --socket="$folder/munge.socket" --key-file="$folder/munge.key" \
    --log-file="$folder/munged.log" --pid-file="$folder/state/munged.pid" --seed-file="$folder/state/munged.seed"
  until_true 30 munged munge -n -S "$folder/munge.socket"
  daemon slurmctld slurmctld -D -f "$SLURM_CONF"
  until_true 60 slurmctld scontrol ping
  daemon slurmd slurmd -D -N node -f "$SLURM_CONF"
  until_true 60 slurmd node_is_idle
}

down() {
  [[ -e $SLURM_CONF ]] || return 0
  # First the jobs, while there are daemons to end them: a job's step outlives slurmd.
  timeout 20 scancel --user="$(id -un)" 2>/dev/null || true
  for _ in {1..60}; do [[ -z $(timeout 10 squeue -h 2>/dev/null) ]] && break; sleep 0.5; done
  for name in slurmd slurmctld munged; do stop "$name"; done
}

case $1 in
  up | down) "$1" ;;
  *) echo "usage: $0 up|down FOLDER" >&2 && exit 2 ;;
esac
