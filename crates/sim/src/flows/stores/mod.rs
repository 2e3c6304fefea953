//! Hosts that run this project's store: its table in memory that the host shares with its card, and
//! its kernels, as they run live. Clients' operations are flows: a call there, an answer back.
//!
//! A key's value keeps its length, which is a part of the key, so that a flow's bytes are known
//! before it runs. Stores have no log.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use remora_nic::kernel::{HEADER_LEN, Header, Notify};
use remora_nic::queue::RemoteAddress;
use remora_offload::kernel::{AsyncProgram, DeployError, Executor};
use remora_store::journal::Unlogged;
use remora_store::stats::Stats;
use remora_store::store::{Options, Store};
use remora_store::tablespace::{TablespaceId, TablespaceOptions};
use remora_store::way::call::{ANSWER_LEN, Call, HEAD_LEN, Operation};
use remora_store::way::kernel::StoreKernels;
use remora_store::way::long::LongCalls;

use super::flow::{Flow, Verb};
use super::sizes::Sizes;
use crate::dice::{Use, mix, pattern};
use crate::memory::SimMemory;
use crate::net::Ps;
use crate::shared_memory::SharedMemory;

/// The store of a host.
pub(super) type Kept = Store<SharedMemory, Unlogged>;

/// The bytes of a key: its number, and its value's length.
const KEY_LEN: usize = 16;
/// The most bytes of a call that travel as its parameters, as live.
const PARAMS_MAX: u64 = 200;
/// Bytes of a call before its value.
pub(super) const HEAD: usize = HEADER_LEN + HEAD_LEN + KEY_LEN;
/// Bytes of an answer before its value.
pub(super) const ANSWER: u64 = ANSWER_LEN as u64;
/// The tablespace: the first that a store makes.
const SPACE: TablespaceId = TablespaceId(0);

/// What clients ask of stores in a closed loop.
#[derive(Clone, PartialEq, Debug)]
pub struct StoreLoad {
    /// The keys, which are shared out among the stores.
    pub keys: u32,
    /// The part of the operations that read, from 0 to 1; the others write.
    pub gets: f64,
    /// How much oftener the first keys are asked for than the last (Zipf's exponent); 0: not.
    pub skew: f64,
    /// The operations that a client has under way at once, each on a connection of its own.
    pub depth: u32,
    /// The operations of each connection.
    pub operations: u32,
    /// How long a connection waits between an answer and its next operation, in picoseconds.
    pub think: Ps,
    /// What is drawn comes from it.
    pub seed: u64,
}

impl StoreLoad {
    /// 1,000 keys as often asked for one as the other, 95 % gets, one operation at a time.
    pub fn new(operations: u32, seed: u64) -> StoreLoad {
        StoreLoad { keys: 1000, gets: 0.95, skew: 0.0, depth: 1, operations, think: 0, seed }
    }

    /// The length of a key's value, of these lengths.
    pub fn length(&self, key: u32, sizes: &Sizes) -> u64 {
        sizes.draw(&mut Use::Keys.stream(self.seed, key.into()))
    }

    /// The operations of `clients` on the stores of `servers`. Client and server of an operation
    /// are different hosts where the lists have none in common.
    pub fn flows(&self, clients: &[u32], servers: &[u32], sizes: &Sizes) -> Vec<Flow> {
        let mut flows: Vec<Flow> = Vec::new();
        if servers.is_empty() {
            return flows;
        }
        let until = self.until();
        let mut connection = 0;
        for client in clients {
            for _ in 0..self.depth {
                let mut random = Use::Operations.stream(self.seed, connection);
                for operation in 0..self.operations {
                    let at = random.fraction() * until.last().copied().unwrap_or(0.0);
                    let key = until.partition_point(|until| *until <= at) as u32;
                    let key = key.min(self.keys - 1);
                    let is_get = random.fraction() < self.gets;
                    let verb = if is_get { Verb::StoreGet(key) } else { Verb::StorePut(key) };
                    let server = servers[key as usize % servers.len()];
                    let flow = Flow::new(*client, server, self.length(key, sizes), 0);
                    let connection = Some(connection as u32);
                    let last = flows.len() as u32;
                    flows.push(match operation {
                        0 => Flow { verb, connection, ..flow },
                        _ => {
                            let (after, start) = (vec![last - 1], self.think);
                            Flow { verb, connection, after, start, ..flow }
                        }
                    });
                }
                connection += 1;
            }
        }
        flows
    }

    /// By key: the sum of how often it and those before it are asked for.
    fn until(&self) -> Vec<f64> {
        let mut sum = 0.0;
        let of = |rank: u32| {
            sum += f64::from(rank).powf(-self.skew);
            sum
        };
        (1..=self.keys).map(of).collect()
    }
}

/// Keys with their values' lengths that flows ask a host's store for.
fn keys(flows: &[Flow], host: u32) -> BTreeSet<(u32, u64)> {
    let own = flows.iter().filter(|flow| flow.dst == host);
    own.filter_map(|flow| Some((flow.verb.key()?, flow.bytes))).collect()
}

/// The bytes of a key.
fn key_of(key: u32, bytes: u64) -> [u8; KEY_LEN] {
    let mut all = [0; KEY_LEN];
    all[..8].copy_from_slice(&u64::from(key).to_le_bytes());
    all[8..].copy_from_slice(&bytes.to_le_bytes());
    all
}

