//! DCQCN: a rate that notifications cut, and that time and bytes raise again (SIGCOMM 2015).
//!
//! The rate paces turns. A rate changes only when somebody looks: what has been due since then is
//! made up for, so a queue pair needs no timer but the one that wakes it. When notifications are
//! sent is in [`super::notification`].

use core::time::Duration;

use crate::congestion::DcqcnTuning;
use crate::qp::window::ONE;
use crate::time::Time;
use crate::timers::Timer;

/// The most rises that are made up for at once: a longer pause says nothing more.
const RISES_MAX: u64 = 64;
/// A turn may send as much as the rate moves in this time, in nanoseconds, and so much lateness is
/// made up for.
const TURN: u64 = 16_000;
/// The bytes of a packet besides its payload: Ethernet, IP, UDP, transport.
const HEADERS: u64 = 82;

/// The rate of a queue pair.
#[derive(Debug)]
pub struct Dcqcn {
    tuning: DcqcnTuning,
    /// Bits per second: of the link, the target, and now.
    link: u64,
    target: u64,
    rate: u64,
    /// The estimated congestion, in parts of [`ONE`].
    estimate: u32,
    /// When the estimate last changed, when the rate was last cut, when time last raised it.
    estimated: Time,
    cut: Option<Time>,
    raised: Time,
    /// Bytes since they last raised it.
    bytes: u64,
    /// Rises since the last cut, by time and by bytes.
    by_time: u32,
    by_bytes: u32,
    /// When the next turn may send.
    opens: Time,
    /// Runs out when it opens.
    pub(crate) timer: Timer,
}

impl Dcqcn {
    /// A rate as high as that of the link, in bits per second.
    pub fn new(link: u64, tuning: DcqcnTuning) -> Dcqcn {
        let link = link.max(tuning.least_bits).max(1);
        Dcqcn {
            tuning,
            link,
            target: link,
            rate: link,
            estimate: ONE,
            estimated: Time::ZERO,
            cut: None,
            raised: Time::ZERO,
            bytes: 0,
            by_time: 0,
            by_bytes: 0,
            opens: Time::ZERO,
            timer: Timer::IDLE,
        }
    }

    /// When the next turn may send.
    pub fn opens(&self) -> Time {
        self.opens
    }

    /// The bytes that a turn may send now, in packets of `mtu`: one packet at least.
    pub fn turn(&mut self, mtu: u32, now: Time) -> u32 {
        self.catch_up(now);
        let bytes = u128::from(self.rate) * u128::from(TURN) / 8_000_000_000;
        let packets = u32::try_from(bytes).unwrap_or(u32::MAX) / mtu.max(1);
        packets.max(1).saturating_mul(mtu)
    }

    /// Notes that a turn has sent so many packets with so many bytes of payload.
    pub fn sent(&mut self, packets: u64, payload: u64, now: Time) {
        let bytes = payload + packets * HEADERS;
        let takes = u128::from(bytes) * 8_000_000_000 / u128::from(self.rate);
        let from = self.opens.0.max(now.0.saturating_sub(TURN));
        self.opens = Time(from.saturating_add(u64::try_from(takes).unwrap_or(u64::MAX)));
        self.bytes += bytes;
        let each = self.tuning.increase_bytes.max(1);
        let rises = if self.cut.is_some() { self.bytes / each } else { 0 };
        self.bytes -= rises * each;
        for _ in 0..rises.min(RISES_MAX) {
            self.by_bytes = self.by_bytes.saturating_add(1);
            self.raise();
        }
    }

    /// A notification, a mark or a loss: the rate is cut.
    pub fn notified(&mut self, now: Time) {
        self.catch_up(now);
        if self.cut.is_some_and(|at| now.since(at) < Duration::from_nanos(self.tuning.decrease_ns))
        {
            return;
        }
        self.target = self.rate;
        let part = u128::from(ONE - self.estimate / 2);
        self.rate = ((u128::from(self.rate) * part / u128::from(ONE)) as u64).max(self.least());
        let gain = gain(&self.tuning);
        let part = u64::from(self.estimate) * u64::from(gain) / u64::from(ONE);
        self.estimate = self.estimate - part as u32 + gain;
        (self.by_time, self.by_bytes, self.bytes) = (0, 0, 0);
        (self.cut, self.estimated, self.raised) = (Some(now), now, now);
    }

