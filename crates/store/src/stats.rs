//! What the store counts: hits and misses, latencies by operation and way in, slow operations.
//!
//! Each thread that serves has [`Counts`] of its own, which it alone writes and anybody reads:
//! counting takes no locked instruction. [`Stats`] adds them up.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

/// The ways in which operations reach the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Redis' protocol over TCP.
    Redis,
    /// memcached's protocols over TCP.
    Memcached,
    /// Kernels on the card.
    Kernel,
    /// Rust, in the process that serves.
    Local,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 4] = [Way::Redis, Way::Memcached, Way::Kernel, Way::Local];

    /// Its name in statistics.
    pub fn name(self) -> &'static str {
        ["redis", "memcached", "kernel", "local"][self as usize]
    }
}

/// The operations that latencies are kept of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A read of values.
    Get,
    /// A write that replaces the value.
    Put,
    /// A write that depends on the value before: increments, appends, comparisons.
    Update,
    /// A delete.
    Delete,
    /// A change of the expiry alone.
    Touch,
    /// A walk over keys.
    Scan,
    /// What concerns no key.
    Other,
}

impl Op {
    /// All of them.
    pub const ALL: [Op; 7] =
        [Op::Get, Op::Put, Op::Update, Op::Delete, Op::Touch, Op::Scan, Op::Other];

    /// Its name in statistics.
    pub fn name(self) -> &'static str {
        ["get", "put", "update", "delete", "touch", "scan", "other"][self as usize]
    }
}

/// A count that one thread writes.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds `more`. Only the thread that owns the count may call it: others' additions at the
    /// same time are lost.
    #[inline]
    pub fn add(&self, more: u64) {
        self.0.store(self.0.load(Relaxed).wrapping_add(more), Relaxed);
    }

    /// What was counted.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Begins anew.
    pub fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}

/// Parts of a power of two.
const PARTS: u64 = 16;
/// Latencies of up to 2^40 ns (18 minutes) are told apart.
const BUCKETS: usize = (40 - 4 + 1) * PARTS as usize;

/// How often each latency occurred, to 6 %.
#[derive(Debug)]
pub struct Latencies {
    buckets: Box<[Count]>,
    /// The sum of all, in ns.
    total: Count,
}

impl Default for Latencies {
    fn default() -> Latencies {
        let buckets = (0..BUCKETS).map(|_| Count::default()).collect();
        Latencies { buckets, total: Count::default() }
    }
}

impl Latencies {
    /// Counts an operation that took `ns`.
    #[inline]
    pub fn record(&self, ns: u64) {
        self.record_many(ns, 1);
    }

    /// Counts `many` operations that took `ns` each.
    #[inline]
    pub fn record_many(&self, ns: u64, many: u64) {
        self.buckets[bucket(ns)].add(many);
        self.total.add(ns * many);
    }

    fn add_to(&self, sum: &mut Histogram) {
        for (to, from) in sum.buckets.iter_mut().zip(&self.buckets) {
            *to += from.value();
        }
        sum.total_ns += self.total.value();
    }

    fn reset(&self) {
        self.buckets.iter().for_each(Count::reset);
        self.total.reset();
    }
}

/// The bucket of a latency: below 16 each its own, then 16 for each power of two.
#[inline]
fn bucket(ns: u64) -> usize {
    if ns < PARTS {
        return ns as usize;
    }
    let power = u64::from(63 - ns.leading_zeros());
    let part = (ns >> (power - 4)) - PARTS;
    (((power - 3) * PARTS + part) as usize).min(BUCKETS - 1)
}

/// The longest latency in a bucket, in ns.
fn upper(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < PARTS {
        return bucket;
    }
    let shift = bucket / PARTS - 1;
    ((PARTS + bucket % PARTS + 1) << shift) - 1
}

/// Latencies of all threads together.
#[derive(Clone, Debug)]
pub struct Histogram {
    buckets: Vec<u64>,
    total_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { buckets: vec![0; BUCKETS], total_ns: 0 }
    }
}

impl Histogram {
    /// How many operations were counted.
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// The sum of their latencies, in ns.
    pub fn total_ns(&self) -> u64 {
        self.total_ns
    }

