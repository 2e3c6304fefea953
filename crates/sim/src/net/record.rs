//! How the network notes what happens: pauses, packets by a link, the use of links. Noting changes
//! nothing of what happens.

use super::engine::Net;
use super::notes::{Notes, PacketNote, PauseNote};
use super::packets::{Kind, Packet};
use super::port::Usage;
use super::topology::Link;

impl Net {
    /// Notes pauses from now on.
    pub fn note_pauses(&mut self) {
        self.notes.notes_pauses = true;
    }

    /// Notes the packets that arrive by a link from now on.
    pub fn capture(&mut self, link: u32) {
        self.ports[link as usize].flags.captured = true;
    }

    /// Takes what was noted.
    pub fn take_notes(&mut self) -> Notes {
        core::mem::take(&mut self.notes)
    }

    /// What a link was used for so far.
    pub fn usage(&self, link: u32) -> Usage {
        self.ports[link as usize].usage
    }

    /// The bytes that have left a link's port so far.
    pub fn sent(&self, link: u32) -> u64 {
        let port = &self.ports[link as usize];
        port.usage.bytes.saturating_sub(port.backlog(self.now))
    }

    /// Is a link's port sending?
    pub(crate) fn sends(&self, link: u32) -> bool {
        self.ports[link as usize].backlog(self.now) > 0
    }

    /// How many links there are. Those that leave hosts come first, in the order of hosts; then
    /// those that leave switches, in the order of the cables.
    pub fn links(&self) -> u32 {
        self.ports.len() as u32
    }

    /// The ends of a link, its rate, and the link in the other direction.
    pub fn link(&self, link: u32) -> Link {
        self.changes.links[link as usize]
    }

    #[cold]
    pub(super) fn note_pause(&mut self, link: u32, class: u8, paused: bool) {
        let Notes { pauses, missed, notes_pauses: true, rooms, .. } = &mut self.notes else {
            return;
        };
        rooms[0].note(pauses, missed, PauseNote { at: self.now, link, class, paused });
    }

    #[cold]
    pub(super) fn note_packet(&mut self, link: u32, packet: &Packet) {
        debug_assert!(self.ports[link as usize].flags.captured);
        if packet.kind != Kind::Data {
            return;
        }
        let Packet { dst, marked, .. } = *packet;
        let cargo = self.packets.look(packet.cargo);
        let entry = PacketNote { at: self.now, link, dst, marked, cargo };
        let Notes { packets, missed, rooms, .. } = &mut self.notes;
        rooms[1].note(packets, missed, entry);
    }
}
