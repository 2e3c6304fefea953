//! Tests of the lossy dialect between two cards: what becomes of answers, of requests that fail,
//! and of those that wait, when packets are lost in an unlucky order.

mod answers;
mod elements;
mod memory;
mod paths;
#[path = "../support/ram.rs"]
mod ram;
mod recoveries;
mod rig;
mod silence;
mod waits;
mod weather;
