//! The plan of a test, which the client sends to the server when it connects.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::ValueEnum;
use remora::nic::qp::Mtu;
use remora_command::size::{SizeError, size_in};

use super::control::PATIENCE;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Mode {
    /// Time of one operation at a time; half a round trip for ping-pongs
    Lat,
    /// Bytes and messages a second with many operations in flight
    Bw,
}

/// How long a measurement lasts.
#[derive(Clone, Copy, Debug)]
pub(super) enum Until {
    /// This many messages on each queue pair.
    Messages(u64),
    /// This long.
    Elapsed(Duration),
}

/// The first bytes of the private data, with the version of the format of all the rest.
const MAGIC: [u8; 5] = *b"perf\x01";
/// The most queue pairs.
pub(super) const QPS_MAX: u32 = 1 << 17;
/// The longest message.
const SIZE_MAX: u32 = 1 << 30;
/// The most messages in flight on all queue pairs, as their rings take memory.
const IN_FLIGHT_MAX: u64 = 1 << 20;
/// The most bytes of messages when each queue pair has one in flight: a test with more says nothing
/// that one with fewer does not.
const BYTES_MAX: u64 = 4 << 30;
/// The most memory for messages in each direction; beyond it, queue pairs share slots.
const SLOTS_BYTES: u64 = 64 << 20;

/// The most bytes of messages of which only the last one is signaled.
const CHUNK_BYTES: u32 = 4 << 20;
/// The bytes a second of the slowest network that is measured.
const SLOWEST: u64 = 1 << 20;
/// The longest silence of a client. The plan, and so the time that it asks for, is the client's,
/// and meanwhile the server serves nobody else.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// The operation that is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Write = 1,
    Read = 2,
    Send = 3,
    Atomic = 4,
}

impl Verb {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verb::Write => "write",
            Verb::Read => "read",
            Verb::Send => "send",
            Verb::Atomic => "atomic",
        }
    }
}

/// A test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Plan {
    pub(super) verb: Verb,
    pub(super) mode: Mode,
    /// Bytes of a message.
    pub(super) size: u32,
    /// Queue pairs.
    pub(super) qps: u32,
    /// Messages in flight on each.
    pub(super) depth: u32,
}

impl Plan {
    /// The plan as private data of a connection request.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend([self.verb as u8, u8::from(self.mode == Mode::Bw), 0]);
        for number in [self.size, self.qps, self.depth] {
            out.extend(number.to_be_bytes());
        }
        out
    }

    /// Parses a client's plan, checking every field.
    pub(super) fn decode(bytes: &[u8]) -> Result<Plan> {
        ensure!(
            bytes.len() >= 20 && bytes[..5] == MAGIC,
            "the peer is not `remora perf` of the same version"
        );
        let verb = match bytes[5] {
            1 => Verb::Write,
            2 => Verb::Read,
            3 => Verb::Send,
            4 => Verb::Atomic,
            _ => bail!("unknown verb"),
        };
        let mode = if bytes[6] == 1 { Mode::Bw } else { Mode::Lat };
        let number = |at: usize| bytes[at..].first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
        let plan = Plan { verb, mode, size: number(8), qps: number(12), depth: number(16) };
        ensure!((1..=SIZE_MAX).contains(&plan.size), "message size out of range");
        ensure!((1..=QPS_MAX).contains(&plan.qps), "number of queue pairs out of range");
        ensure!((1..=8192).contains(&plan.depth), "depth out of range");
        plan.judge()?;
        Ok(plan)
    }

    /// Refuses a plan for which either end would need too much memory.
    pub(super) fn judge(&self) -> Result<()> {
        let in_flight = u64::from(self.qps) * u64::from(self.depth.next_power_of_two());
        ensure!(
            in_flight <= IN_FLIGHT_MAX,
            "{} queue pairs with {} messages in flight each are too many: at most {IN_FLIGHT_MAX} \
             in all",
            self.qps,
            self.depth
        );
        ensure!(
            u64::from(self.qps) * u64::from(self.size) <= BYTES_MAX,
            "{} queue pairs with messages of {} bytes are too many: at most {BYTES_MAX} bytes in \
             all",
            self.qps,
            self.size
        );
        Ok(())
    }

    /// Bytes from one slot to the next.
    pub(super) fn stride(&self) -> u64 {
        u64::from(self.size).next_multiple_of(64)
    }

    /// Slots for messages, in each direction: one for each queue pair, unless that takes too much
    /// memory.
    pub(super) fn slots(&self) -> u64 {
        u64::from(self.qps).min((SLOTS_BYTES / self.stride()).max(1))
    }

    /// Where messages arrive: the first byte of the slot of queue pair `i`.
    pub(super) fn inbox(&self, i: usize) -> u64 {
        i as u64 % self.slots() * self.stride()
    }

    /// The first byte of the slot from which queue pair `i` sends.
    pub(super) fn outbox(&self, i: usize) -> u64 {
        self.half() + self.inbox(i)
    }

    /// Bytes of all slots of one direction, in whole pages.
    pub(super) fn half(&self) -> u64 {
        (self.slots() * self.stride()).next_multiple_of(4096)
    }

    /// One of this many requests is signaled: a quarter of those in flight, of which the messages
    /// are not so long that nothing is heard of them for long.
    pub(super) fn chunk(&self) -> u32 {
        (self.depth / 4).clamp(1, 32).min((CHUNK_BYTES / self.size).max(1))
    }

    /// How long nothing may be heard of the peer, or of the requests in flight: as long as a slow
    /// network takes for what comes before the next word of them.
    pub(super) fn patience(&self) -> Duration {
        let chunks = u64::from(self.qps) * u64::from(self.chunk()) * self.stride();
        PATIENCE + Duration::from_secs(chunks.max(self.half()) / SLOWEST)
    }

    /// As [`Plan::patience`], for a server.
    pub(super) fn patience_of_server(&self) -> Duration {
        self.patience().min(SILENCE_MAX)
    }

    /// The name of the test, such as `write lat`.
    pub(super) fn name(&self) -> String {
        let mode = self.mode.to_possible_value().map_or_else(String::new, |v| v.get_name().into());
        format!("{} {mode}", self.verb.name())
    }
}

