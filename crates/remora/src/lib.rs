//! The live device: the card on real sockets, real memory and a real clock.
//!
//! [`socket`] and [`egress`] carry packets, [`memory`] reaches registered bytes, [`event`] wakes a
//! sleeper, [`interface`] finds the address to be, and [`pcap`] writes down what passed.
//!
//! `unsafe` stands only in `socket/sys.rs`, `interface.rs`, `event.rs` and under `memory`.
#![warn(missing_debug_implementations)]

pub mod egress;
pub mod event;
pub mod interface;
pub mod memory;
pub mod pcap;
pub mod socket;
