//! The pace of unreliable packets (UC and UD), which are not sent again.
//!
//! Between machines, a lossless network slows a sender down to its receiver. On one machine, the
//! kernel silently drops packets for which the receiver's socket has no room. So before unreliable
//! packets go to a socket of this machine, the kernel is asked how full that socket is, and the
//! packets wait for room. Reliable connections have a window instead.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use remora_nic::Transmit;
use remora_nic::wire::Transport;

use crate::socket::{ReceiveQueue, Socket};

/// How long packets wait for a peer that receives nothing. Then they are sent in any case, since
/// the packets to all other peers wait behind them.
const PATIENCE: Duration = Duration::from_millis(50);
/// Bytes that are sent to a peer on another machine before the kernel is asked for its socket
/// again.
const ELSEWHERE: u64 = 1 << 20;
/// The most peers that are remembered.
const PEERS_MAX: usize = 4096;

/// The most room that a packet takes in a socket, or 0 for packets that do not wait: the kernel
/// counts the memory that it allocates, in powers of two, and its own records.
pub(super) fn room_for(packet: &Transmit) -> u64 {
    let service = packet.header().first().map_or(0, |opcode| opcode >> 5);
    let unreliable = [Transport::Uc.code(), Transport::Ud.code()].contains(&service);
    if unreliable { 2 * packet.datagram_len() as u64 + 1024 } else { 0 }
}

/// How much room each peer's socket has.
#[derive(Debug, Default)]
pub(super) struct Pace {
    peers: HashMap<IpAddr, Peer>,
}

#[derive(Debug, Default)]
struct Peer {
    /// Room that this sender may use before it asks the kernel again.
    room: u64,
    /// The length of the peer's queue, and since when it has not become shorter.
    full: Option<(Instant, u32)>,
}

impl Pace {
    /// May packets that take `room` go to `to` now?
    pub(super) fn admits(&mut self, socket: &mut Socket, to: IpAddr, room: u64) -> bool {
        if room == 0 || to.is_multicast() {
            return true;
        }
        if self.peers.len() >= PEERS_MAX && !self.peers.contains_key(&to) {
            self.peers.clear();
        }
        let peer = self.peers.entry(to).or_default();
        if peer.room < room {
            match socket.queue_of(to) {
                Some(queue) if !peer.has_room(queue, room) => return false,
                Some(queue) => peer.room = room.max(free(queue)),
                None => peer.room = room.max(ELSEWHERE),
            }
        }
        peer.room -= room;
        true
    }
}

/// Half of what is free, since other senders may use the rest.
fn free(queue: ReceiveQueue) -> u64 {
    u64::from(queue.room.saturating_sub(queue.waiting)) / 2
}

impl Peer {
    fn has_room(&mut self, queue: ReceiveQueue, room: u64) -> bool {
        if room <= free(queue) || queue.waiting <= queue.room / 4 {
            self.full = None;
            return true;
        }
        match self.full {
            Some((since, least)) if queue.waiting >= least => since.elapsed() >= PATIENCE,
            _ => {
                self.full = Some((Instant::now(), queue.waiting));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_wait_for_a_peer_that_receives_nothing_for_a_limited_time() {
        let mut peer = Peer::default();
        let queue = |waiting| ReceiveQueue { waiting, room: 1000, dropped: 0 };
        assert!(peer.has_room(queue(250), 10_000), "nearly empty: waiting makes no more room");
        assert!(peer.has_room(queue(500), 250));
        assert!(!peer.has_room(queue(500), 251));
        assert!(!peer.has_room(queue(500), 251));
        let (since, least) = peer.full.unwrap();
        peer.full = Some((since - PATIENCE, least));
        assert!(!peer.has_room(queue(499), 300), "the peer has received something");
        let (since, least) = peer.full.unwrap();
        peer.full = Some((since - PATIENCE, least));
        assert!(peer.has_room(queue(499), 300), "the peer receives nothing");
        assert!(peer.has_room(queue(900), 300), "and packets do not wait again");
        assert!(peer.has_room(queue(0), 300) && peer.full.is_none());
    }
}
