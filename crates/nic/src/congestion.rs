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
