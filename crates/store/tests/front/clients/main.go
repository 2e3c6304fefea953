// go-redis and gomemcache against a store: clients REDIS-PORT MEMCACHED-PORT, or, against a cluster,
// clients cluster REDIS-PORT, or, while primaries change, clients failover REDIS-PORT.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"reflect"
	"sort"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
	"github.com/redis/go-redis/v9"
)

// expect ends the program if what came is not what should have come.
func expect(what string, err error, got, wanted any) {
	if err != nil || !reflect.DeepEqual(got, wanted) {
		fmt.Printf("%s: %v, not %v (%v)\n", what, got, wanted, err)
		os.Exit(1)
	}
}

func redisClient(port string, protocol int) {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, Protocol: protocol})
	defer client.Close()
	expect("FLUSHALL", client.FlushAll(ctx).Err(), nil, nil)
	set, err := client.Set(ctx, "k", "v", 100*time.Second).Result()
	expect("SET", err, set, "OK")
	get, err := client.Get(ctx, "k").Result()
	expect("GET", err, get, "v")
	ttl, err := client.TTL(ctx, "k").Result()
	expect("TTL", err, ttl > 90*time.Second && ttl <= 100*time.Second, true)
	_, err = client.Get(ctx, "none").Result()
	expect("GET of none", nil, err, redis.Nil)
	nx, err := client.SetNX(ctx, "k", "w", 0).Result()
	expect("SETNX", err, nx, false)
	expect("MSET", client.MSet(ctx, "a", 1, "b", 2).Err(), nil, nil)
	many, err := client.MGet(ctx, "a", "b", "none").Result()
	expect("MGET", err, many, []any{"1", "2", nil})
	sum, err := client.IncrBy(ctx, "a", 5).Result()
	expect("INCRBY", err, sum, int64(6))
	var keys []string
	for walk := client.Scan(ctx, 0, "*", 10).Iterator(); walk.Next(ctx); {
		keys = append(keys, walk.Val())
	}
	sort.Strings(keys)
	expect("SCAN", nil, keys, []string{"a", "b", "k"})
	pipe := client.Pipeline()
	results := []*redis.StringCmd{pipe.Get(ctx, "a"), pipe.Get(ctx, "b")}
	_, err = pipe.Exec(ctx)
	expect("a pipeline", err, results[0].Val()+results[1].Val(), "62")
	err = client.Watch(ctx, func(tx *redis.Tx) error {
		expect("SET", client.Set(ctx, "b", 9, 0).Err(), nil, nil)
		_, err := tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			return pipe.Get(ctx, "b").Err()
		})
		return err
	}, "b")
	expect("a watched key", nil, err, redis.TxFailedErr)
	_, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "x", 1, 0)
		return pipe.Incr(ctx, "x").Err()
	})
	expect("a transaction", err, nil, nil)
	x, err := client.Get(ctx, "x").Int()
	expect("after it", err, x, 2)
	gone, err := client.Del(ctx, "a", "b", "none").Result()
	expect("DEL", err, gone, int64(2))
	err = client.SAdd(ctx, "s", "x").Err()
	expect("SADD", nil, err != nil, true)
}

