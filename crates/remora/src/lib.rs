//! The live card: RoCE v2 over UDP sockets, embedded in a process, without hardware or root.
//! (“Where things are”, below, is the map of its files.)
//!
//! ```
//! use std::time::Duration;
//! use remora::prelude::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let timeout = Duration::from_secs(10);
//! let (server, client) = (Device::open()?, Device::open()?);   // free addresses of 127.0.0.0/8
//! let (theirs, mine) = (server.alloc_pd()?, client.alloc_pd()?);
//! let offered = theirs.alloc(4096, Access::all())?;             // registered, zeroed
//! let mr = mine.alloc(4096, Access::LOCAL_WRITE)?;
//!
//! let passive = theirs.create_qp(&QueuePairOptions::new())?;
//! let qp = mine.create_qp(&QueuePairOptions::new())?;
//! let params = ConnectionParams::new(client.info().mtu);
//! passive.connect(qp.local(), &params)?;
//! qp.connect(passive.local(), &params)?;
//!
//! mr.write_at(0, b"written by a peer")?;
//! let peer: Remote = offered.slice(..).remote();                // 20 bytes for the peer
//! qp.write(mr.slice(..17), peer.slice(..)).wait(timeout)?;      // or `.await?`
//! assert_eq!(offered.slice(..17).to_vec()?, b"written by a peer");
//! # Ok(())
//! # }
//! ```
//!
//! [`Device::open`] gives a device on loopback, [`DeviceOptions`] others. From there, the words are
//! those of verbs: a [`ProtectionDomain`] holds [`MemoryRegion`]s and [`QueuePair`]s; a
//! [`Listener`] and [`connect`](Device::connect) bring queue pairs together by RDMA connection
//! management.
//!
//! There are two ways to use a queue pair. Its requests can be futures, for any executor or for an
//! ordinary thread: [`request`]. Or the program posts work requests, as in verbs, and polls a
//! [`CompletionQueue`] or sleeps on a [`CompletionChannel`]: that takes the least time for each
//! request.
//! [`prelude`] has what programs usually need. The folder `examples` has five programs to start
//! from.
//!
//! [`kernel`] puts code on the card's data path (StRoM), and calls such code on other cards.
//! [`chain`] loads programs of work requests (RedN).
//!
//! The card and its peers read and write registered memory at any time. So the bytes of a
//! [`Buffer`](memory::Buffer) are copied in and out, and never lent as a slice.
//!
//! # Features
//! None is on by default: the plain card, which builds quickly.
//!
//! | feature | what it brings |
//! |---|---|
//! | `chain-text` | chains from their text form, and mistakes in it shown as a compiler would |
//! | `serde` | [`Remote`] can be serialized |
//! | `tokio` | completion channels and asynchronous events in tokio's reactor (futures need none) |
//!
//! # Where things are
//! - The device: [`device`] opens and queries it, `takeover` goes on with another process's
//!   session, `live` is what its threads share, and [`device_events`](DeviceEvents) what no
//!   completion reports. `driver` takes a step of the card,
//!   `background` drives it while no application thread does; `wakes` wakes tasks, `scheduling`
//!   asks for priorities, `yielding` gives a core away, [`event`] wakes a thread, [`threads`]
//!   starts one, and `clock` is the card's time. `by_number` has maps by numbers that the card
//!   gives.
//! - Whose card it is: `either` is a device's driver, with `own` for the commands of a card of this
//!   process, and `attach` for the card of another one. [`daemon`] is that other process's side,
//!   `shared` the memory between the two, `message` what they say to each other, `wake_socket` what
//!   wakes a client that sleeps, `closer` what closes descriptors that others have sent, `commands`
//!   what a device can be asked for, `destroy` the end of any object, `news` what the card tells
//!   it, and [`device_sharing`] what other processes, and forked children, do with a device.
//! - Memory: [`region`] has protection domains, regions and address handles; [`slice`](mod@slice)
//!   names parts of regions, [`remote`] those of a peer; [`memory`] reaches registered bytes;
//!   [`dma`] has the card's own memory, and the engine between it and applications'; `own_memory`
//!   is what an embedded card has of it.
//! - Queues: [`options`], [`queue_pair`], [`completion`], [`shared_receive`], [`multicast`];
//!   [`service_levels`] says which queue pairs go before others.
//!   Waiting for completions: [`channel`]; `event_queue` is what it holds, `alarm` its descriptor,
//!   `rings` the memory of queues, and `event_loop` says when packets make that readable, too.
//!   [`request`] makes futures of requests, `block_on` waits for one.
//! - Connections: [`connection`]. Programs on the card: [`kernel`], [`chain`].
//! - What connections speak: [`dialect`] chooses, `speaking` tells. `departed` remembers peers that
//!   have ended, `distant` is what is known of those on other machines, `silence` finds out
//!   why one does not answer, and `counters` counts.
//! - Packets: [`fabric`] carries them, by [`socket`] or, within a machine, by shared memory;
//!   [`egress`] hands them to it, [`impair`] is a bad network on request, [`pcap`] captures them,
//!   and [`interface`] finds the address of the card.
//! - Other interfaces to the device: [`raw`], for verbs in C; [`runtime`], the user's folder of
//!   files for it; [`sock_diag`], who owns a socket, and [`unix_names`], what others are called;
//!   [`rarely`] keeps answers that take time to make, and [`calendar`] has dates;
//!   `environment` reads variables, and `text` makes words from elsewhere fit to be printed.
//!
//! `docs/architecture.md` says in which order to read the code. A table in CONTRIBUTING.md says
//! where `unsafe` stands and what for; the checks compare it with the code.
#![warn(missing_debug_implementations)]