/// The size of a message.
pub(super) fn parse_message_size(text: &str) -> Result<u32, SizeError> {
    let bytes = size_in(1..=u64::from(SIZE_MAX))(text)?;
    Ok(u32::try_from(bytes).unwrap_or(SIZE_MAX))
}

/// An MTU by its bytes.
pub(super) fn parse_mtu(text: &str) -> Result<Mtu, String> {
    let mtus = (1..=5).filter_map(Mtu::from_code);
    mtus.into_iter()
        .find(|mtu| mtu.bytes().to_string() == text)
        .ok_or_else(|| "an MTU is 256, 512, 1024, 2048 or 4096".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_a_size() {
        assert_eq!(parse_message_size("64KB"), Ok(65_536));
        assert_eq!(parse_message_size("1G"), Ok(SIZE_MAX));
        for bad in ["0", "2G", "5T", "5X"] {
            assert!(parse_message_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_plan_survives_its_encoding() {
        let plan = Plan { verb: Verb::Atomic, mode: Mode::Bw, size: 8, qps: 1000, depth: 16 };
        assert_eq!(Plan::decode(&plan.encode()).unwrap(), plan);
        for bad in [&b""[..], b"perf\x02", &[0; 56], &Plan { qps: 0, ..plan }.encode()] {
            assert!(Plan::decode(bad).is_err());
        }
    }

    #[test]
    fn long_messages_are_signaled_more_often_and_waited_for_longer() {
        let of = |size| Plan { verb: Verb::Send, mode: Mode::Bw, size, qps: 2, depth: 128 };
        let chunks = [8, 64 << 10, 1 << 20, 4 << 20, SIZE_MAX].map(|size| of(size).chunk());
        assert_eq!(chunks, [32, 32, 4, 1, 1]);
        assert_eq!(of(8).patience(), PATIENCE);
        // Two messages of a GiB.
        assert_eq!(of(SIZE_MAX).patience(), PATIENCE + Duration::from_secs(2048));
    }

    #[test]
    fn a_client_cannot_make_the_server_wait_long() {
        let of = |size| Plan { verb: Verb::Send, mode: Mode::Bw, size, qps: 2, depth: 128 };
        assert_eq!(of(8).patience_of_server(), PATIENCE);
        assert_eq!(of(SIZE_MAX).patience_of_server(), SILENCE_MAX);
    }

    #[test]
    fn a_huge_plan_is_refused() {
        let plan = Plan { verb: Verb::Send, mode: Mode::Bw, size: 8, qps: 16_384, depth: 64 };
        assert!(Plan::decode(&plan.encode()).is_ok());
        for (qps, depth) in [(1 << 17, 16), (16_384, 65), (129, 8192), (u32::MAX, u32::MAX)] {
            assert!(Plan::decode(&Plan { qps, depth, ..plan }.encode()).is_err());
        }
        let plan = Plan { qps: 1024, depth: 1024, ..plan };
        for (size, fits) in [(4 << 20, true), ((4 << 20) + 1, false), (SIZE_MAX, false)] {
            assert_eq!(Plan::decode(&Plan { size, ..plan }.encode()).is_ok(), fits, "{size}");
        }
    }

    #[test]
    fn slots_do_not_overlap_and_stay_within_their_half() {
        for (size, qps) in [(1, 1), (64, 1000), (1 << 20, 1000), (1 << 30, 2)] {
            let plan = Plan { verb: Verb::Write, mode: Mode::Bw, size, qps, depth: 1 };
            let last = plan.inbox(plan.slots() as usize - 1) + u64::from(size);
            assert!(last <= plan.half() && plan.stride() >= u64::from(size));
            assert_eq!(plan.outbox(0), plan.half());
        }
    }
}
