//! Looking something up at the peer, in three ways.

use anyhow::{Context, Result, ensure};
use remora::kernel::builtin::{RemoteTable, opcode, traverse};
use remora::offload::kernel::builtin::{consistency, get, traversal};

use super::Client;
use super::agreed::FLAKY;
use super::image::{ELEMENT_LEN, List};
use super::rpc::Op;

/// A way to look something up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// By a kernel on the peer's card, in one round trip.
    Kernel,
    /// By one-sided READs, one for each pointer that is followed (Pilaf, FaRM).
    Reads,
    /// By the peer's CPU, over TCP: within [`Client::with_rpcs`].
    Rpc,
}

impl Client {
    /// Looks up a key in a list, and appends its value to `out`.
    pub fn list_value(&self, way: Way, list: &List, key: u64, out: &mut Vec<u8>) -> Result<bool> {
        match way {
            Way::Kernel => {
                let params = traversal::Params::list(list.head, key, list.value_len);
                Ok(traverse(&mut self.kernels.borrow_mut(), &params, out)?)
            }
            Way::Reads => self.list_by_reads(list, key, out),
            Way::Rpc => {
                let words = [list.head, key, list.value_len.into()].map(u64::to_le_bytes);
                self.rpc.borrow_mut().call(Op::List, words.as_flattened(), out)
            }
        }
    }

    fn list_by_reads(&self, list: &List, key: u64, out: &mut Vec<u8>) -> Result<bool> {
        let mut at = list.head;
        while at != 0 {
            let mut element = [[0; 8]; ELEMENT_LEN / 8];
            self.read(at, ELEMENT_LEN as u32)?;
            self.local.read_at(0, element.as_flattened_mut())?;
            let [its_key, next, value] = element.map(u64::from_le_bytes);
            if its_key == key {
                self.fetch(value, list.value_len, out)?;
                return Ok(true);
            }
            at = next;
        }
        Ok(false)
    }

    /// Looks up a key in a hash table, and appends its value to `out`.
    pub fn table_value(
        &self,
        way: Way,
        table: &RemoteTable,
        key: u64,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        match way {
            Way::Kernel => Ok(table.get(&mut self.kernels.borrow_mut(), key, out)?),
            Way::Reads => self.table_by_reads(table.params(key), out),
            Way::Rpc => self.rpc.borrow_mut().call(Op::Get, &table.params(key).to_bytes(), out),
        }
    }

    fn table_by_reads(&self, params: get::Params, out: &mut Vec<u8>) -> Result<bool> {
        let mut number = params.entry;
        loop {
            let mut entry = [0; get::ENTRY_LEN];
            let at = params.table + u64::from(number) * get::ENTRY_LEN as u64;
            self.read(at, get::ENTRY_LEN as u32)?;
            self.local.read_at(0, &mut entry)?;
            if let Some(found) = get::find(&entry, params.key) {
                self.fetch(found.addr, found.len, out)?;
                return Ok(true);
            }
            let Some(next) = get::next(&entry) else { return Ok(false) };
            number = next;
        }
    }

    /// READs `len` bytes and appends them to `out`.
    pub fn fetch(&self, addr: u64, len: u32, out: &mut Vec<u8>) -> Result<()> {
        self.read(addr, len)?;
        let from = out.len();
        out.resize(from + len as usize, 0);
        Ok(self.local.read_at(0, &mut out[from..])?)
    }

    /// READs an object and checks it at this end; returns whether it fits its checksum.
    pub fn fetch_checked(&self, addr: u64, len: u32, out: &mut Vec<u8>) -> Result<bool> {
        let from = out.len();
        self.fetch(addr, len, out)?;
        let consistent = consistency::is_consistent(&out[from..]);
        if !consistent {
            out.truncate(from);
        }
        Ok(consistent)
    }

    /// Has an object checked on the peer's card and delivered into registered memory, to the place
    /// where a READ would put it.
    pub fn read_checked(&self, addr: u64, len: u32) -> Result<()> {
        let params = consistency::Params { address: addr, len, readings: 0 }.to_bytes();
        let mut kernels = self.kernels.borrow_mut();
        let ticket = kernels.begin(opcode::CONSISTENCY, &params)?;
        self.pause();
        let place = kernels.finish_in_place(ticket)?;
        ensure!(place.len() == len as usize, "an object came without some of its bytes");
        Ok(())
    }

    /// Fetches an object that is checked on the peer's card; `wrong` is the object that the first
    /// reading finds, if that is to fail.
    pub fn checked_by_kernel(
        &self,
        addr: u64,
        len: u32,
        wrong: Option<u64>,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let params = |address| consistency::Params { address, len, readings: 0 }.to_bytes();
        let mut kernels = self.kernels.borrow_mut();
        let fetched = match wrong {
            None => kernels.call(opcode::CONSISTENCY, &params(addr), out)?,
            Some(wrong) => {
                let both = [params(wrong), params(addr)];
                kernels.call(FLAKY, both.as_flattened(), out)?
            }
        };
        ensure!(fetched == len as usize, "an object came without some of its bytes");
        Ok(())
    }
}

/// Fails unless a key that was loaded is found.
pub fn expect_found(found: bool) -> Result<()> {
    found.then_some(()).context("a key that was loaded is not found")
}
