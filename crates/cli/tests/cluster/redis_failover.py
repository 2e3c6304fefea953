"""redis-py's cluster client, unmodified, while primaries change.

redis_failover.py failover PORT writes, says so, and goes on through a change of primary until its
input ends. Then it writes some more, and all that it was told is written is there.
"""

import itertools
import sys
import threading
import time

from redis.cluster import RedisCluster
from redis.exceptions import RedisError

# How long anything may take while a primary changes, in seconds.
PATIENCE = 60


def until(act):
    """Tries something again until it is done."""
    start = time.monotonic()
    while True:
        try:
            return act()
        except RedisError:
            if time.monotonic() - start > PATIENCE:
                raise
            time.sleep(0.01)


client = RedisCluster(host="127.0.0.1", port=int(sys.argv[2]), decode_responses=True)
written, numbers = {}, itertools.count()


def write(count):
    for number in itertools.islice(numbers, count):
        key = f"py {number % 500}"
        assert until(lambda: client.set(key, number)), key
        written[key] = str(number)


write(200)
print("works", flush=True)
over = threading.Thread(target=sys.stdin.read, daemon=True)
over.start()
while over.is_alive():
    write(1)
write(200)
for key, value in written.items():
    assert until(lambda: client.get(key)) == value, key
