// iovalkey against a store: clients.mjs REDIS-PORT, with iovalkey where Node looks for modules.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.STORE_CLIENTS}/package.json`);
const { Redis } = require("iovalkey");

const client = new Redis({ port: Number(process.argv[2]), host: "127.0.0.1" });
assert.equal(await client.flushall(), "OK");
assert.equal(await client.set("k", "v", "EX", 100), "OK");
assert.equal(await client.get("k"), "v");
const ttl = await client.ttl("k");
assert.ok(ttl > 90 && ttl <= 100);
assert.equal(await client.set("k", "w", "NX"), null);
assert.equal(await client.mset({ a: 1, b: 2 }), "OK");
assert.deepEqual(await client.mget("a", "b", "none"), ["1", "2", null]);
assert.equal(await client.incrby("a", 5), 6);
const keys = [];
for await (const some of client.scanStream({ count: 10 })) keys.push(...some);
assert.deepEqual(keys.sort(), ["a", "b", "k"]);
const bytes = Buffer.from([0, 13, 10, 255]);
await client.set("bytes", bytes);
assert.deepEqual(await client.getBuffer("bytes"), bytes);
const piped = await client.pipeline().set("x", 1).incr("x").get("x").exec();
assert.deepEqual(piped, [[null, "OK"], [null, 2], [null, "2"]]);
await client.watch("x");
const other = client.duplicate();
await other.set("x", 9);
assert.equal(await client.multi().get("x").exec(), null);
const done = await client.multi().set("y", 1).incr("y").exec();
assert.deepEqual(done, [[null, "OK"], [null, 2]]);
assert.equal(await client.del("a", "b", "none"), 2);
await assert.rejects(client.sadd("s", "x"), /unknown command/);
await Promise.all([client.quit(), other.quit()]);
