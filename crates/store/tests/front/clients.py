"""redis-py, valkey-py, Valkey GLIDE and pymemcache against a store.

clients.py REDIS-PORT MEMCACHED-PORT
"""

import sys

import glide_sync as glide
import pymemcache
import redis
import valkey

redis_port, memcached_port = map(int, sys.argv[1:])


def ask(make, errors):
    """Asks as redis-py and its descendant do, which differ in their names."""
    for protocol in (2, 3):
        client = make(port=redis_port, protocol=protocol, decode_responses=True)
        client.flushall()
        assert client.ping()
        assert client.set("k", "v", ex=100) and client.get("k") == "v"
        assert 90 < client.ttl("k") <= 100
        assert client.set("k", "w", nx=True) is None
        assert client.mset({"a": 1, "b": 2}) and client.mget("a", "b", "c") == ["1", "2", None]
        assert client.incr("a", 5) == 6 and client.incrbyfloat("a", 0.5) == 6.5
        assert sorted(client.scan_iter()) == ["a", "b", "k"]
        with client.pipeline(transaction=True) as pipe:
            assert pipe.set("x", 1).incr("x").get("x").execute() == [True, 2, "2"]
        with client.pipeline() as pipe:
            pipe.watch("x")
            client.set("x", 9)
            pipe.multi()
            pipe.get("x")
            try:
                pipe.execute()
                raise SystemExit("a watched key changed, and the transaction ran")
            except errors.WatchError:
                pass
        assert client.info("server")["arch_bits"] == 64
        assert client.config_get("maxclients")["maxclients"] == "10000"
        assert client.client_setname("me") and client.client_getname() == "me"
        assert any(entry["name"] == "me" for entry in client.client_list())
        assert client.command_count() > 70
        assert client.getex("k", persist=True) == "v" and client.ttl("k") == -1
        assert client.getdel("k") == "v" and not client.exists("k")
        try:
            client.execute_command("SADD", "s", "x")
            raise SystemExit("SADD was answered")
        except errors.ResponseError as error:
            assert "unknown command" in str(error)
        client.close()


ask(redis.Redis, redis)
ask(valkey.Valkey, valkey)

for protocol in (glide.ProtocolVersion.RESP2, glide.ProtocolVersion.RESP3):
    address = glide.NodeAddress("127.0.0.1", redis_port)
    client = glide.GlideClient.create(
        glide.GlideClientConfiguration([address], protocol=protocol, client_name="glide")
    )
    assert client.flushall() == glide.OK and client.ping() == b"PONG"
    until = glide.ExpirySet(glide.ExpiryType.SEC, 100)
    assert client.set("k", "v", expiry=until) == glide.OK and client.get("k") == b"v"
    assert 90 < client.ttl("k") <= 100
    absent = glide.ConditionalChange.ONLY_IF_DOES_NOT_EXIST
    assert client.set("k", "w", conditional_set=absent) is None
    assert client.mset({"a": "1", "b": "2"}) == glide.OK
    assert client.mget(["a", "b", "c"]) == [b"1", b"2", None]
    assert client.incrby("a", 5) == 6 and client.incrbyfloat("a", 0.5) == 6.5
    cursor, keys = client.scan(b"0", count=100)
    assert cursor == b"0" and sorted(keys) == [b"a", b"b", b"k"]
    batch = glide.Batch(is_atomic=True)
    batch.set("x", "1").incr("x").get("x")
    assert client.exec(batch, raise_on_error=True) == [glide.OK, 2, b"2"]
    assert client.client_getname() == b"glide"
    assert client.getdel("k") == b"v" and client.exists(["k"]) == 0
    try:
        client.custom_command(["SADD", "s", "x"])
        raise SystemExit("SADD was answered")
    except glide.RequestError as error:
        assert "unknown command" in str(error)
    client.close()

client = pymemcache.Client(("127.0.0.1", memcached_port))
assert client.flush_all()
assert client.set("k", b"v", expire=100) and client.get("k") == b"v"
value, token = client.gets("k")
assert client.cas("k", b"w", token) and not client.cas("k", b"x", token)
assert client.set_many({"a": b"1", "b": b"2"}) == []
assert client.get_many(["a", "b", "c"]) == {"a": b"1", "b": b"2"}
assert client.set("n", b"10", noreply=False)
assert client.incr("n", 5) == 15 and client.decr("n", 1) == 14
assert client.append("k", b"!", noreply=False) and client.get("k") == b"w!"
assert client.touch("k", 10, noreply=False) and not client.touch("no", 1, noreply=False)
assert client.delete("k", noreply=False) and not client.delete("k", noreply=False)
assert b"version" in client.stats()
