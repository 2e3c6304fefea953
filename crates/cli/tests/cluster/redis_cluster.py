"""redis-py's cluster client, unmodified, while slots move.

redis_cluster.py HOST PORT REMORA CLUSTER ETCD
"""

import itertools
import subprocess
import sys

from redis.cluster import RedisCluster
from redis.exceptions import RedisClusterException

host, port, remora, cluster, etcd = sys.argv[1:]


def connect():
    return RedisCluster(host=host, port=int(port), decode_responses=True)


client = connect()
assert len(client.get_primaries()) == 2, client.get_primaries()
assert client.cluster_info(target_nodes=client.get_random_node())["cluster_state"] == "ok"
written, numbers = {}, itertools.count()


def write():
    for number in itertools.islice(numbers, 20):
        key = f"key {number % 500}"
        assert client.set(key, number)
        written[key] = str(number)
        assert client.get(key) == written[key]
    assert client.mset({"{t}a": number, "{t}b": number})
    assert client.mget("{t}a", "{t}b") == [str(number)] * 2
    with client.pipeline(transaction=False) as pipe:
        pipe.set("p", number).incr("q").get("p")
        assert pipe.execute()[2] == str(number)


# The second move is to a group that has no slot when the client comes.
moves = [("0-16383", "a"), ("0-8000,16001-16383", "b"), ("0-4000", "a"), ("100,2000-3000", "b")]
for slots, to in [*moves, ("4001-16000", "a")]:
    client = connect()
    write()
    move = [remora, "store", "cluster", "move", cluster, slots, to, "--etcd", etcd]
    with subprocess.Popen(move, stderr=subprocess.DEVNULL) as mover:
        while mover.poll() is None:
            write()
    assert mover.returncode == 0, move
    for key, value in written.items():
        assert client.get(key) == value, key

try:
    client.mget("a", "b")
    raise SystemExit("keys of two slots were answered for")
except RedisClusterException:
    pass
print(f"{next(numbers)} writes")