    /// Makes up for what has been due since somebody looked. Before the first notification nothing
    /// is: the rate is the link's.
    fn catch_up(&mut self, now: Time) {
        if self.cut.is_none() {
            return;
        }
        let passed = |since: Time, each: u64| (now.0.saturating_sub(since.0)) / each;
        let (decrease, increase) = (self.tuning.decrease_ns.max(1), self.tuning.increase_ns.max(1));
        let falls = passed(self.estimated, decrease);
        self.estimated = Time(self.estimated.0 + falls * decrease);
        self.estimate = fallen(self.estimate, falls, gain(&self.tuning));
        let rises = passed(self.raised, increase);
        self.raised = Time(self.raised.0 + rises * increase);
        for _ in 0..rises.min(RISES_MAX) {
            self.by_time = self.by_time.saturating_add(1);
            self.raise();
        }
    }

    /// One rise: half of the way to the target, which itself rises after
    /// [`DcqcnTuning::fast_rises`] of them.
    fn raise(&mut self) {
        let (least, most) = (self.by_time.min(self.by_bytes), self.by_time.max(self.by_bytes));
        let fast = self.tuning.fast_rises;
        let (least, most) = (u64::from(least), u64::from(most));
        let more = if least > fast {
            self.tuning.hyper_bits.saturating_mul(least - fast)
        } else if most > fast {
            self.tuning.additive_bits
        } else {
            0
        };
        self.target = self.target.saturating_add(more);
        self.target = self.target.min(self.link);
        self.rate = self.rate.midpoint(self.target);
    }

    /// The least rate: never more than the link's, and never none.
    fn least(&self) -> u64 {
        self.tuning.least_bits.max(1)
    }
}

/// The weight of a notification, in parts of [`ONE`].
fn gain(tuning: &DcqcnTuning) -> u32 {
    tuning.gain.min(ONE.into()) as u32
}

