//! The sender of the models: IRN's loss recovery (SIGCOMM 2018, §3).

use core::time::Duration;
use std::collections::BTreeSet;

use super::receiver::Reply;

/// How long a model waits for an acknowledge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waits {
    /// Nanoseconds while fewer packets are under way than could show a loss.
    pub few_ns: u64,
    /// Nanoseconds otherwise.
    pub many_ns: u64,
    /// So many packets are not few.
    pub few: u64,
}

impl Default for Waits {
    /// 100 and 320 µs, and three packets (IRN §4.1, as conweave-ns3 has it).
    fn default() -> Waits {
        Waits { few_ns: 100_000, many_ns: 320_000, few: 3 }
    }
}

/// The sender.
#[derive(Debug)]
pub(crate) struct Sender {
    packets: u64,
    window: u64,
    waits: Waits,
    /// All before this packet has arrived.
    una: u64,
    /// The next packet to send for the first time.
    next: u64,
    /// Packets behind `una` that have arrived.
    arrived: BTreeSet<u64>,
    recovery: Option<Recovery>,
    /// How many times the timer was armed: only the last one counts.
    armed: u64,
    pub(crate) retransmitted: u64,
    pub(crate) timeouts: u64,
}

/// A recovery of losses.
#[derive(Clone, Copy, Debug)]
struct Recovery {
    /// It ends when all before this packet has arrived.
    until: u64,
    /// The next packet that may be sent again: each is once in a recovery.
    again: u64,
    /// The oldest packet is lost, whatever has arrived behind it.
    oldest: bool,
}

impl Sender {
    pub(crate) fn new(packets: u64, window: u64, waits: Waits) -> Sender {
        Sender {
            packets,
            window,
            waits,
            una: 0,
            next: 0,
            arrived: BTreeSet::new(),
            recovery: None,
            armed: 0,
            retransmitted: 0,
            timeouts: 0,
        }
    }

    /// How many packets may be outstanding from now on.
    pub(crate) fn set_window(&mut self, window: u64) {
        self.window = window;
    }

    /// All before this packet has arrived.
    pub(crate) fn una(&self) -> u64 {
        self.una
    }

    /// The packet behind the last that has left.
    pub(crate) fn high(&self) -> u64 {
        self.next
    }

    /// Are there packets that have not left?
    pub(crate) fn has_more(&self) -> bool {
        self.next < self.packets
    }

    /// Has everything arrived?
    pub(crate) fn is_done(&self) -> bool {
        self.una == self.packets
    }

    /// Is an acknowledge awaited?
    pub(crate) fn is_waiting(&self) -> bool {
        self.una < self.next
    }

    pub(crate) fn is_recovering(&self) -> bool {
        self.recovery.is_some()
    }

    /// The next packet to leave, and whether it has left before.
    pub(crate) fn next(&mut self) -> Option<(u64, bool)> {
        if let Some(psn) = self.lost() {
            self.retransmitted += 1;
            return Some((psn, true));
        }
        let may = self.next < self.packets && self.next - self.una < self.window;
        may.then(|| {
            self.next += 1;
            (self.next - 1, false)
        })
    }

    /// The next lost packet: one that has not arrived, though one behind it has.
    fn lost(&mut self) -> Option<u64> {
        let recovery = self.recovery.as_mut()?;
        let last = self.arrived.last().copied().unwrap_or(0);
        let end = if recovery.oldest { last.max(self.una + 1) } else { last };
        let from = recovery.again.max(self.una);
        let psn = (from..end.min(self.next)).find(|psn| !self.arrived.contains(psn))?;
        (recovery.again, recovery.oldest) = (psn + 1, false);
        Some(psn)
    }

    /// Takes an acknowledge. Returns whether the time-out begins anew.
    pub(crate) fn take(&mut self, reply: Reply) -> bool {
        let advances = reply.end > self.una;
        if advances {
            self.una = reply.end;
            self.arrived = self.arrived.split_off(&self.una);
        }
        if let Some(named) = reply.named.filter(|named| *named >= self.una) {
            self.arrived.insert(named);
            let (until, again) = (self.next, self.una);
            self.recovery.get_or_insert(Recovery { until, again, oldest: true });
        }
        self.recovery = self.recovery.filter(|recovery| self.una < recovery.until);
        advances && self.is_waiting()
    }

    /// Arms the timer. Returns the wait, and which arming this is.
    pub(crate) fn arm(&mut self) -> (Duration, u64) {
        self.armed += 1;
        let Waits { few_ns, many_ns, few } = self.waits;
        let is_few = self.next.saturating_sub(self.una) < few;
        (Duration::from_nanos(if is_few { few_ns } else { many_ns }), self.armed)
    }

    /// The timer has run out. Returns whether that was the one that counts.
    pub(crate) fn timed_out(&mut self, armed: u64) -> bool {
        if armed != self.armed || !self.is_waiting() {
            return false;
        }
        self.timeouts += 1;
        // The peer may have named the oldest packet, and its next acknowledge been lost.
        self.arrived.remove(&self.una);
        self.recovery = Some(Recovery { until: self.next, again: self.una, oldest: true });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_before_an_arrived_packet_is_sent_again_once() {
        let mut sender = Sender::new(100, 8, Waits::default());
        let first: Vec<_> = core::iter::from_fn(|| sender.next()).collect();
        assert_eq!(first.len(), 8, "the window");
        sender.take(Reply { end: 2, named: Some(5) });
        let again: Vec<_> = core::iter::from_fn(|| sender.next()).collect();
        assert_eq!(again, [(2, true), (3, true), (4, true), (8, false), (9, false)]);
        sender.take(Reply { end: 2, named: Some(6) });
        assert_eq!(sender.next(), None, "each once");
        assert!(sender.take(Reply { end: 8, named: None }) && !sender.is_recovering());
        let (_, armed) = sender.arm();
        assert!(!sender.timed_out(armed - 1) && sender.timed_out(armed));
        assert_eq!(sender.next(), Some((8, true)), "the oldest");
        assert_eq!(sender.next(), Some((10, false)));
    }

    #[test]
    fn the_oldest_packet_is_sent_again_even_if_it_was_named() {
        let mut sender = Sender::new(1, 8, Waits::default());
        assert_eq!(sender.next(), Some((0, false)));
        sender.take(Reply { end: 0, named: Some(0) });
        assert_eq!(sender.next(), None);
        let (_, armed) = sender.arm();
        assert!(sender.timed_out(armed));
        assert_eq!(sender.next(), Some((0, true)));
    }
}
