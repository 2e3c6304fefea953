//! A process with a store on its card, on the second core; this process asks, on the first.

use std::cell::RefCell;
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use remora_store::client::StoreClient;
use remora_store::way::call::{Call, Operation};
use remora_store::way::connect::ClientOptions;
use rustix::process::{Pid, Signal, kill_process};

use super::super::figure::{Figure, Point, Style};
use super::callers::Callers;
use super::extent::Extent;
use crate::draws::Draws;
use crate::ways::Client;
use crate::ways::client::Setup;

/// The most bytes that the store may take.
const LIMIT: u64 = 1 << 30;
/// Clients, and calls that each has in flight at the most.
const LINES: usize = 16;
const DEPTH: usize = 8;
/// Bytes of values, unless a figure is by size.
pub(super) const VALUE: usize = 64;

/// The store's tablespaces: see [`crate::ways::agreed::TABLESPACES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u16)]
pub(super) enum Space {
    First = 0,
    Compressed = 1,
    Lineitem = 2,
    Short = 3,
    Long = 4,
}

/// The store, and its clients.
pub(super) struct Bed {
    pub(super) far: Client,
    pub(super) callers: Callers,
    store: SocketAddr,
    /// The number of keys that [`Bed::load`] has put, `key(0)` and so on.
    pub(super) keys: u64,
}

/// The bytes of a key: 16, as `redis-benchmark` names its keys.
pub(super) fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let mut left = number;
    for digit in key[4..].iter_mut().rev() {
        *digit += (left % 10) as u8;
        left /= 10;
    }
    key
}

/// A value that begins with a number of 32 bits in little-endian order, below 1,000 and evenly
/// spread over keys; text follows, of which a tenth has `needle` in it.
pub(super) fn value(number: u64, len: usize) -> Vec<u8> {
    let mut draws = Draws::new(number);
    let mut bytes = (((number * 7) % 1000) as u32).to_le_bytes().to_vec();
    bytes.extend((0..len.saturating_sub(4)).map(|_| b'a' + (draws.number() % 8) as u8));
    if number.is_multiple_of(10) && len >= 32 {
        bytes[20..26].copy_from_slice(b"needle");
    }
    bytes.truncate(len);
    bytes
}

impl Bed {
    /// Starts the store, and fills its first tablespace.
    pub(super) fn start(extent: Extent) -> Result<Bed> {
        let far = Client::start(Setup {
            memory: 1 << 20,
            local: 16 << 20,
            stream: 64 << 10,
            loaded: 0,
            store: LIMIT,
            chains: false,
            pin: true,
        })?;
        let store = far.ready.store.context("the other end serves no store")?;
        let callers = Callers::connect(&far.device, store, LINES, DEPTH)?;
        let bed = Bed { far, callers, store, keys: extent.keys };
        bed.load(Space::First, extent.keys, |number| (key(number).into(), value(number, VALUE)))?;
        let (mut client, mut got) = (bed.client(Space::First)?, Vec::new());
        for number in (0..extent.keys).step_by(97) {
            got.clear();
            client.get(&key(number), &mut got)?.context("a key that was put is not there")?;
            ensure!(got == value(number, VALUE), "the store has another value of key {number}");
        }
        Ok(bed)
    }

    /// A client of a tablespace.
    pub(super) fn client(&self, space: Space) -> Result<StoreClient> {
        self.client_with(ClientOptions { tablespace: space as u16, ..ClientOptions::default() })
    }

    pub(super) fn client_with(&self, options: ClientOptions) -> Result<StoreClient> {
        Ok(StoreClient::connect(&self.far.device, self.store, &options)?)
    }

    /// Puts `count` keys, which `row` makes, with their values.
    pub(super) fn load(
        &self,
        space: Space,
        count: u64,
        row: impl Fn(u64) -> (Vec<u8>, Vec<u8>),
    ) -> Result<()> {
        let numbers = RefCell::new(0..count);
        self.callers.run(count as usize, LINES * DEPTH, |bytes| {
            let number = numbers.borrow_mut().next().context("more calls than keys")?;
            let (key, value) = row(number);
            let tablespace = space as u16;
            Call { tablespace, key: &key, value: &value, ..Call::default() }.write(bytes)?;
            Ok(Operation::Put)
        })?;
        Ok(())
    }

    /// Runs `work` while the process of the store stands still, so that the second core is another
    /// server's.
    pub(super) fn aside<R>(&self, work: impl FnOnce() -> Result<R>) -> Result<R> {
        let id = i32::try_from(self.far.peer_id()).ok().and_then(Pid::from_raw);
        let id = id.context("the store's process has no id")?;
        kill_process(id, Signal::STOP).context("cannot stop the store's process")?;
        let result = work();
        kill_process(id, Signal::CONT).context("cannot let the store's process go on")?;
        result
    }
}

/// What all figures of the store have in common: lines of µs over sizes, by Caribou's numbering.
pub(super) fn figure(id: &'static str, points: Vec<Point>) -> Figure {
    Figure {
        id,
        origin: "",
        title: "",
        about: "",
        x: "bytes of a value",
        y: "latency",
        unit: "µs",
        style: Style::Lines,
        ways: Vec::new(),
        points,
        paper: "",
        here: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_redis_benchmark() {
        assert_eq!(&key(7_042), b"key:000000007042");
        assert_eq!(value(20, 64)[20..26], *b"needle");
        assert_eq!((value(3, 16).len(), value(3, 2).len()), (16, 2));
        assert_eq!(value(143, 64)[..4], [1, 0, 0, 0]);
    }
}
