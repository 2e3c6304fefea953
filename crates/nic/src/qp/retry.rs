//! Retries: how long a requester waits, how often it sends a request again, and when it gives up.
//!
//! There are two kinds: no acknowledge has come within the local ACK timeout (or a loss was seen
//! before), and the receiver was not ready (an RNR NAK; [`rnr_delay`] is the table of its timer
//! codes). What is sent again then is in `completer.rs`, and `lossy/completer.rs` for the lossy
//! dialect.

use core::time::Duration;

use super::Qp;
use crate::env::Env;
use crate::incident::{Cause, LossSign};
use crate::psn::Psn;
use crate::queue::Status;
use crate::time::Time;

/// The RNR retry count that means "without limit" (InfiniBand volume 1, chapter 9, Transport
/// Layer).
const RNR_FOR_EVER: u8 = 7;

impl Qp {
    /// Counts a retry from `psn` on, or gives up. Trouble began at `since`, if this is the first
    /// retry; `is_there` says whether the peer shows life in spite of it. Returns whether the
    /// requester tries again: after `retry_cnt` retries without progress the request ends with an
    /// error, except if the peer is there or its card has not taken them yet.
    pub(super) fn retry_or_give_up(
        &mut self,
        env: &mut Env<'_>,
        (psn, sign): (Psn, LossSign),
        since: Time,
        is_there: impl FnOnce(&Qp, Duration) -> bool,
    ) -> bool {
        if self.tx.retries_left == self.retry_cnt {
            self.cold.trouble_since = since;
        }
        let elapsed = env.now.since(self.cold.trouble_since);
        let held = self.retry_cnt > 0
            && (is_there(self, elapsed) || env.card.silent.is_held(self.path.dst, elapsed));
        if self.tx.retries_left == 0 && !held {
            let cause = Cause::RetriesExhausted { sign, retries: self.retry_cnt, elapsed };
            self.fail_front_for(env, Status::RetryExceeded, cause, (None, psn));
            return false;
        }
        env.card.counters.retries_waited += u64::from(self.tx.retries_left == 0);
        self.tx.retries_left = self.tx.retries_left.saturating_sub(1);
        true
    }

    /// Counts an RNR NAK for `psn`, or gives up: the request ends when the peer has said "not
    /// ready" once more than there are retries. Returns whether the requester waits and tries
    /// again.
    pub(super) fn rnr_retry_or_give_up(&mut self, env: &mut Env<'_>, psn: Psn) -> bool {
        if self.tx.rnr_retries_left == self.rnr_retry {
            self.cold.trouble_since = env.now;
        }
        if self.tx.rnr_retries_left == 0 {
            let elapsed = env.now.since(self.cold.trouble_since);
            let cause = Cause::RnrRetriesExhausted { retries: self.rnr_retry, elapsed };
            self.fail_front_for(env, Status::RnrRetryExceeded, cause, (None, psn));
            return false;
        }
        if self.rnr_retry != RNR_FOR_EVER {
            self.tx.rnr_retries_left -= 1;
        }
        // The peer answers, so that nothing is wrong with the path to it.
        self.tx.retries_left = self.retry_cnt;
        true
    }
}

/// The local ACK timeout in nanoseconds: 4.096 µs · 2^`code`; code 0 means that there is none.
#[inline]
pub(crate) fn ack_timeout_ns(code: u8) -> Option<u64> {
    (code != 0).then(|| 4096 << code.min(31))
}

/// The wait for an acknowledge after `vain` retries in a row without an answer, if one without such
/// retries is `wait_ns`: in nanoseconds. A requester may wait for one to four times the local ACK
/// timeout (InfiniBand volume 1, chapter 9, Transport Layer). After two retries, which a loss may
/// take, more and more of that is used, so that a busy peer is not given up early. Waits of a
/// second are long enough as they are.
#[inline]
fn wait_again_ns(wait_ns: u64, vain: u8) -> u64 {
    const LONG_NS: u64 = 1_000_000_000;
    wait_ns.saturating_mul(1 << vain.saturating_sub(2).min(2)).min(wait_ns.max(LONG_NS))
}

/// As [`wait_again_ns`], for queue pair `qpn`: between once and one and a half times that, or half
/// and once where it is the longest wait. Queue pairs that have lost their packets at one moment,
/// in a queue that all have filled, would fill it again and again if they waited equally long.
#[inline]
pub(crate) fn wait_apart_ns(wait_ns: u64, vain: u8, qpn: u32) -> u64 {
    let whole = wait_again_ns(wait_ns, vain);
    if vain == 0 {
        return whole;
    }
    // A number of 8 bits that differs from queue pair to queue pair, and from time to time.
    let drawn = (qpn ^ u32::from(vain) << 24).wrapping_mul(0x9E37_79B1) >> 24;
    let apart = (whole >> 9).saturating_mul(drawn.into());
    let later = whole.saturating_add(apart);
    if later <= wait_ns.saturating_mul(4) { later } else { whole - apart }
}

/// The wait that an RNR NAK's 5-bit timer code asks for (InfiniBand volume 1, chapter 9, Transport
/// Layer; soft-RoCE's `rnrnak_usec`).
pub fn rnr_delay(code: u8) -> Duration {
    const HUNDREDTHS_OF_MS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    Duration::from_micros(u64::from(HUNDREDTHS_OF_MS[usize::from(code & 31)]) * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_the_specification() {
        assert_eq!(ack_timeout_ns(0), None);
        assert_eq!(ack_timeout_ns(14), Some(67_108_864));
        let ms = |ms: u64| ms * 1_000_000;
        let waits = |wait| [2, 3, 4, 7].map(|vain| wait_again_ns(ms(wait), vain));
        assert_eq!(waits(67), [67, 134, 268, 268].map(ms));
        assert_eq!(waits(400), [400, 800, 1000, 1000].map(ms));
        assert_eq!(waits(4300), [4300; 4].map(ms));
        for (vain, least, most) in [(0, 64, 64), (1, 64, 96), (3, 128, 192), (4, 128, 256)] {
            let waits: Vec<u64> = (0..100).map(|qpn| wait_apart_ns(ms(64), vain, qpn)).collect();
            assert!(waits.iter().all(|wait| (ms(least)..=ms(most)).contains(wait)), "{waits:?}");
            let differ: std::collections::BTreeSet<_> = waits.iter().collect();
            assert!(differ.len() > 50 || vain == 0, "{waits:?}");
        }
        assert_eq!(rnr_delay(0), Duration::from_micros(655_360));
        assert_eq!(rnr_delay(12), Duration::from_micros(640));
        assert_eq!(rnr_delay(31), Duration::from_micros(491_520));
    }
}
