//! The policies of congestion control, by name. What they do is in `qp/congestion/`.

/// What decides how many packets a requester may have outstanding, and how fast they leave.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum Congestion {
    /// A window that halves at a sign of congestion and grows by a packet a round trip.
    #[default]
    Aimd,
    /// Always as many as the card allows: for networks in which nothing else needs the room, and to
    /// measure what losses cost by themselves.
    Fixed,
    /// A window that shrinks by as much as the share of marked packets says (RFC 8257). In the
    /// standard dialect, whose acknowledges do not count marks, a round trip with a notification
    /// counts as one whose packets were all marked.
    Dctcp,
    /// A rate that notifications of marks cut, and that recovers with time and bytes (DCQCN,
    /// SIGCOMM 2015), from [`crate::Config::link_bits_per_second`] on. In the lossy dialect the
    /// marks that acknowledges count are the notifications.
    Dcqcn,
    /// A window that shrinks when round trips take longer than a target (Swift, SIGCOMM 2020).
    Swift,
}

impl Congestion {
    /// All policies.
    pub const ALL: [Congestion; 5] = {
        use Congestion::{Aimd, Dcqcn, Dctcp, Fixed, Swift};
        [Aimd, Fixed, Dctcp, Dcqcn, Swift]
    };

    /// The policy's name, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Congestion::Aimd => "aimd",
            Congestion::Fixed => "fixed",
            Congestion::Dctcp => "dctcp",
            Congestion::Dcqcn => "dcqcn",
            Congestion::Swift => "swift",
        }
    }

    /// The policy with this name.
    pub fn named(name: &str) -> Option<Congestion> {
        Congestion::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// The figures of the policies. The defaults are those of their papers, or of cards.
///
/// The caller keeps them in their bounds; a card that is given others goes on all the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Tuning {
    /// The least time between two congestion notifications of a queue pair, in nanoseconds.
    pub notify_ns: u64,
    /// Of [`Congestion::Dctcp`].
    pub dctcp: DctcpTuning,
    /// Of [`Congestion::Dcqcn`].
    pub dcqcn: DcqcnTuning,
    /// Of [`Congestion::Swift`].
    pub swift: SwiftTuning,
}

impl Tuning {
    /// The whole, of which gains and the like are parts.
    pub const ONE: u64 = 1 << 16;
}

impl Default for Tuning {
    /// A notification in 50 µs (DCQCN, SIGCOMM 2015).
    fn default() -> Tuning {
        Tuning {
            notify_ns: 50_000,
            dctcp: DctcpTuning::default(),
            dcqcn: DcqcnTuning::default(),
            swift: SwiftTuning::default(),
        }
    }
}

/// The figures of [`Congestion::Dctcp`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DctcpTuning {
    /// The weight of a round trip's share of marks in the estimate: 1 to [`Tuning::ONE`].
    pub gain: u64,
}

impl Default for DctcpTuning {
    /// A gain of 1/16 (RFC 8257 §4.2).
    fn default() -> DctcpTuning {
        DctcpTuning { gain: Tuning::ONE / 16 }
    }
}

/// The figures of [`Congestion::Dcqcn`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DcqcnTuning {
    /// The estimate's weight of a notification, g: 1 to [`Tuning::ONE`].
    pub gain: u64,
    /// Within so many nanoseconds, one or more, a second notification cuts nothing; without one in
    /// that time, the estimate falls.
    pub decrease_ns: u64,
    /// After so many nanoseconds, one or more, the rate rises.
    pub increase_ns: u64,
    /// And after so many bytes, one or more.
    pub increase_bytes: u64,
    /// So many rises go half of the way back; then the target rises, too.
    pub fast_rises: u64,
    /// By how much it does, in bits per second.
    pub additive_bits: u64,
    /// And by how much once time and bytes both say so, in bits per second.
    pub hyper_bits: u64,
    /// The least rate, in bits per second, one or more.
    pub least_bits: u64,
}

impl Default for DcqcnTuning {
    /// The paper's figures; rises as cards have them by default, as HPCC's `run.py` says; and a
    /// rate at which a packet of 4 KiB takes a third of a millisecond at least.
    fn default() -> DcqcnTuning {
        DcqcnTuning {
            gain: Tuning::ONE / 256,
            decrease_ns: 50_000,
            increase_ns: 55_000,
            increase_bytes: 10 << 20,
            fast_rises: 5,
            additive_bits: 20_000_000,
            hyper_bits: 200_000_000,
            least_bits: 100_000_000,
        }
    }
}

/// The figures of [`Congestion::Swift`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SwiftTuning {
    /// The delay beyond the shortest round trip that is always allowed, in nanoseconds, at most
    /// a second.
    pub target_ns: u64,
    /// What small windows are allowed besides, so that many flows on one link get on (flow
    /// scaling), in nanoseconds, at most a second: nothing at a window of 100 packets, so much at
    /// a tenth of a packet, and between them by the inverse root of the window.
    pub scaling_ns: u64,
    /// By how much a delay beyond the target shrinks the window, β: up to [`Tuning::ONE`].
    pub strength: u64,
}

impl Default for SwiftTuning {
    /// The figures of htsim's `swift.cpp`: 20 µs, five times as much, and 0.8.
    fn default() -> SwiftTuning {
        SwiftTuning { target_ns: 20_000, scaling_ns: 100_000, strength: Tuning::ONE * 4 / 5 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_has_a_name_of_its_own() {
        for policy in Congestion::ALL {
            assert_eq!(Congestion::named(policy.name()), Some(policy));
        }
        assert_eq!(Congestion::named("DCTCP"), None);
    }
}
