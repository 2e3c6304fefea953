//! What a random world's stores are like.

use core::fmt;
use core::time::Duration;

use remora_nic::qp::Mtu;
use remora_store::codec::Codec;
use remora_store::tablespace::Eviction;

use crate::check::store::EVENTS_MAX;
use crate::dice::Dice;
use crate::endpoint::ConnectOptions;

/// A store and its clients.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The store's host.
    pub host: usize,
    /// The clients' hosts; one may be the store's.
    pub clients: Vec<usize>,
    /// The attributes of their connections.
    pub connect: ConnectOptions,
    /// The keys.
    pub keys: usize,
    /// Operations of each client.
    pub operations: u64,
    /// The longest value in bytes.
    pub value_max: usize,
    /// How long a client waits for the end of an operation.
    pub patience: Duration,
    /// The steps of the world at which the store crashes, and whether its machine does, too: then
    /// what was not synced is lost.
    pub crashes: Vec<(u64, bool)>,
    /// The steps of the disk, counted from the beginning of a life, at which the machine crashes.
    pub disk_crashes: Vec<u64>,
    /// The probability that the disk begins to fail when the host looks after the store.
    pub disk_trouble: f64,
    /// The probability that the log is written then.
    pub commit: f64,
    /// The probability that a snapshot is made then.
    pub snapshot: f64,
    /// The length of the log's segments in bytes.
    pub segment_bytes: u64,
    /// The tablespaces, one to three. Keys belong to them in turn.
    pub spaces: usize,
    /// How they store values.
    pub codec: Codec,
    /// The most bytes of each, if there is a limit, and what happens then.
    pub quota: Option<u64>,
    /// Whether keys go by themselves at the limit.
    pub eviction: Eviction,
    /// Whether there are counters, flushes and keys that expire, and clients' clocks are wrong.
    pub mixes: bool,
    /// Off only to see that the judge notices: changes are acknowledged before they are kept.
    pub waits_for_disk: bool,
}

/// The most tablespaces of a store.
pub(super) const SPACES_MAX: usize = 3;

impl StoreOptions {
    /// Draws a store, whose connections have this MTU and time-out.
    pub(crate) fn draw(dice: &mut Dice, hosts: usize, mtu: Mtu, timeout: u8) -> StoreOptions {
        let host = |dice: &mut Dice| dice.below(hosts as u64) as usize;
        let clients: Vec<usize> = (0..dice.between(1..=4)).map(|_| host(dice)).collect();
        let most = EVENTS_MAX as u64 / clients.len() as u64;
        let min_rnr_timer = dice.between(1..=14) as u8;
        let mut options = StoreOptions {
            host: host(dice),
            connect: ConnectOptions { mtu, timeout, min_rnr_timer, ..ConnectOptions::default() },
            keys: dice.between(1..=5) as usize,
            operations: dice.scaled(4..=most),
            value_max: dice.pick(&[8, 100, 700, 3000]),
            patience: Duration::from_micros(dice.scaled(1000..=1_000_000)),
            crashes: (0..dice.below(4)).map(|_| (dice.scaled(1..=20_000), dice.coin())).collect(),
            disk_crashes: (0..dice.below(3)).map(|_| dice.scaled(1..=200)).collect(),
            disk_trouble: dice.pick(&[0.0, 0.0, 0.001, 0.01]),
            commit: dice.pick(&[0.05, 0.3, 1.0]),
            snapshot: dice.pick(&[0.0, 0.01, 0.1]),
            segment_bytes: dice.pick(&[600, 4096, 64 << 20]),
            waits_for_disk: true,
            clients,
            // After all else: a world with a store is otherwise as it was before there were such.
            mixes: dice.chance(0.7),
            spaces: 1,
            codec: Codec::None,
            quota: None,
            eviction: Eviction::Never,
        };
        options.draw_spaces(dice);
        options
    }

    /// Drawn last, so that worlds whose store has one plain tablespace are what they were before
    /// there were others.
    fn draw_spaces(&mut self, dice: &mut Dice) {
        self.spaces = dice.pick(&[1, 1, 2, SPACES_MAX]).min(self.keys);
        let lz4 = |head| Codec::Lz4 { head };
        self.codec = dice.pick(&[Codec::None, Codec::None, lz4(0), lz4(100)]);
        self.quota = dice.pick(&[None, None, None, Some(300), Some(2000)]);
        self.eviction = dice.pick(&[Eviction::Never, Eviction::Clock, Eviction::Clock]);
    }

    /// May a key go by itself?
    pub(super) fn may_vanish(&self) -> bool {
        self.quota.is_some() && self.eviction == Eviction::Clock
    }
}

impl fmt::Display for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StoreOptions { host, clients, keys, operations, value_max, patience, .. } = self;
        writeln!(
            f,
            "  store   on {host}, clients on {clients:?}, {operations} operations each on {keys} \
             keys, values up to {value_max} bytes, patience {patience:?}"
        )?;
        let StoreOptions { crashes, disk_crashes, disk_trouble, commit, snapshot, .. } = self;
        writeln!(
            f,
            "          crashing at {crashes:?} and at its disk's {disk_crashes:?}, disk trouble \
             {disk_trouble}, commits {commit}, snapshots {snapshot}, segments of {} bytes{}",
            self.segment_bytes,
            if self.mixes { ", counters, flushes and expiry" } else { "" }
        )?;
        let StoreOptions { spaces, codec, quota, eviction, .. } = self;
        let quota = quota.map_or("no quota".into(), |quota| format!("a quota of {quota} bytes"));
        writeln!(f, "          {spaces} tablespaces with {quota}, {codec:?}, eviction {eviction:?}")
    }
}
