# Starts a database as a user without privileges, and joins a table with itself in several processes,
# which share memory below /dev/shm.
set -e
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
as_user() {
  # A box of a server without root has a single user.
  if [ "$(awk '{ print $3 }' /proc/self/uid_map)" = 1 ]; then
    "$@"
  else
    setpriv --reuid=1000 --regid=1000 --clear-groups -- "$@"
  fi
}
query() { psql --host=/tmp/db --username=box --dbname=postgres --tuples-only --no-align --command="$1"; }
mkdir /tmp/db
chown 1000:1000 /tmp/db
cd /tmp/db
as_user "$bin/initdb" --pgdata=/tmp/db/data --username=box --auth=trust >/dev/null
as_user "$bin/pg_ctl" --pgdata=/tmp/db/data --wait --log=/tmp/db/log --options="-k /tmp/db -c listen_addresses= \
  -c dynamic_shared_memory_type=posix -c work_mem=128MB -c max_parallel_workers_per_gather=2 \
  -c min_parallel_table_scan_size=0 -c parallel_setup_cost=0 -c parallel_tuple_cost=0" start >/dev/null
query 'CREATE TABLE numbers AS SELECT i, md5(i::text) AS word FROM generate_series(1, 1000000) AS i' >/dev/null
query 'ANALYZE numbers' >/dev/null
join='SELECT count(*) FROM numbers AS a JOIN numbers AS b USING (word)'
query "EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) $join" | grep -o -E 'Workers Launched: [0-9]+|Parallel Hash Join|Memory Usage: [0-9]+'
query "$join"
as_user "$bin/pg_ctl" --pgdata=/tmp/db/data --mode=fast stop >/dev/null
