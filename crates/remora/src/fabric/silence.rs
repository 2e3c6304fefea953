//! Why a peer on this machine does not answer: the kernel says what waits in its socket, and
//! what was lost there or in the socket of this card.

use std::collections::HashMap;
use std::net::IpAddr;

use remora_nic::Silence;

use crate::socket::{ReceiveQueue, Socket};

/// The most peers that are remembered.
const PEERS_MAX: usize = 4096;

/// The peers that have been asked about.
#[derive(Debug, Default)]
pub(super) struct Silences {
    /// The addresses of this machine, besides those of loopback.
    pub(super) own: Vec<IpAddr>,
    /// How many datagrams the kernel had dropped for want of room, when a peer was last asked
    /// about.
    dropped: HashMap<IpAddr, u32>,
}

impl Silences {
    /// Why does the card at `peer` not answer packets that go by UDP?
    pub(super) fn of(&mut self, peer: IpAddr, socket: &mut Socket) -> Silence {
        if !self.is_here(peer) || peer == socket.addr() {
            return Silence::Unexplained;
        }
        let Some(queue) = socket.queue_of(peer) else {
            let gone = socket.has_no_card(peer);
            return if gone { Silence::Gone } else { Silence::Unexplained };
        };
        if self.dropped.len() >= PEERS_MAX && !self.dropped.contains_key(&peer) {
            self.dropped.clear();
        }
        let overflows = self.overflows(peer, queue);
        // Answers to this card may have found no room in its own socket.
        let ours = socket.own_queue(peer).is_some_and(|own| self.overflows(socket.addr(), own));
        if queue.waiting > 0 || overflows || ours { Silence::Held } else { Silence::Unexplained }
    }

    /// Is `peer` an address of this machine?
    pub(super) fn is_here(&self, peer: IpAddr) -> bool {
        peer.is_loopback() || self.own.contains(&peer)
    }

    /// Has the socket at `addr` dropped anything since it was last asked about?
    fn overflows(&mut self, addr: IpAddr, queue: ReceiveQueue) -> bool {
        let before = self.dropped.insert(addr, queue.dropped);
        before.is_some_and(|before| before != queue.dropped)
    }
}
