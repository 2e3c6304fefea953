//! Hosts that serve values by a kernel: the card's own GET (StRoM Listings 2–4), which looks a key
//! up in a hash table in the host's memory and sends the value.
//!
//! Each flow that fetches has a key of its own, its number. The table is real memory; values are
//! where the flows' bytes are.

#[cfg(test)]
mod tests;

use remora_nic::kernel::{Header, Notify};
use remora_nic::queue::RemoteAddress;
use remora_nic::{Access, Key, MrInit, PageTable, Pd};
use remora_offload::kernel::builtin::get::{PARAMS_LEN, Params, Table, TableFull, Value, get};
use remora_offload::kernel::{AsyncProgram, Deployment, Executor, Grant};

use super::flow::{Flow, Verb};
use crate::world::Host;

/// The op-code by which the kernel is called.
pub(super) const OPCODE: u64 = 1;
/// The address in work requests of a table's first byte.
const TABLE: u64 = 0x2000_0000_0000;
/// The bytes of a call.
pub(super) const CALL: usize = remora_nic::kernel::HEADER_LEN + PARAMS_LEN;

/// By host: how many flows fetch from it.
pub(super) fn counts(flows: &[Flow], hosts: u32) -> Vec<u32> {
    let mut counts = vec![0; hosts as usize];
    for flow in flows.iter().filter(|flow| flow.verb == Verb::Get) {
        counts[flow.dst as usize] += 1;
    }
    counts
}

/// The call of flow `key` at a host from which `count` flows fetch, for a buffer of `max_len`
/// bytes.
pub(super) fn call(key: u64, count: u32, to: RemoteAddress, max_len: u32) -> [u8; CALL] {
    let entry = Table::hash(key, count);
    let params = Params { table: TABLE, key, entry, chain_max: 0 };
    let params_len = PARAMS_LEN as u16;
    let header =
        Header { notify: Notify::Immediate, local: false, params_len, to, max_len, cookie: key };
    let mut bytes = [0; CALL];
    let (head, rest) = bytes.split_at_mut(remora_nic::kernel::HEADER_LEN);
    head.copy_from_slice(&header.to_bytes());
    rest.copy_from_slice(&params.to_bytes());
    bytes
}

/// Puts up a table of these keys and values, and the kernel, for this many clients of the card.
/// `values` is the key of the region that has the values. The error says what is missing.
pub(super) fn serve(
    host: &mut Host,
    kernels: &mut Executor,
    (pd, values, clients): (Pd, Key, u16),
    list: &[(u64, Value)],
) -> Result<(), String> {
    let table = table_of(list).map_err(|error| error.to_string())?;
    let Host { nic, memory, .. } = host;
    let len = table.bytes().len();
    let at = memory.alloc(len, 4096);
    memory.slice_mut(at, len).copy_from_slice(table.bytes());
    let pages = PageTable::contiguous(12, at, len as u64);
    let init = MrInit { iova: TABLE, len: len as u64, access: Access::all(), pages };
    let key = nic.reg_mr(pd, init).map_err(|error| error.to_string())?;
    let grants = [key, values].map(|key| Grant { key, write: false });
    for client in 0..clients {
        let (program, about) = (Box::new(AsyncProgram::new(get)), Deployment::new("get", grants));
        let deployed = kernels.deploy_for((client, OPCODE), about, program);
        deployed.map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn table_of(list: &[(u64, Value)]) -> Result<Table, TableFull> {
    let count = list.len() as u32;
    let mut table = Table::new(count, count);
    list.iter().try_for_each(|(key, value)| table.insert(*key, *value).map(drop))?;
    Ok(table)
}