    /// The latency that `share` (0 to 1) of the operations do not exceed, in ns; 0 if there were
    /// none.
    pub fn percentile_ns(&self, share: f64) -> u64 {
        let count = self.count();
        if count == 0 {
            return 0;
        }
        let rank = ((count as f64 * share).ceil() as u64).clamp(1, count);
        let mut seen = 0;
        for (index, held) in self.buckets.iter().enumerate() {
            seen += held;
            if seen >= rank {
                return upper(index);
            }
        }
        upper(BUCKETS - 1)
    }

    /// For each power of two of ns, from 1 µs on: the latency in µs, and how many operations took
    /// no longer. Those that add none are left out.
    pub fn steps(&self) -> Vec<(u64, u64)> {
        let (mut steps, mut seen) = (Vec::<(u64, u64)>::new(), 0);
        for (index, held) in self.buckets.iter().enumerate().filter(|(_, held)| **held > 0) {
            seen += held;
            let us = upper(index).max(1023).next_power_of_two() / 1000;
            match steps.last_mut() {
                Some(last) if last.0 == us => last.1 = seen,
                _ => steps.push((us, seen)),
            }
        }
        steps
    }
}

/// Names the counts once: the fields, their sum, and their names.
macro_rules! counts {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// What one thread counts.
        #[derive(Debug, Default)]
        pub struct Counts {
            $($(#[doc = $doc])+ pub $name: Count,)+
            latencies: [[Latencies; Op::ALL.len()]; Way::ALL.len()],
        }

        /// The sums of all threads' counts.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Sums {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counts {
            fn add_to(&self, sums: &mut Sums) {
                $(sums.$name += self.$name.value();)+
            }

            fn reset(&self) {
                $(self.$name.reset();)+
                self.latencies.iter().flatten().for_each(Latencies::reset);
            }
        }

        impl Sums {
            /// Each sum with its name.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

counts! {
    /// Keys that were asked for and found.
    hits,
    /// Keys that were asked for and not found.
    misses,
    /// Keys that clients have read one-sided, as they tell with every 64th read, which goes by a
    /// kernel.
    one_sided_hits,
    /// Looks at a bucket by chains, which answer gets: one a get, or two where the key is not where
    /// the client saw it last.
    chain_lookups,
    /// Calls of kernels that a thread has carried out, since they took long.
    long_calls,
    /// Commands that were carried out.
    commands,
    /// Commands that answered with an error.
    errors,
    /// Connections that were accepted.
    connections,
    /// Connections that were refused as there were too many.
    connections_refused,
    /// Connections that were ended as nothing came for too long.
    connections_idle,
    /// Connections of memcached's that were relayed to the primary of a cluster.
    connections_relayed,
    /// Connections that were ended as they sent what is no request.
    protocol_errors,
    /// Connections that were ended as a reply or a request exceeded a limit of memory.
    memory_refused,
    /// Passwords that were wrong.
    auth_refused,
    /// Bytes read from connections.
    bytes_in,
    /// Bytes written to connections.
    bytes_out,
    /// Times a thread has waited for the log, each for all connections of a turn.
    durability_waits,
    /// Values that were stored, by any command.
    stored,
    /// memcached: gets of keys, found or not.
    cmd_get,
    /// memcached: gets that found their key.
    get_hits,
    /// memcached: gets that did not.
    get_misses,
    /// memcached: commands that store.
    cmd_set,
    /// memcached: commands that touch.
    cmd_touch,
    /// memcached: flushes.
    cmd_flush,
    /// memcached: touches that found their key.
    touch_hits,
    /// memcached: touches that did not.
    touch_misses,
    /// memcached: deletes that found their key.
    delete_hits,
    /// memcached: deletes that did not.
    delete_misses,
    /// memcached: increments that found their key.
    incr_hits,
    /// memcached: increments that did not.
    incr_misses,
    /// memcached: decrements that found their key.
    decr_hits,
    /// memcached: decrements that did not.
    decr_misses,
    /// memcached: comparisons and sets that succeeded.
    cas_hits,
    /// memcached: comparisons and sets of keys that were not there.
    cas_misses,
    /// memcached: comparisons and sets whose value had changed.
    cas_badval,
    /// memcached: logins that succeeded or failed.
    auth_cmds,
}

impl Counts {
    /// The latencies of an operation by a way.
    #[inline]
    pub fn latencies(&self, way: Way, op: Op) -> &Latencies {
        &self.latencies[way as usize][op as usize]
    }
}

/// An operation that took long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slow {
    /// Counts up from 0.
    pub id: u64,
    /// When it began, in seconds of Unix time.
    pub at_s: u64,
    /// How long it took, in µs.
    pub took_us: u64,
    /// Its arguments, shortened.
    pub arguments: Vec<Vec<u8>>,
    /// Who asked: address and port.
    pub peer: String,
    /// The name that the client has given itself.
    pub name: String,
}

/// What is kept of a slow operation's arguments.
const SLOW_ARGUMENTS: usize = 32;
const SLOW_BYTES: usize = 128;

/// The operations that took longest ago no longer than the list is.
#[derive(Debug, Default)]
struct SlowLog {
    entries: VecDeque<Slow>,
    next: u64,
}

/// All counts of a store.
#[derive(Debug)]
pub struct Stats {
    threads: Mutex<Vec<Arc<Counts>>>,
    slow: Mutex<SlowLog>,
    /// Operations that take this long are listed, in µs; negative: none.
    slow_us: std::sync::atomic::AtomicI64,
    slow_len: AtomicU64,
}

impl Default for Stats {
    fn default() -> Stats {
        Stats {
            threads: Mutex::default(),
            slow: Mutex::default(),
            slow_us: 10_000.into(),
            slow_len: 128.into(),
        }
    }
}

impl Stats {
    /// Counts for one more thread.
    pub fn thread(&self) -> Arc<Counts> {
        let counts = Arc::new(Counts::default());
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(counts.clone());
        counts
    }

    fn each(&self, mut visit: impl FnMut(&Counts)) {
        let threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        threads.iter().for_each(|counts| visit(counts));
    }

    /// The sums of all threads.
    pub fn sums(&self) -> Sums {
        let mut sums = Sums::default();
        self.each(|counts| counts.add_to(&mut sums));
        sums
    }

    /// The latencies of an operation by a way, over all threads.
    pub fn histogram(&self, way: Way, op: Op) -> Histogram {
        let mut sum = Histogram::default();
        self.each(|counts| counts.latencies(way, op).add_to(&mut sum));
        sum
    }

    /// Begins all counts anew. What threads count at that moment may stay.
    pub fn reset(&self) {
        self.each(Counts::reset);
    }

    /// From how long on operations are listed, in µs; negative: none are.
    #[inline]
    pub fn slow_us(&self) -> i64 {
        self.slow_us.load(Relaxed)
    }

    /// Sets [`Stats::slow_us`].
    pub fn set_slow_us(&self, us: i64) {
        self.slow_us.store(us, Relaxed);
    }

    /// The most operations that are listed.
    pub fn slow_len(&self) -> u64 {
        self.slow_len.load(Relaxed)
    }

    /// Sets [`Stats::slow_len`].
    pub fn set_slow_len(&self, len: u64) {
        self.slow_len.store(len, Relaxed);
        self.slow_log().entries.truncate(len as usize);
    }

    fn slow_log(&self) -> std::sync::MutexGuard<'_, SlowLog> {
        self.slow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lists an operation, if it took long enough.
    pub fn note<'a>(
        &self,
        took_us: u64,
        at_s: u64,
        arguments: impl ExactSizeIterator<Item = &'a [u8]>,
        peer: &str,
        name: &str,
    ) {
        let least = self.slow_us();
        if least < 0 || took_us < least as u64 || self.slow_len() == 0 {
            return;
        }
        let total = arguments.len();
        let mut kept: Vec<_> = arguments.take(SLOW_ARGUMENTS).map(shortened).collect();
        if total > SLOW_ARGUMENTS {
            let more = total - SLOW_ARGUMENTS + 1;
            kept[SLOW_ARGUMENTS - 1] = format!("... ({more} more arguments)").into_bytes();
        }
        let mut log = self.slow_log();
        let id = log.next;
        log.next += 1;
        let (peer, name) = (peer.to_owned(), name.to_owned());
        log.entries.push_front(Slow { id, at_s, took_us, arguments: kept, peer, name });
        log.entries.truncate(self.slow_len() as usize);
    }

    /// The newest slow operations, at most `most`.
    pub fn slow(&self, most: usize) -> Vec<Slow> {
        self.slow_log().entries.iter().take(most).cloned().collect()
    }

    /// How many slow operations are listed.
    pub fn slow_count(&self) -> usize {
        self.slow_log().entries.len()
    }

    /// Empties the list of slow operations.
    pub fn slow_reset(&self) {
        self.slow_log().entries.clear();
    }
}

fn shortened(argument: &[u8]) -> Vec<u8> {
    if argument.len() <= SLOW_BYTES {
        return argument.to_vec();
    }
    let mut kept = argument[..SLOW_BYTES].to_vec();
    let more = argument.len() - SLOW_BYTES;
    kept.extend_from_slice(format!("... ({more} more bytes)").as_bytes());
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_hold_what_they_say() {
        let mut last = None;
        for index in 0..BUCKETS - 1 {
            let top = upper(index);
            assert_eq!(bucket(top), index);
            assert_eq!(bucket(top + 1), index + 1);
            assert!(last < Some(top));
            last = Some(top);
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_within_a_sixteenth() {
        let stats = Stats::default();
        let [a, b] = [stats.thread(), stats.thread()];
        for us in 1..=1000 {
            let counts = if us % 2 == 0 { &a } else { &b };
            counts.latencies(Way::Redis, Op::Get).record(us * 1000);
        }
        let sum = stats.histogram(Way::Redis, Op::Get);
        assert_eq!(sum.count(), 1000);
        for (share, exact) in [(0.5, 500_000), (0.99, 990_000), (1.0, 1_000_000)] {
            let found = sum.percentile_ns(share);
            assert!((exact..=exact * 17 / 16).contains(&found), "{share}: {found}");
        }
        let below = |us: u64| us.min(1000);
        let steps = [1, 2, 4, 8, 16, 32, 65, 131, 262, 524, 1048].map(|us| (us, below(us)));
        assert_eq!(sum.steps(), steps);
        assert_eq!(stats.histogram(Way::Memcached, Op::Get).percentile_ns(0.5), 0);
        stats.reset();
        assert_eq!(stats.histogram(Way::Redis, Op::Get).count(), 0);
    }

    #[test]
    fn sums_add_up_and_reset() {
        let stats = Stats::default();
        stats.thread().hits.add(3);
        stats.thread().hits.add(4);
        assert_eq!(stats.sums().hits, 7);
        assert!(stats.sums().entries().any(|entry| entry == ("hits", 7)));
        stats.reset();
        assert_eq!(stats.sums(), Sums::default());
    }

    #[test]
    fn slow_operations_are_listed_newest_first_and_shortened() {
        let stats = Stats::default();
        stats.set_slow_us(5);
        stats.set_slow_len(2);
        let long = vec![b'x'; 1000];
        let arguments = [b"SET".as_slice(), b"k", &long];
        for took in [4, 5, 6, 7] {
            stats.note(took, 1, arguments.into_iter(), "127.0.0.1:1", "me");
        }
        let listed = stats.slow(10);
        assert_eq!(listed.iter().map(|slow| slow.took_us).collect::<Vec<_>>(), [7, 6]);
        assert!(listed[0].arguments[2].ends_with(b"... (872 more bytes)"));
        let many = vec![b"a".as_slice(); 40];
        stats.note(9, 1, many.into_iter(), "", "");
        assert_eq!(stats.slow(1)[0].arguments.len(), SLOW_ARGUMENTS);
        assert_eq!(stats.slow(1)[0].arguments[31], b"... (9 more arguments)");
        stats.slow_reset();
        assert_eq!(stats.slow_count(), 0);
    }
}
