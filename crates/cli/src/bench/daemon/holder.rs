//! The hidden command `remora bench holder`: a process whose session outlives it, or the one that
//! takes the session over.
//!
//! The holder serves a list by a chain. It prints a [`Serving`], reads its client's queue pair, and
//! prints [`SERVES`]. The successor prints [`READY`], reads a ticket, and prints what it has
//! [`Taken`].

use std::io::{BufRead, Write};

use anyhow::{Context, Result};
use clap::Args;
use remora::message::{Keep, Object};
use remora::nic::{Access, Psn};
use remora::offload::chain::offload::{list, table::Value};
use remora::{AdoptError, CompletionQueue, Device, DeviceOptions, MemoryRegion, Peer, QueuePair};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::child;

/// What the holder says when its chain serves, and the successor before it reads.
pub(super) const SERVES: &str = "serves";
pub(super) const READY: &str = "ready";
/// The list's only key, and its value.
pub(super) const KEY: u64 = 7;
pub(super) const VALUE: &[u8] = b"seven";

/// The hidden command.
#[derive(Debug, Args)]
pub(in crate::bench) struct Holder {
    /// Take a session over, whose ticket comes by standard input
    #[arg(long)]
    successor: bool,
}

/// What a holder says of itself.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Serving {
    /// Where the list begins.
    pub(super) at: u64,
    /// The queue pair of the chain, as [`written`].
    peer: String,
    /// Entitles to the session.
    pub(super) ticket: String,
}

/// What a session had when it was taken over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Taken {
    pub(super) queue_pairs: u32,
    pub(super) completion_queues: u32,
    pub(super) regions: u32,
}

impl Holder {
    pub(in crate::bench) fn run(&self) -> Result<()> {
        if self.successor { succeed() } else { hold() }
    }
}

fn hold() -> Result<()> {
    let name = format!("list-{}", std::process::id());
    let device = DeviceOptions::new().keep(name, Keep::Forever).open()?;
    let domain = device.alloc_pd()?;
    let memory = domain.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
    let value = Value { addr: memory.addr() + 1024, len: VALUE.len() as u32 };
    memory.write_at(0, &list::nodes(memory.addr(), &[(KEY, value)]))?;
    memory.write_at(1024, VALUE)?;
    let chain = domain.load_chain(&list::walking(), &[memory.clone(), memory.clone()])?;
    let peer = written(chain.local().context("the chain answers nobody")?);
    let ticket = device.ticket().context("the session cannot be kept")?.to_string();
    say(&serde_json::to_string(&Serving { at: memory.addr(), peer, ticket })?)?;
    chain.serve(read(&heard()?)?, device.info().mtu)?;
    say(SERVES)?;
    wait_for_the_end()
}

fn succeed() -> Result<()> {
    say(READY)?;
    let ticket = heard()?.parse()?;
    let device = DeviceOptions::new().take_over(ticket, Keep::Forever).open()?;
    let adopted = Adopted::all(&device)?;
    say(&serde_json::to_string(&Taken::of(&device.taken()))?)?;
    let ended = wait_for_the_end();
    drop(adopted);
    ended
}

/// What a successor has in its hands.
struct Adopted {
    _memory: Vec<MemoryRegion>,
    _queues: Vec<CompletionQueue>,
    _queue_pairs: Vec<QueuePair>,
}

impl Adopted {
    /// All but the queue pairs of the chain, which goes on by itself.
    fn all(device: &Device) -> Result<Adopted> {
        let mut all = Adopted { _memory: vec![], _queues: vec![], _queue_pairs: vec![] };
        for object in device.taken() {
            match object {
                Object::Mr(key) => all._memory.push(device.adopt_region(key)?),
                Object::Cq(cq) => all._queues.push(device.adopt_cq(cq)?),
                Object::Qp(qpn) => match device.adopt_qp(qpn) {
                    Ok(qp) => all._queue_pairs.push(qp),
                    Err(AdoptError::Chain) => {}
                    Err(error) => return Err(error.into()),
                },
                _ => {}
            }
        }
        Ok(all)
    }
}

/// Until the bench ends this process, or has ended.
fn wait_for_the_end() -> Result<()> {
    child::end_with_stdin()?;
    loop {
        std::thread::park();
    }
}

fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

fn heard() -> Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).context("the bench says nothing")?;
    Ok(line.trim_end().to_owned())
}

/// What the other process has said in a line.
pub(super) fn told<T: DeserializeOwned>(line: &str) -> Result<T> {
    serde_json::from_str(line).with_context(|| format!("the other process says `{line}`"))
}

/// A queue pair as text.
pub(super) fn written(peer: Peer) -> String {
    format!("{} {} {}", peer.address, peer.qpn, peer.psn.value())
}

fn read(text: &str) -> Result<Peer> {
    let mut words = text.split_whitespace();
    let mut word = || words.next().context("a queue pair is described by three words");
    let address = word()?.parse()?;
    let (qpn, psn) = (word()?.parse()?, word()?.parse()?);
    Ok(Peer { address, qpn, psn: Psn::new(psn) })
}

impl Serving {
    /// The queue pair of the chain.
    pub(super) fn peer(&self) -> Result<Peer> {
        read(&self.peer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_is_read_as_it_was_written() {
        let peer = Peer { address: "127.0.0.9".parse().unwrap(), qpn: 17, psn: Psn::new(99) };
        assert_eq!(read(&written(peer)).unwrap(), peer);
        for text in ["", "127.0.0.9 17", "x 17 99", "127.0.0.9 -1 99"] {
            assert!(read(text).is_err(), "{text}");
        }
    }
}
