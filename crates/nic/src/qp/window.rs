//! The congestion window: how many packets a requester may have outstanding.
//!
//! [`super::requester`] sends no more than that. The policies of [`super::congestion`] open
//! and shrink it; [`super::completer`] tells them of acknowledges and losses.

use crate::psn::Psn;

/// A window in packets that halves at a sign of congestion and grows by one a round trip.
///
/// Additive increase and multiplicative decrease, with at most one decrease for each window. It is
/// the credit that the scheduler asks for (SRNIC §4.3.1). So a receiver with a small socket buffer
/// is not sent more than it can hold for long.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    size: u16,
    /// Packets acknowledged since the last growth.
    acked: u16,
    recover: Recover,
}

/// Whether a decrease is under way. No second decrease comes before it is over.
#[derive(Clone, Copy, Debug)]
enum Recover {
    No,
    /// There are no decreases.
    Never,
    /// It is over when this PSN is acknowledged.
    Until {
        low: u16,
        high: u8,
    },
    /// After a silence the window is one packet, and grows by one with each acknowledged packet up
    /// to this size. Decreases are possible.
    Rising {
        to: u16,
    },
}

impl Recover {
    // The PSN takes 3 bytes and the tag one, as the window is part of every queue pair's hot state.
    fn until(psn: Psn) -> Recover {
        Recover::Until { low: psn.value() as u16, high: (psn.value() >> 16) as u8 }
    }

    fn is_over(self, una: Psn) -> bool {
        match self {
            Recover::No => true,
            Recover::Never | Recover::Rising { .. } => false,
            Recover::Until { low, high } => {
                !una.is_before(Psn::new(u32::from(low) | u32::from(high) << 16))
            }
        }
    }
}

/// The whole, of which policies count in parts.
pub(super) const ONE: u32 = 1 << 16;

/// The smallest window while anything is heard: losses are found by later packets.
const LEAST: u16 = 4;
/// The window after a silence. Where very many queue pairs share a queue, more of each would fill
/// it again.
const SILENT: u16 = 1;

impl Window {
    /// A window of `limit` packets, all of which may leave.
    pub fn new(limit: u16) -> Window {
        Window { size: limit.max(LEAST), acked: 0, recover: Recover::No }
    }

    /// A window that stays at its limit.
    pub(crate) fn fixed(limit: u16) -> Window {
        Window { recover: Recover::Never, ..Window::new(limit) }
    }

    /// Does the window stay at its limit?
    pub(crate) fn is_fixed(&self) -> bool {
        matches!(self.recover, Recover::Never)
    }

    /// Its size in packets.
    pub fn size(&self) -> u16 {
        self.size
    }

    /// May another packet leave while `in_flight` are unacknowledged?
    #[inline]
    pub fn has_room(&self, in_flight: u32) -> bool {
        in_flight < u32::from(self.size)
    }

    /// How many packets may leave between two that request an acknowledge: so few that even when
    /// the window halves, one of those in flight has requested one.
    #[inline]
    pub(crate) fn ask_every(&self, most: u32) -> u32 {
        most.min(u32::from(self.size) / 4).max(1)
    }

    /// Checks that the window is between its smallest size and its limit.
    #[inline]
    fn debug_assert_in_bounds(&self, limit: u16) {
        debug_assert!((SILENT..=limit.max(LEAST)).contains(&self.size), "{self:?}, {limit}");
    }

    /// Notes that `packets` more are acknowledged, and so all before `una`. The window grows up to
    /// `limit`.
    #[inline]
    pub fn acknowledged(&mut self, packets: u32, una: Psn, limit: u16) {
        // The usual case, first since each acknowledge comes here.
        if self.size < limit || !matches!(self.recover, Recover::No) {
            self.adapt(packets, una, limit);
        }
        self.debug_assert_in_bounds(limit);
    }

    #[inline(never)]
    fn adapt(&mut self, packets: u32, una: Psn, limit: u16) {
        self.end_decrease(una);
        if let Recover::Rising { to } = self.recover {
            let size = u32::from(self.size) + packets;
            self.size = size.min(to.into()) as u16;
            if self.size == to {
                self.recover = Recover::No;
            }
        } else if self.size < limit {
            self.acked = self.acked.saturating_add(packets.min(1 << 14) as u16);
            if self.acked >= self.size {
                self.acked -= self.size;
                self.size += 1;
            }
        }
    }

    /// Notes that all before `una` is acknowledged; the window does not grow.
    #[inline]
    pub(crate) fn end_decrease(&mut self, una: Psn) {
        if self.recover.is_over(una) {
            self.recover = Recover::No;
        }
    }

    /// Halves the window, as congestion or a loss was seen while packets up to `high` were
    /// outstanding.
    pub fn shrink(&mut self, high: Psn) {
        self.shrink_to(ONE / 2, high);
    }

    /// As [`Window::shrink`], to this part of its size: of [`ONE`], and half of that at least.
    pub(crate) fn shrink_to(&mut self, part: u32, high: Psn) {
        if matches!(self.recover, Recover::No | Recover::Rising { .. }) {
            self.cut(part, high);
        }
    }

    /// Is a decrease under way?
    pub(crate) fn is_shrinking(&self) -> bool {
        matches!(self.recover, Recover::Until { .. })
    }

