//! The transports that a world can name: how cards find out what was lost, and what decides how
//! many packets they have outstanding. All are the card's own; none is a model.

use remora_nic::Config;
use remora_nic::qp::Congestion;
use remora_nic::wire::Dialect;

/// A way to carry messages, with a name.
#[derive(Clone, Copy, Debug)]
pub struct Transport {
    /// Its name in world files.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub about: &'static str,
    /// What both cards of a connection have agreed on.
    pub dialect: Dialect,
    /// What decides how many packets are outstanding.
    pub congestion: Congestion,
    /// Changes the configuration of each card.
    pub config: fn(&mut Config),
}

/// All transports. A new one is a row here.
pub const TRANSPORTS: &[Transport] = &[
    Transport {
        name: "go-back-n",
        about: "RoCE v2 as it is: all from the first lost packet on is sent again; the window \
                halves at a mark or a loss",
        dialect: Dialect::STANDARD,
        congestion: Congestion::Aimd,
        config: |_| {},
    },
    Transport {
        name: "go-back-n-fixed",
        about: "RoCE v2 with a window that never changes: for networks with flow control",
        dialect: Dialect::STANDARD,
        congestion: Congestion::Fixed,
        config: |_| {},
    },
    Transport {
        name: "selective",
        about: "the lossy dialect: only lost packets are sent again; the window halves at a mark \
                or a loss",
        dialect: Dialect::LOSSY,
        congestion: Congestion::Aimd,
        config: |_| {},
    },
    Transport {
        name: "selective-fixed",
        about: "the lossy dialect with a window that never changes",
        dialect: Dialect::LOSSY,
        congestion: Congestion::Fixed,
        config: |_| {},
    },
    Transport {
        name: "dctcp",
        about: "the lossy dialect; the window shrinks by as much as the share of marked packets \
                says",
        dialect: Dialect::LOSSY,
        congestion: Congestion::Dctcp,
        config: |_| {},
    },
    Transport {
        name: "dcqcn",
        about: "RoCE v2 with a rate that notifications of marks cut, as cards have it",
        dialect: Dialect::STANDARD,
        congestion: Congestion::Dcqcn,
        config: |_| {},
    },
    Transport {
        name: "swift",
        about: "the lossy dialect; the window shrinks when round trips take longer than a target",
        dialect: Dialect::LOSSY,
        congestion: Congestion::Swift,
        config: |_| {},
    },
    Transport {
        name: "selective-16-paths",
        about: "the lossy dialect; each queue pair spreads its packets over 16 source ports, so \
                that ECMP takes several paths",
        dialect: Dialect::LOSSY,
        congestion: Congestion::Aimd,
        config: |config| config.paths = 16,
    },
];

impl Transport {
    /// The transport with this name.
    pub fn named(name: &str) -> Option<Transport> {
        TRANSPORTS.iter().find(|transport| transport.name == name).copied()
    }
}

impl Default for Transport {
    /// RoCE v2 as it is.
    fn default() -> Transport {
        TRANSPORTS[0]
    }
}