func memcachedClient(port string) {
	client := memcache.New("127.0.0.1:" + port)
	defer client.Close()
	expect("flush_all", client.FlushAll(), nil, nil)
	item := &memcache.Item{Key: "k", Value: []byte("v"), Flags: 7, Expiration: 100}
	expect("set", client.Set(item), nil, nil)
	got, err := client.Get("k")
	expect("get", err, string(got.Value)+fmt.Sprint(got.Flags), "v7")
	got.Value = []byte("w")
	expect("cas", client.CompareAndSwap(got), nil, nil)
	expect("cas again", nil, client.CompareAndSwap(got), memcache.ErrCASConflict)
	expect("add", nil, client.Add(item), memcache.ErrNotStored)
	expect("replace", client.Replace(item), nil, nil)
	expect("append", client.Append(&memcache.Item{Key: "k", Value: []byte("!")}), nil, nil)
	expect("prepend", client.Prepend(&memcache.Item{Key: "k", Value: []byte("?")}), nil, nil)
	many, err := client.GetMulti([]string{"k", "none"})
	expect("gets of many", err, len(many) == 1 && string(many["k"].Value) == "?v!", true)
	expect("set", client.Set(&memcache.Item{Key: "n", Value: []byte("10")}), nil, nil)
	sum, err := client.Increment("n", 5)
	expect("incr", err, sum, uint64(15))
	sum, err = client.Decrement("n", 100)
	expect("decr", err, sum, uint64(0))
	expect("touch", client.Touch("k", 10), nil, nil)
	expect("touch of none", nil, client.Touch("none", 10), memcache.ErrCacheMiss)
	expect("delete", client.Delete("k"), nil, nil)
	_, err = client.Get("k")
	expect("get of none", nil, err, memcache.ErrCacheMiss)
	expect("version", client.Ping(), nil, nil)
}

// clusterClient has its keys in all groups, and finds each of them.
func clusterClient(port string) {
	ctx := context.Background()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:" + port}})
	defer client.Close()
	slots, err := client.ClusterSlots(ctx).Result()
	expect("CLUSTER SLOTS", err, len(slots) >= 2, true)
	for i := range 500 {
		key := fmt.Sprintf("go %d", i)
		expect("SET", client.Set(ctx, key, i, 0).Err(), nil, nil)
		got, err := client.Get(ctx, key).Int()
		expect("GET", err, got, i)
	}
	pipe := client.Pipeline()
	var sums []*redis.IntCmd
	for i := range 100 {
		sums = append(sums, pipe.Incr(ctx, fmt.Sprintf("go %d", i)))
	}
	_, err = pipe.Exec(ctx)
	for i, sum := range sums {
		expect("a pipeline to all groups", err, sum.Val(), int64(i+1))
	}
	_, err = client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.Set(ctx, "{go}x", 1, 0)
		return pipe.Incr(ctx, "{go}x").Err()
	})
	expect("a transaction", err, nil, nil)
	many, err := client.MGet(ctx, "{go}x", "{go}none").Result()
	expect("MGET", err, many, []any{"2", nil})
}

// How long anything may take while a primary changes.
const patience = 60 * time.Second

// until tries something again until it is done.
func until(what string, try func() error) {
	start, err := time.Now(), try()
	for ; err != nil && time.Since(start) < patience; err = try() {
		time.Sleep(10 * time.Millisecond)
	}
	expect(what, err, nil, nil)
}

// failoverClient writes, says so, and goes on through a change of primary until its input ends. Then
// it writes some more, and all that it was told is written is there.
func failoverClient(port string) {
	ctx := context.Background()
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:" + port}})
	defer client.Close()
	key := func(number int) string { return fmt.Sprintf("go %d", number%500) }
	written := 0
	write := func(count int) {
		for range count {
			set := func() error { return client.Set(ctx, key(written), written, 0).Err() }
			until("SET "+key(written), set)
			written++
		}
	}
	write(200)
	fmt.Println("works")
	over := make(chan bool)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(over)
	}()
	for isOver := false; !isOver; {
		select {
		case <-over:
			isOver = true
		default:
			write(1)
		}
	}
	write(200)
	for number := max(0, written-500); number < written; number++ {
		var got int
		until("GET "+key(number), func() (err error) {
			got, err = client.Get(ctx, key(number)).Int()
			if err == redis.Nil {
				expect("GET "+key(number), err, "nothing", number)
			}
			return err
		})
		expect("GET "+key(number), nil, got, number)
	}
}

func main() {
	if os.Args[1] == "cluster" {
		clusterClient(os.Args[2])
		return
	}
	if os.Args[1] == "failover" {
		failoverClient(os.Args[2])
		return
	}
	for _, protocol := range []int{2, 3} {
		redisClient(os.Args[1], protocol)
	}
	memcachedClient(os.Args[2])
}
