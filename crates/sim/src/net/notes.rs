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

/// What was noted: all of it up to some moment, whatever the number of parts.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    /// Pauses, if they are noted: by time, those of a moment by link, and those of a link in the
    /// order in which they came.
    pub pauses: Vec<PauseNote>,
    /// Packets by the links that are captured, in the same order.
    pub packets: Vec<PacketNote>,
    /// What was not noted for want of room.
    pub missed: u64,
    pub(super) notes_pauses: bool,
    /// Of each of the two lists.
    pub(super) rooms: [Room; 2],
}

/// What a list of notes takes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    bytes: u64,
    /// The moment of the first note that found no room.
    full_at: Option<Ps>,
}

/// What the notes of each kind may take, in bytes.
const MOST: u64 = 1 << 30;
/// What a note counts at least: so there are at most two million.
const LEAST: u64 = 512;

/// A note of some kind.
pub(super) trait Note {
    fn place(&self) -> (Ps, u32);
    /// What it takes of memory, in bytes.
    fn bytes(&self) -> u64;
}

impl Note for PauseNote {
    fn place(&self) -> (Ps, u32) {
        (self.at, self.link)
    }

    fn bytes(&self) -> u64 {
        LEAST
    }
}

impl Note for PacketNote {
    fn place(&self) -> (Ps, u32) {
        (self.at, self.link)
    }

    fn bytes(&self) -> u64 {
        let content = match &self.cargo {
            Cargo::Head(_) => 0,
            wire @ Cargo::Wire(_) => wire.start().1,
        };
        LEAST + content
    }
}

impl Room {
    /// Adds a note, if there is room.
    pub(super) fn note<T: Note>(&mut self, list: &mut Vec<T>, missed: &mut u64, note: T) {
        self.bytes += note.bytes();
        if self.bytes > MOST || self.full_at.is_some() {
            self.full_at.get_or_insert(note.place().0);
            *missed += 1;
        } else {
            list.push(note);
        }
    }

    /// Puts the list in order, and leaves out what came when the room was full or later: what one
    /// part alone would have had no room for.
    fn settle<T: Note>(&mut self, list: &mut Vec<T>, missed: &mut u64) {
        // Those of a link come from one part, in order.
        list.sort_by_key(T::place);
        let mut sum = 0;
        let over = list.iter().find(|note| {
            sum += note.bytes();
            sum > MOST
        });
        let full_at = self.full_at.into_iter().chain(over.map(|note| note.place().0)).min();
        if let Some(at) = full_at {
            let kept = list.partition_point(|note| note.place().0 < at);
            *missed += (list.len() - kept) as u64;
            list.truncate(kept);
        }
        (self.bytes, self.full_at) = (sum, full_at);
    }
}

impl Notes {
    /// Adds those of another part of the network.
    pub(crate) fn add(&mut self, other: Notes) {
        self.pauses.extend(other.pauses);
        self.packets.extend(other.packets);
        self.missed += other.missed;
        for (room, other) in self.rooms.iter_mut().zip(other.rooms) {
            room.full_at = [room.full_at, other.full_at].into_iter().flatten().min();
        }
    }

    /// Has all times be from `start` on.
    pub(crate) fn since(&mut self, start: Ps) {
        self.pauses.iter_mut().for_each(|note| note.at -= start);
        self.packets.iter_mut().for_each(|note| note.at -= start);
        self.rooms.iter_mut().filter_map(|room| room.full_at.as_mut()).for_each(|at| *at -= start);
    }

    /// Once all parts are added: puts all in order.
    pub(crate) fn settle(&mut self) {
        let [pauses, packets] = &mut self.rooms;
        pauses.settle(&mut self.pauses, &mut self.missed);
        packets.settle(&mut self.packets, &mut self.missed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pause(at: Ps, link: u32, paused: bool) -> PauseNote {
        PauseNote { at, link, class: 0, paused }
    }

    /// What these parts have noted together.
    fn together(parts: &[Vec<PauseNote>]) -> Notes {
        let mut all = Notes::default();
        for part in parts {
            let mut own = Notes::default();
            let Notes { pauses, missed, rooms, .. } = &mut own;
            part.iter().for_each(|note| rooms[0].note(pauses, missed, *note));
            all.add(own);
        }
        all.settle();
        all
    }

    #[test]
    fn a_links_notes_of_one_moment_keep_their_order() {
        let first = vec![pause(5, 1, true), pause(5, 1, false), pause(5, 1, true)];
        let other = vec![pause(4, 2, true), pause(5, 0, true)];
        let expected = [&other[..1], &other[1..], &first[..]].concat();
        for parts in [[first.clone(), other.clone()], [other, first]] {
            assert_eq!(together(&parts).pauses, expected);
        }
    }

    /// Without room, one part and two have the same notes: those before the first that found none.
    #[test]
    fn what_finds_no_room_is_the_same_in_any_number_of_parts() {
        let most = (MOST / LEAST) as usize;
        // Two links in turn, and two notes of each moment.
        let all: Vec<PauseNote> =
            (0..most as u64 + 11).map(|i| pause(i / 2, (i % 2) as u32, i % 4 < 2)).collect();
        let of = |link| all.iter().copied().filter(|note| note.link == link).collect::<Vec<_>>();
        let whole = together(core::slice::from_ref(&all));
        assert_eq!((whole.pauses.len(), whole.missed), (most, 11));
        assert!(whole.pauses == all[..most]);
        let two = together(&[of(0), of(1)]);
        assert!(two.pauses == whole.pauses && two.missed == whole.missed);
        // One link alone fills its part; the other has few, the last of them too late.
        let busy: Vec<PauseNote> = (0..most as u64 + 5).map(|i| pause(i, 0, true)).collect();
        let few = [pause(3, 1, true), pause(most as u64 + 9, 1, false)];
        let mut both = [&busy[..], &few].concat();
        both.sort_by_key(|note| (note.at, note.link));
        let (two, one) = (together(&[busy, few.to_vec()]), together(&[both]));
        assert!(two.pauses == one.pauses && two.missed == one.missed);
        assert_eq!(one.pauses.len(), most);
    }

    /// Packets that exist count with all their bytes.
    #[test]
    fn packets_with_bytes_find_less_room() {
        let wire = crate::packet::Wire::hollow(
            (crate::flows::Cluster::address(0), crate::flows::Cluster::address(1)),
            (1, 0),
            &[0; 12],
            4096,
        );
        let note = PacketNote {
            at: 0,
            link: 0,
            dst: 1,
            marked: false,
            cargo: Cargo::Wire(Box::new(wire)),
        };
        assert!(note.bytes() > 4096 && note.bytes() < 4096 + 2 * LEAST, "{}", note.bytes());
    }
}