    /// As [`Window::shrink_to`]. While a decrease is under way, the window goes down to this part
    /// of what it was `before` that, and the decrease begins anew.
    pub(super) fn shrink_from(&mut self, before: u16, part: u32, high: Psn) {
        let size = part_of(before, part);
        if !self.is_shrinking() {
            self.shrink_to(part, high);
        } else if size < self.size {
            (self.size, self.acked, self.recover) = (size, 0, Recover::until(high));
        }
    }

    /// Shrinks to one packet after a timeout, even if a decrease is under way: it was not enough.
    /// The window soon grows to half of what it was.
    pub(crate) fn restart(&mut self) {
        if !self.is_fixed() {
            let to = part_of(self.size, ONE / 2).max(LEAST);
            (self.size, self.acked, self.recover) = (SILENT, 0, Recover::Rising { to });
        }
    }

    /// The last decrease was for nothing: the window is what it was `before`, at least.
    pub(crate) fn undo(&mut self, before: Window) {
        if !self.is_fixed() && before.size > self.size {
            *self = before;
        }
    }

    fn cut(&mut self, part: u32, high: Psn) {
        self.size = part_of(self.size, part);
        self.acked = 0;
        self.recover = Recover::until(high);
    }
}

/// A part of a window, never less than half of it: see [`Window::ask_every`].
fn part_of(size: u16, part: u32) -> u16 {
    let part = u32::from(size) * part.clamp(ONE / 2, ONE) / ONE;
    (part as u16).max(LEAST.min(size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_decrease_a_window_then_growth() {
        let mut w = Window::new(64);
        w.shrink(Psn::new(100));
        w.shrink(Psn::new(120));
        assert!(w.has_room(31) && !w.has_room(32));
        w.acknowledged(32, Psn::new(50), 64);
        assert!(w.has_room(32) && !w.has_room(33));
        w.shrink(Psn::new(130));
        assert!(w.has_room(32), "still recovering from the first");
        w.acknowledged(1, Psn::new(100), 64);
        w.shrink(Psn::new(130));
        assert!(!w.has_room(16));
    }

    #[test]
    fn when_the_window_halves_one_in_flight_has_asked() {
        for limit in LEAST..300 {
            let mut w = Window::new(limit);
            let unasked = w.ask_every(64) - 1;
            w.shrink_to(0, Psn::new(0));
            assert!(unasked <= 64 && w.has_room(unasked), "a window of {limit}");
        }
    }

    #[test]
    fn after_a_silence_it_is_one_packet_and_rises_to_half() {
        let mut w = Window::new(64);
        w.restart();
        assert!(w.has_room(0) && !w.has_room(1));
        for (acked, size) in [(1, 2), (2, 4), (4, 8), (8, 16), (20, 32), (31, 32), (1, 33)] {
            w.acknowledged(acked, Psn::new(100), 64);
            assert_eq!(w.size(), size);
        }
        // Losses count meanwhile, and a second silence in a row.
        w.restart();
        w.acknowledged(7, Psn::new(200), 64);
        w.shrink(Psn::new(300));
        w.shrink(Psn::new(300));
        assert_eq!(w.size(), 4);
        for _ in 0..2 {
            w.restart();
            w.shrink(Psn::new(300));
            assert_eq!(w.size(), 1);
        }
        w.end_decrease(Psn::new(300));
        w.acknowledged(1, Psn::new(300), 64);
        assert_eq!(w.size(), 2);
    }

    #[test]
    fn a_fixed_window_stays() {
        let mut w = Window::fixed(64);
        for i in 0..10 {
            w.shrink(Psn::new(i));
            w.restart();
            w.acknowledged(5, Psn::new(i + 1), 64);
            assert!(w.has_room(63) && !w.has_room(64));
        }
        assert!(w.is_fixed());
    }

    #[test]
    fn it_shrinks_by_a_part_and_keeps_half_at_least() {
        for (part, left) in [(ONE, 64), (ONE * 3 / 4, 48), (ONE / 2, 32), (0, 32)] {
            let mut w = Window::new(64);
            w.shrink_to(part, Psn::new(9));
            w.shrink_to(0, Psn::new(9));
            assert_eq!(w.size(), left);
            w.end_decrease(Psn::new(9));
            w.shrink_to(0, Psn::new(9));
            assert_eq!(w.size(), (left / 2).max(LEAST));
        }
    }

    #[test]
    fn a_decrease_under_way_goes_deeper_and_to_half_at_most() {
        let mut w = Window::new(64);
        for (part, left) in [(ONE * 9 / 10, 57), (ONE, 57), (ONE * 3 / 4, 48), (0, 32), (0, 32)] {
            w.shrink_from(64, part, Psn::new(9));
            assert_eq!(w.size(), left);
        }
        w.end_decrease(Psn::new(9));
        w.shrink_from(32, 0, Psn::new(19));
        assert_eq!((w.size(), w.is_shrinking()), (16, true));
        let mut fixed = Window::fixed(64);
        fixed.shrink_from(64, 0, Psn::new(9));
        assert_eq!(fixed.size(), 64);
    }

    #[test]
    fn it_never_closes() {
        let mut w = Window::new(1);
        for i in 0..10 {
            w.shrink(Psn::new(i));
            w.acknowledged(0, Psn::new(i + 1), 64);
        }
        assert!(w.has_room(3));
    }
}
