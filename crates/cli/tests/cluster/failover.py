"""A cluster client in Python, unmodified, while primaries change: redis-py's, or the one that CLIENT
names, valkey-py's (valkey) or Valkey GLIDE's (glide).

failover.py failover PORT writes, says so, and goes on through a change of primary until its
input ends. Then it writes some more, and all that it was told is written is there.
"""

import itertools
import os
import sys
import threading
import time

# How long anything may take while a primary changes, in seconds.
PATIENCE = 60


def until(act):
    """Tries something again until it is done."""
    start = time.monotonic()
    while True:
        try:
            return act()
        except Wrong:
            if time.monotonic() - start > PATIENCE:
                raise
            time.sleep(0.01)


def connect(name, port):
    """A client, and what its errors are."""
    if name == "redis":
        from redis import RedisError, cluster

        return cluster.RedisCluster(host="127.0.0.1", port=port), RedisError
    if name == "valkey":
        from valkey import ValkeyError, cluster

        return cluster.ValkeyCluster(host="127.0.0.1", port=port), ValkeyError
    import glide_sync as glide

    config = glide.GlideClusterClientConfiguration([glide.NodeAddress("127.0.0.1", port)])
    return glide.GlideClusterClient.create(config), glide.GlideError


name = os.environ.get("CLIENT", "redis")
client, Wrong = connect(name, int(sys.argv[2]))
written, numbers = {}, itertools.count()


def write(count):
    for number in itertools.islice(numbers, count):
        key = f"{name} in Python {number % 500}"
        assert until(lambda: client.set(key, str(number))), key
        written[key] = str(number).encode()


write(200)
print("works", flush=True)
over = threading.Thread(target=sys.stdin.read, daemon=True)
over.start()
while over.is_alive():
    write(1)
write(200)
for key, value in written.items():
    assert until(lambda: client.get(key)) == value, key
