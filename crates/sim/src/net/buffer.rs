//! A switch's buffer: who may use how much of it.
//!
//! The ports of a switch share its buffer; with classes, a port has a queue for each. A queue may
//! grow up to a dynamic threshold, `alpha` times what is free (Choudhury, Hahne: Dynamic Queue
//! Length Thresholds for Shared-Memory Packet Switches, IEEE/ACM ToN 1998), so that few queues get
//! much and many get little each.

use super::marking::Marking;

/// The properties of a switch's buffer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BufferOptions {
    /// What all ports share, in bytes.
    pub bytes: u64,
    /// A queue may have this many times what is free.
    pub alpha: f64,
    /// The most bytes of one queue, whatever is free.
    pub queue_bytes: u64,
    /// When packets are marked; the thresholds are for ports of the rate `marking_bits`, and grow
    /// in proportion to a port's rate.
    pub marking: Option<Marking>,
    /// The rate in bits per second that `marking` is for; zero: the thresholds are for ports of any
    /// rate.
    pub marking_bits: u64,
}

impl Default for BufferOptions {
    /// 32 MB with an `alpha` of 1, and no marking.
    fn default() -> BufferOptions {
        BufferOptions {
            bytes: 32 << 20,
            alpha: 1.0,
            queue_bytes: u64::MAX,
            marking: None,
            marking_bits: 0,
        }
    }
}

impl BufferOptions {
    /// A buffer without an end, and without marks.
    pub const ENDLESS: BufferOptions = BufferOptions {
        bytes: u64::MAX,
        alpha: 1.0,
        queue_bytes: u64::MAX,
        marking: None,
        marking_bits: 0,
    };

    /// The thresholds of a port of this rate in bits per second.
    pub(super) fn marking_at(&self, bits: Option<u64>) -> Option<Marking> {
        let marking = self.marking?;
        let (Some(bits), 1..) = (bits, self.marking_bits) else { return Some(marking) };
        let base = u128::from(self.marking_bits);
        let scale = |bytes: u64| {
            let scaled = u128::from(bytes) * u128::from(bits) / base;
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        let (from_bytes, to_bytes) = (scale(marking.from_bytes), scale(marking.to_bytes));
        Some(Marking { from_bytes, to_bytes, ..marking })
    }
}

/// What a switch does with a packet that meets a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It has room.
    Accept,
    /// It has none.
    Drop,
    /// It has none if the number of bytes in use is right, which is an upper bound.
    Recount,
}

/// The buffer of one switch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffer {
    options: BufferOptions,
    /// Bytes in use, or more.
    pub(super) used: u64,
}

impl Buffer {
    pub(super) fn new(options: BufferOptions) -> Buffer {
        Buffer { options, used: 0 }
    }

    /// Takes the limit away.
    pub(super) fn widen(&mut self) {
        self.options = BufferOptions::ENDLESS;
    }

    /// Is there no limit, so that nobody needs to count?
    #[inline]
    pub(super) fn is_endless(&self) -> bool {
        self.options.bytes == u64::MAX
    }

    /// Bytes that are free.
    #[inline]
    pub(super) fn free(&self) -> u64 {
        self.options.bytes.saturating_sub(self.used)
    }

    /// May a packet of `bytes` join a queue of `queue` bytes? `exact` says that `used` is not just
    /// an upper bound.
    #[inline]
    pub(super) fn judge(&self, queue: u64, bytes: u64, exact: bool) -> Verdict {
        let free = self.free();
        let limit = ((free as f64 * self.options.alpha) as u64).min(self.options.queue_bytes);
        // A packet that finds its queue empty is dropped only if there is no room at all.
        let fits = bytes <= free && (queue + bytes <= limit || queue == 0);
        match (fits, exact) {
            (true, _) => Verdict::Accept,
            (false, true) => Verdict::Drop,
            (false, false) => Verdict::Recount,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_gets_less_the_more_is_in_use() {
        let options = BufferOptions { bytes: 1000, alpha: 0.5, ..BufferOptions::default() };
        let mut buffer = Buffer::new(options);
        assert_eq!(buffer.judge(400, 100, true), Verdict::Accept);
        assert_eq!(buffer.judge(401, 100, true), Verdict::Drop);
        buffer.used = 800;
        assert_eq!(buffer.judge(50, 50, true), Verdict::Accept);
        assert_eq!(buffer.judge(51, 50, true), Verdict::Drop);
        assert_eq!(buffer.judge(51, 50, false), Verdict::Recount);
        assert_eq!(buffer.judge(0, 150, true), Verdict::Accept, "an empty queue takes one");
        assert_eq!(buffer.judge(0, 201, true), Verdict::Drop);
        let short = BufferOptions { queue_bytes: 300, ..options };
        assert_eq!(Buffer::new(short).judge(250, 100, true), Verdict::Drop);
    }

    #[test]
    fn thresholds_grow_with_the_rate() {
        let options = BufferOptions {
            marking: Some(Marking::step(300_000)),
            marking_bits: 100_000_000_000,
            ..BufferOptions::default()
        };
        let at = |gigabits: u64| options.marking_at(Some(gigabits * 1_000_000_000)).unwrap();
        assert_eq!(at(400), Marking::step(1_200_000));
        assert_eq!(at(25), Marking::step(75_000));
        assert_eq!(options.marking_at(None), Some(Marking::step(300_000)));
        let slow = BufferOptions { marking_bits: 500_000_000, ..options };
        assert_eq!(slow.marking_at(Some(250_000_000)), Some(Marking::step(150_000)));
        let all = BufferOptions { marking: Some(Marking::step(u64::MAX)), ..slow };
        assert_eq!(all.marking_at(Some(1_000_000_000)), Some(Marking::step(u64::MAX)));
    }
}
