//! Peers as text, by which processes tell each other of their queue pairs.
#![allow(dead_code, reason = "each test program uses a part")]

use remora::Peer;
use remora::nic::Psn;

/// A peer as text.
pub(crate) fn written(peer: Peer) -> String {
    format!("{} {} {}", peer.address, peer.qpn, peer.psn.value())
}

/// A peer, and the numbers behind it.
pub(crate) fn read(line: &str) -> (Peer, Vec<u64>) {
    let (address, rest) = line.split_once(' ').unwrap();
    let numbers: Vec<u64> = rest.split(' ').map(|word| word.parse().unwrap()).collect();
    let (qpn, psn) = (numbers[0] as u32, Psn::new(numbers[1] as u32));
    (Peer { address: address.parse().unwrap(), qpn, psn }, numbers[2..].to_vec())
}
