// iovalkey against a store: clients.mjs REDIS-PORT, or, against a cluster, clients.mjs cluster
// REDIS-PORT, or, while primaries change, clients.mjs failover REDIS-PORT.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.STORE_CLIENTS}/package.json`);
const { Cluster, Redis } = require("iovalkey");

async function alone(port) {
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
}

// Its keys are in all groups, and it finds each of them.
async function cluster(port) {
  const client = new Cluster([{ port, host: "127.0.0.1" }]);
  for (let i = 0; i < 500; i++) {
    assert.equal(await client.set(`node ${i}`, i), "OK");
    assert.equal(await client.get(`node ${i}`), String(i));
  }
  assert.ok(client.nodes("master").length >= 2);
  const all = Array.from({ length: 100 }, (_, i) => client.incr(`node ${i}`));
  assert.deepEqual(await Promise.all(all), Array.from({ length: 100 }, (_, i) => i + 1));
  const done = await client.multi().set("{node}x", 1).incr("{node}x").exec();
  assert.deepEqual(done, [[null, "OK"], [null, 2]]);
  assert.deepEqual(await client.mget("{node}x", "{node}none"), ["2", null]);
  await client.quit();
}

// How long anything may take while a primary changes, in milliseconds.
const PATIENCE = 60_000;

// Tries something again until it is done.
async function until(act) {
  for (const start = Date.now(); ; ) {
    try {
      return await act();
    } catch (error) {
      if (Date.now() - start > PATIENCE) throw error;
      await new Promise((done) => setTimeout(done, 10));
    }
  }
}

// Writes, says so, and goes on through a change of primary until its input ends. Then it writes some
// more, and all that it was told is written is there.
async function failover(port) {
  const client = new Cluster([{ port, host: "127.0.0.1" }]);
  // (Its own tries to connect fail meanwhile. It says so, and goes on.)
  client.on("error", () => {});
  const key = (number) => `node ${number % 500}`;
  let written = 0;
  const write = async (count) => {
    for (const end = written + count; written < end; written++) {
      assert.equal(await until(() => client.set(key(written), written)), "OK");
    }
  };
  await write(200);
  console.log("works");
  let isOver = false;
  process.stdin.on("end", () => (isOver = true)).resume();
  while (!isOver) await write(1);
  await write(200);
  for (let number = Math.max(0, written - 500); number < written; number++) {
    assert.equal(await until(() => client.get(key(number))), String(number));
  }
  await client.quit();
}

const [first, second] = process.argv.slice(2);
const clusters = { cluster, failover };
await (first in clusters ? clusters[first](Number(second)) : alone(Number(first)));
