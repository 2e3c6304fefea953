//! What the network has noted for those who look at it: pauses, and packets by a link.

use super::packets::Cargo;
use super::time::Ps;

/// A port was paused, or may go on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PauseNote {
    /// When the port learnt of it.
    pub at: Ps,
    /// The link whose port it is.
    pub link: u32,
    /// The class.
    pub class: u8,
    /// Whether it has to stop, or may go on.
    pub paused: bool,
}

/// A packet that has come by a link.
#[derive(Clone, Debug)]
pub struct PacketNote {
    /// When its last bit arrived.
    pub at: Ps,
    /// The link.
    pub link: u32,
    /// The host that it is for.
    pub dst: u32,
    /// A switch has marked it.
    pub marked: bool,
    /// What it carries.
    pub cargo: Cargo,
}

/// What was noted.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Pauses, if they are noted.
    pub pauses: Vec<PauseNote>,
    /// Packets by the links that are captured.
    pub packets: Vec<PacketNote>,
    /// What was not noted for want of room.
    pub missed: u64,
    pub(super) notes_pauses: bool,
}

/// The most entries of each kind.
pub const MOST_NOTES: usize = 2_000_000;

impl Notes {
    /// Adds those of another part of the network.
    pub(crate) fn add(&mut self, other: Notes) {
        self.pauses.extend(other.pauses);
        self.packets.extend(other.packets);
        self.pauses.sort_unstable();
        // Those of a link come from one part, in order.
        self.packets.sort_by_key(|note| (note.at, note.link));
        self.missed += other.missed;
    }
}

/// Adds an entry, if there is room.
pub(super) fn note<T>(list: &mut Vec<T>, missed: &mut u64, entry: T) {
    if list.len() < MOST_NOTES {
        list.push(entry);
    } else {
        *missed += 1;
    }
}