/// The estimate after so many times without a notification: each time it loses this part of
/// [`ONE`].
fn fallen(estimate: u32, times: u64, gain: u32) -> u32 {
    let mut left = u64::from(estimate);
    // The part that stays after 1, 2, 4, 8… times, by squaring.
    let (mut stays, mut times) = (u64::from(ONE - gain), times);
    while times > 0 && left > 0 {
        if times & 1 == 1 {
            left = left * stays / u64::from(ONE);
        }
        stays = stays * stays / u64::from(ONE);
        times >>= 1;
    }
    left as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: u64 = 100_000_000_000;
    const LEAST: u64 = 100_000_000;

    fn new(link: u64) -> Dcqcn {
        Dcqcn::new(link, DcqcnTuning::default())
    }

    fn at_us(us: u64) -> Time {
        Time(us * 1000)
    }

    #[test]
    fn without_notifications_the_rate_is_the_links() {
        let mut dcqcn = new(LINK);
        // 16 µs at 100 Gb/s are 200,000 bytes.
        assert_eq!(dcqcn.turn(4096, at_us(5)), 48 * 4096);
        dcqcn.sent(48, 48 * 4096, at_us(100));
        let late = 84_000 + (48 * (4096 + HEADERS)) * 8 / 100;
        assert_eq!(dcqcn.opens(), Time(late), "16 µs of lateness are made up for");
        assert_eq!(dcqcn.rate, LINK);
    }

    #[test]
    fn a_notification_halves_and_half_comes_back_soon() {
        let mut dcqcn = new(LINK);
        dcqcn.notified(at_us(1000));
        assert_eq!((dcqcn.rate, dcqcn.target), (LINK / 2, LINK));
        dcqcn.notified(at_us(1049));
        assert_eq!(dcqcn.rate, LINK / 2, "one cut in 50 µs");
        dcqcn.turn(4096, at_us(1055));
        assert_eq!(dcqcn.rate, LINK * 3 / 4);
        dcqcn.turn(4096, at_us(1000 + 5 * 55));
        assert!(dcqcn.rate > LINK * 98 / 100 && dcqcn.rate < LINK, "{}", dcqcn.rate);
        dcqcn.notified(at_us(2000));
        assert!(dcqcn.rate > LINK / 2 && dcqcn.target <= LINK, "the estimate has fallen");
    }

    #[test]
    fn the_rate_goes_no_lower_than_the_least_and_no_higher_than_the_link() {
        let mut dcqcn = new(LINK);
        for cut in 0..1000 {
            dcqcn.notified(at_us(1000 + cut * 50));
        }
        assert!(dcqcn.rate >= LEAST && dcqcn.rate < 20 * LEAST, "{}", dcqcn.rate);
        assert!(dcqcn.turn(4096, at_us(51_000)) == 4096, "a packet at least");
        for round in 0..2000u64 {
            dcqcn.turn(4096, at_us(60_000 + round * 10_000));
            dcqcn.sent(5000, 5000 * 4096, at_us(60_000 + round * 10_000));
            assert!(dcqcn.rate <= LINK && dcqcn.target <= LINK);
        }
        assert!(dcqcn.rate > LINK * 99 / 100, "{}", dcqcn.rate);
        dcqcn.turn(u32::MAX, Time::NEVER);
        dcqcn.sent(u64::from(u32::MAX), u64::from(u32::MAX), Time::NEVER);
        assert_eq!(new(0).rate, LEAST);
    }

    #[test]
    fn timers_rises_and_the_gain_are_what_they_are_set_to() {
        let tuning = DcqcnTuning {
            gain: u64::from(ONE),
            decrease_ns: 4_000,
            increase_ns: 300_000,
            fast_rises: 1,
            additive_bits: 40_000_000_000,
            least_bits: 10_000_000_000,
            ..DcqcnTuning::default()
        };
        let mut dcqcn = Dcqcn::new(LINK, tuning);
        dcqcn.notified(at_us(1000));
        dcqcn.notified(at_us(1003));
        assert_eq!((dcqcn.rate, dcqcn.target), (LINK / 2, LINK), "one cut in 4 µs");
        dcqcn.notified(at_us(1004));
        let now = (dcqcn.rate, dcqcn.target);
        assert_eq!(now, (LINK / 2, LINK / 2), "the estimate has fallen by all of it");
        dcqcn.turn(4096, at_us(1004 + 599));
        assert_eq!(dcqcn.rate, LINK / 2, "one rise, to the target");
        dcqcn.turn(4096, at_us(1004 + 600));
        assert_eq!((dcqcn.rate, dcqcn.target), (70_000_000_000, 90_000_000_000));
        let mut dcqcn = Dcqcn::new(LINK, DcqcnTuning { gain: 256, ..tuning });
        (0..100).for_each(|cut| dcqcn.notified(at_us(5000 + cut * 4)));
        assert_eq!(dcqcn.rate, 10_000_000_000);
    }

    /// Figures out of their bounds stop nothing.
    #[test]
    fn figures_that_make_no_sense_do_no_harm() {
        for all in [0, u64::MAX] {
            let tuning = DcqcnTuning {
                gain: all,
                decrease_ns: all,
                increase_ns: all,
                increase_bytes: all,
                fast_rises: all,
                additive_bits: all,
                hyper_bits: all,
                least_bits: all,
            };
            let mut dcqcn = Dcqcn::new(LINK, tuning);
            for us in [5, 100, 10_000] {
                dcqcn.notified(at_us(us));
                assert!(dcqcn.turn(4096, at_us(us)) >= 4096);
                dcqcn.sent(10, 40_960, at_us(us));
            }
        }
    }

    #[test]
    fn the_estimate_falls_as_one_by_one() {
        let mut slow = ONE;
        for times in 0..2000u64 {
            assert!(fallen(ONE, times, ONE / 256).abs_diff(slow) < ONE / 200, "{times}");
            slow -= slow >> 8;
        }
        assert_eq!(fallen(ONE, u64::MAX, ONE / 256), 0);
    }
}
