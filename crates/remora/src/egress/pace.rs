//! The pace of what is not sent again: UC and UD.
//!
//! Between machines, a network without loss holds a sender back where its receiver is slow; on one
//! machine, the kernel drops what the receiver's socket has no room for, without a word. So before
//! unreliable packets go to a socket of this machine, the kernel is asked how full it is, and they
//! wait for room. Reliable connections have a window instead.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use remora_nic::Transmit;
use remora_nic::wire::Transport;

use crate::socket::{ReceiveQueue, Socket};

/// Who takes nothing for so long gets the rest at once, for all others' packets wait behind it.
const PATIENCE: Duration = Duration::from_millis(50);
/// Bytes to somebody who is not on this machine, until he is sought again.
const ELSEWHERE: u64 = 1 << 20;
/// Peers that are remembered at most.
const PEERS_MAX: usize = 4096;

/// What a packet takes of a socket's room at most, or 0 if it waits for none: the kernel counts
/// what it allocated, in powers of two, and its own records.
pub(super) fn room_for(packet: &Transmit) -> u64 {
    let service = packet.header().first().map_or(0, |opcode| opcode >> 5);
    let unreliable = [Transport::Uc.code(), Transport::Ud.code()].contains(&service);
    if unreliable { 2 * packet.datagram_len() as u64 + 1024 } else { 0 }
}

/// Knows how much each peer's socket still takes.
#[derive(Debug, Default)]
pub(super) struct Pace {
    peers: HashMap<IpAddr, Peer>,
}

#[derive(Debug, Default)]
struct Peer {
    /// Room that nobody else will have taken meanwhile.
    room: u64,
    /// Since when its queue has not become shorter than this.
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

/// Half of what is free: others may send there, too.
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
    fn who_takes_nothing_is_waited_for_only_so_long() {
        let mut peer = Peer::default();
        let queue = |waiting| ReceiveQueue { waiting, room: 1000 };
        assert!(peer.has_room(queue(250), 10_000), "nearly empty: more than fits never would");
        assert!(peer.has_room(queue(500), 250));
        assert!(!peer.has_room(queue(500), 251));
        assert!(!peer.has_room(queue(500), 251));
        let (since, least) = peer.full.unwrap();
        peer.full = Some((since - PATIENCE, least));
        assert!(!peer.has_room(queue(499), 300), "it has taken something");
        let (since, least) = peer.full.unwrap();
        peer.full = Some((since - PATIENCE, least));
        assert!(peer.has_room(queue(499), 300), "it takes nothing");
        assert!(peer.has_room(queue(900), 300), "and nobody waits for it again");
        assert!(peer.has_room(queue(0), 300) && peer.full.is_none());
    }
}