#[macro_use]
mod commands;
mod alarm;
mod attach;
mod background;
mod block_on;
mod by_number;
pub mod calendar;
pub mod chain;
pub mod channel;
mod clock;
mod closer;
pub mod completion;
pub mod connection;
mod counters;
pub mod daemon;
mod departed;
mod destroy;
pub mod device;
mod device_events;
pub mod device_sharing;
pub mod dialect;
mod distant;
pub mod dma;
mod driver;
pub mod egress;
mod either;
pub mod environment;
pub mod event;
mod event_loop;
mod event_queue;
pub mod fabric;
pub mod impair;
pub mod interface;
pub mod kernel;
mod live;
pub mod memory;
pub mod message;
pub mod multicast;
mod news;
pub mod options;
mod own;
mod own_memory;
pub mod pcap;
pub mod prelude;
pub mod queue_pair;
pub mod rarely;
pub mod raw;
pub mod region;
pub mod remote;
pub mod request;
mod rings;
pub mod runtime;
mod scheduling;
pub mod service_levels;
pub mod shared;
pub mod shared_receive;
mod silence;
#[cfg(test)]
#[path = "../tests/support/skips.rs"]
mod skips;
pub mod slice;
pub mod sock_diag;
pub mod socket;
mod speaking;
mod takeover;
mod text;
pub mod threads;
#[cfg(feature = "tokio")]
pub mod tokio;
pub mod unix_names;
mod wake_socket;
mod wakes;
mod yielding;

pub use attach::AdoptError;
pub use attach::{AttachError, MEMORY_VARIABLE, UnknownWay};
pub use block_on::wait_for;
pub use chain::{Chain, ChainBudget, LoadError, RingRegion};
pub use channel::{CompletionChannel, WaitError};
pub use completion::CompletionQueue;
pub use connection::{
    ConnectFailure, Connection, ConnectionEnd, Handshake, IncomingConnection, Listener,
};
pub use counters::DeviceCounters;
pub use device::{Device, DeviceInfo, DeviceOptions, OpenError, SocketInfo};
pub use device_events::DeviceEvents;
pub use dialect::DialectChoice;
pub use options::{ConnectionParams, Peer, QueuePairOptions};
pub use queue_pair::{PostBatch, QueuePair};
pub use region::{AddressHandle, MemoryRegion, ProtectionDomain, RegisterError};
pub use remora_nic as nic;
pub use remora_offload as offload;
pub use remote::{Remote, RemoteError};
pub use request::{Request, RequestError};
pub use shared_receive::{CreateQpError, SharedReceiveQueue};
pub use slice::MemorySlice;
pub use takeover::ReleaseError;
pub use text::printable;

/// The Rust of the README and of the pages about the device is compiled by the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
#[doc = include_str!("../../../docs/memory.md")]
#[doc = include_str!("../../../docs/nic.md")]
struct Pages;