/// The value that clients put, where payload exists.
pub(super) fn value_of(key: u32, bytes: u64) -> Vec<u8> {
    pattern(mix(u64::from(key)) ^ bytes, bytes as usize)
}

/// What a put leaves in a store: memory without bytes reads as zeros.
fn put_value(key: u32, bytes: u64, is_real: bool) -> Vec<u8> {
    if is_real { value_of(key, bytes) } else { vec![0; bytes as usize] }
}

/// The value that a key has before the first put: no byte is as there.
pub(super) fn first_value(key: u32, bytes: u64, is_real: bool) -> Vec<u8> {
    /// Any bits that are not none.
    const OTHER: u8 = 0x55;
    let put = put_value(key, bytes, is_real);
    put.into_iter().map(|byte| byte ^ OTHER).collect()
}

/// Makes a host's store, with all that flows ask it for. The error says what is missing.
pub(super) fn open(
    memory: &mut SimMemory,
    flows: &[Flow],
    (host, is_real): (u32, bool),
) -> Result<Arc<Kept>, String> {
    let keys = keys(flows, host);
    let bytes: u64 = keys.iter().map(|(_, bytes)| bytes).sum();
    let longest = keys.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    // Blocks of a few lengths, with room for values that take the place of others.
    let limit = 2 * bytes + 512 * keys.len() as u64 + 16 * longest + (4 << 20);
    let options = Options::new(limit, u64::from(host));
    let area = memory.shared.add(options.memory_len());
    let store = Store::new(area, Unlogged::default(), options).map_err(|e| e.to_string())?;
    let space = store.create_tablespace(&TablespaceOptions::new("world"));
    assert_eq!(space.map_err(|e| e.to_string())?, SPACE, "the first has the first number");
    for (key, bytes) in keys {
        let value = first_value(key, bytes, is_real);
        let put = store.put(SPACE, &key_of(key, bytes), &value, 0, None, 0);
        put.map_err(|e| e.to_string())?;
    }
    Ok(Arc::new(store))
}

/// Deploys the store's kernels that flows call, for this many clients of the card.
pub(super) fn deploy(
    executor: &mut Executor,
    store: &Arc<Kept>,
    clients: u16,
) -> Result<(), DeployError> {
    let (stats, long) = (Arc::new(Stats::default()), Arc::new(LongCalls::without_thread(0)));
    let kernels = StoreKernels::new(store, &stats, &long, || SystemTime::UNIX_EPOCH);
    let kernels = Arc::new(kernels);
    for client in 0..clients {
        for operation in [Operation::Get, Operation::Put] {
            let kernels = kernels.clone();
            let serve = move |context| kernels.clone().serve(operation, context);
            let program = Box::new(AsyncProgram::new(serve));
            executor.deploy_for((client, operation.opcode()), operation.deployment(), program)?;
        }
    }
    Ok(())
}

/// Whether a flow's call carries all its bytes as parameters.
pub(super) fn is_short(flow: &Flow) -> bool {
    let value = if flow.fetches() { 0 } else { flow.bytes };
    (HEAD_LEN + KEY_LEN) as u64 + value <= PARAMS_MAX
}

/// The bytes of a flow's call that its work request has in itself.
pub(super) fn inline(flow: &Flow) -> usize {
    let value = if flow.fetches() { 0 } else { flow.bytes as usize };
    if is_short(flow) { HEAD + value } else { 0 }
}

/// The op-code of a flow's call, and its bytes before the value. The answer goes to `to`.
pub(super) fn call(i: usize, flow: &Flow, key: u32, to: RemoteAddress) -> (u64, Vec<u8>) {
    let operation = if flow.fetches() { Operation::Get } else { Operation::Put };
    let (value, answer) = if flow.fetches() { (0, flow.bytes) } else { (flow.bytes, 0) };
    let params = (HEAD_LEN + KEY_LEN) as u64 + value;
    let header = Header {
        notify: Notify::Immediate,
        local: false,
        params_len: if is_short(flow) { params as u16 } else { 0 },
        to,
        max_len: (ANSWER + answer) as u32,
        cookie: i as u64,
    };
    let mut bytes = header.to_bytes().to_vec();
    let key = key_of(key, flow.bytes);
    let about = Call { tablespace: SPACE.0, key: &key, ..Call::default() };
    about.write_before_value(value as usize, &mut bytes).expect("a key and a value that may be");
    (operation.opcode(), bytes)
}

/// Bytes of the call and of the answer of a store's operation.
pub(super) fn lengths(verb: Verb, bytes: u64) -> (u64, u64) {
    match verb {
        Verb::StorePut(_) => (HEAD as u64 + bytes, ANSWER),
        _ => (HEAD as u64, ANSWER + bytes),
    }
}

/// How many bytes of what was put a store has: all of them, or none.
pub(super) fn stored(store: &Kept, (key, bytes): (u32, u64), is_real: bool) -> u64 {
    let mut value = Vec::new();
    store.get(SPACE, &key_of(key, bytes), 0, &mut value);
    if value == put_value(key, bytes, is_real) { bytes } else { 0 }
}
