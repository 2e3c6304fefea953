//! The live card: RoCE v2 over UDP sockets, embedded in a process, without hardware or root.
//!
//! [`Device::open`] gives a device on loopback, [`DeviceOptions`] others. From there, the words are
//! those of verbs: a [`ProtectionDomain`] holds [`MemoryRegion`]s and [`QueuePair`]s, which report
//! to [`CompletionQueue`]s; a [`Listener`] and [`connect`](Device::connect) bring queue pairs
//! together by RDMA connection management.
//!
//! [`kernel`] puts code on the card's data path (StRoM), and calls it from elsewhere; [`chain`]
//! loads programs of work requests (RedN).
//!
//! Registered memory is foreign memory: the card and its peers read and write it at any time. So a
//! [`Buffer`](memory::Buffer) is read and written by copies, and never lent as a slice.
//!
//! Below the device: [`socket`] and [`egress`] carry packets, [`memory`] reaches registered bytes,
//! [`interface`] finds the address to be, and [`pcap`] writes down what passed. Where `unsafe`
//! stands, and for what, is a table in CONTRIBUTING.md that the checks hold to the code.
#![warn(missing_debug_implementations)]

mod background;
pub mod chain;
pub mod channel;
pub mod completion;
pub mod connection;
pub mod device;
mod driver;
pub mod egress;
pub mod event;
pub mod interface;
pub mod kernel;
mod live;
pub mod memory;
pub mod multicast;
mod park;
pub mod pcap;
pub mod prelude;
pub mod queue_pair;
pub mod raw;
pub mod region;
pub mod remote;
pub mod request;
pub mod runtime;
mod scheduling;
pub mod slice;
pub mod socket;
mod wakes;

pub use chain::{Chain, ChainBudget, LoadError, RingRegion};
pub use channel::{Channel, WaitError};
pub use completion::CompletionQueue;
pub use connection::{ConnectFailure, Connection, ConnectionEnd, IncomingConnection, Listener};
pub use device::{Device, DeviceCounters, DeviceInfo, DeviceOptions, OpenError, SocketInfo};
pub use queue_pair::{
    ConnectionParams, CreateQpError, Peer, PostBatch, QueuePair, QueuePairOptions,
    SharedReceiveQueue,
};
pub use region::{AddressHandle, MemoryRegion, ProtectionDomain, RegisterError};
pub use remora_nic as nic;
pub use remora_offload as offload;
pub use remote::{Remote, RemoteError};
pub use request::{Request, RequestError};
pub use slice::MemorySlice;
