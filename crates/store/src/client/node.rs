//! A connection to one store, or to one node of a cluster, by polling.

use std::net::SocketAddr;
use std::time::Duration;

use remora::{Device, QueuePairOptions};

use super::error::StoreError;
use super::operations::{self, About};
use super::polled::Polled;
use super::refusal::ChainRefusal;
use super::{Link, now};
use crate::way::chain::{ChainReader, PolledAsks};
use crate::way::connect::{ClientOptions, ConnectError, in_time};
use crate::way::index::Index;
use crate::way::one_sided::{OneSided, OneSidedCounters, PolledReads, landing};
use crate::way::region::Region;

/// A connection, and what is known of the store's memory.
#[derive(Debug)]
pub(super) struct PolledNode {
    pub(super) calls: Polled,
    /// READs of the store's memory, from the first on.
    reader: Option<OneSided<PolledReads>>,
    reads: u64,
    /// A connection to a chain, from the first get by one on.
    chain: Option<ChainReader<PolledAsks>>,
    refusal: ChainRefusal,
    // After what uses its queue pair.
    pub(super) link: Link,
}

type Reader<'n> = (&'n mut Polled, &'n mut OneSided<PolledReads>, &'n mut u64);
type Chain<'n> = (&'n mut Polled, &'n mut ChainReader<PolledAsks>);

/// What READs the store's memory, and where that lands.
fn reads(link: &Link, calls: &Polled) -> Result<(PolledReads, Region), StoreError> {
    let (queue_pair, cq) = (link.queue_pair.clone(), calls.sends.clone());
    let (timeout, is_owed) = (link.options.timeout, calls.is_owed.clone());
    Ok((PolledReads { queue_pair, cq, timeout, is_owed }, landing(&link.domain)?))
}

fn read_index(link: &Link, calls: &Polled) -> Result<Index, StoreError> {
    now(operations::read_index(reads(link, calls)?, &link.welcome))
}

/// What a kernel says of the store's index, or without kernels the store's memory.
fn index(link: &Link, calls: &mut Polled) -> Result<Index, StoreError> {
    match now(operations::index(calls)) {
        Err(StoreError::NoKernels) => read_index(link, calls),
        told => told,
    }
}

impl PolledNode {
    pub(super) fn connect(
        device: &Device,
        store: SocketAddr,
        options: &ClientOptions,
    ) -> Result<PolledNode, ConnectError> {
        let (sends, receives) = (device.create_cq(16)?, device.create_cq(16)?);
        let shape = QueuePairOptions::rc(&sends).recv_cq(&receives).send_depth(16).recv_depth(16);
        let connecting = Link::connect(device, store, options, &shape);
        let link = in_time(store, options.timeout, connecting)?;
        let calls = Polled::new(&link, sends, &receives)?;
        let refusal = ChainRefusal::default();
        Ok(PolledNode { calls, reader: None, reads: 0, chain: None, refusal, link })
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.link.options.timeout = timeout;
        self.calls.set_timeout(timeout);
        if let Some(reader) = &mut self.reader {
            reader.reads_mut().timeout = timeout;
        }
        if let Some(chain) = &mut self.chain {
            chain.asks_mut().timeout = timeout;
        }
    }

    /// What reads the store's memory.
    fn reader(&mut self) -> Result<Reader<'_>, StoreError> {
        let calls = &mut self.calls;
        let reader = match &mut self.reader {
            Some(reader) => reader,
            none => {
                let known = (self.link.welcome.memory, index(&self.link, calls)?);
                let reads = reads(&self.link, calls)?;
                none.insert(OneSided::new(reads, known, self.link.options.locations))
            }
        };
        Ok((calls, reader, &mut self.reads))
    }

    /// What asks the store's chain.
    fn chain(&mut self) -> Result<Chain<'_>, StoreError> {
        let calls = &mut self.calls;
        let chain = match &mut self.chain {
            Some(chain) => chain,
            none => {
                let index = index(&self.link, calls)?;
                let Link { device, store, options, welcome, .. } = &self.link;
                let connecting = PolledAsks::connect(device, (*store, welcome.ticket), options);
                let asks = in_time(*store, options.timeout, connecting)?;
                none.insert(ChainReader::new(asks, index))
            }
        };
        Ok((calls, chain))
    }

    pub(super) fn get_one_sided(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        let (calls, reader, reads) = self.reader()?;
        now(operations::get_one_sided(calls, reader, reads, key, out))
    }

    pub(super) fn get_by_chain(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        let (calls, chain) = self.chain()?;
        match now(operations::get_by_chain(calls, chain, key, out)) {
            Err(StoreError::NoKernels) => {}
            done => return done,
        }
        // The partition may have grown.
        let index = read_index(&self.link, &self.calls)?;
        let (calls, chain) = self.chain()?;
        now(operations::get_by_chain_only(calls, chain, index, key, out))
    }

    /// See [`operations::read_one_sided`]. A node that shows no memory has to be asked.
    pub(super) fn read_one_sided(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        if self.link.welcome.memory.len == 0 {
            return Ok(None);
        }
        let (calls, reader, reads) = self.reader()?;
        now(operations::read_one_sided(calls, reader, reads, key, out))
    }

    /// See [`operations::read_by_chain`].
    pub(super) fn read_by_chain(
        &mut self,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<Option<About>, StoreError> {
        if self.link.welcome.memory.len == 0 || self.refusal.holds() {
            return Ok(None);
        }
        let (calls, chain) = match self.chain() {
            Ok(chain) => chain,
            Err(error) => {
                self.refusal.note(&error);
                return Err(error);
            }
        };
        now(operations::read_by_chain(calls, chain, key, out))
    }

    /// How many values were read without a kernel of which the store was not told.
    pub(super) fn untold(&mut self) -> u32 {
        self.reader.as_mut().map_or(0, OneSided::tell)
    }

    /// A kernel of this connection has found what READs have not.
    pub(super) fn learn(&mut self, found: &About) {
        if let Some(reader) = &mut self.reader {
            reader.index_mut().learn(found.version);
        }
    }

    /// A kernel of this connection has found what a chain has not.
    pub(super) fn learn_by_chain(&mut self, found: &About) -> Result<(), StoreError> {
        let Some(chain) = &mut self.chain else { return Ok(()) };
        now(operations::learn_by_chain(&mut self.calls, chain, found))
    }

    pub(super) fn counters(&self) -> OneSidedCounters {
        self.reader.as_ref().map(OneSided::counters).unwrap_or_default()
    }
}
