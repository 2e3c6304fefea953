//! The transports that a world can name: how hosts find out what was lost, and what decides how
//! many packets they have outstanding. The card's own are code that runs live; beside them stand
//! models of what others have published.

use remora_nic::Config;
use remora_nic::qp::Congestion;
use remora_nic::wire::Dialect;

use crate::selective::{IRN, SRNIC, Selective};

/// A way to carry messages, with a name.
#[derive(Clone, Copy, Debug)]
pub struct Transport {
    /// Its name in world files.
    pub name: &'static str,
    /// What it is, in a sentence.
    pub about: &'static str,
    /// What carries them.
    pub how: How,
}

/// What carries messages.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// The card that runs live.
    Card {
        /// What both cards of a connection have agreed on.
        dialect: Dialect,
        /// What decides how many packets are outstanding.
        congestion: Congestion,
        /// Changes the configuration of each card.
        config: fn(&mut Config),
    },
    /// A model.
    Published(Published),
}

/// A transport that others have published, as a model ([`crate::selective`]): hosts take no time,
/// and there is no payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Published {
    /// IRN (SIGCOMM 2018): at most as many packets outstanding as fit the network, and DCQCN.
    Irn,
    /// SRNIC (NSDI 2023): DCTCP, and software that hears of losses.
    Srnic,
}

impl Published {
    /// How it repairs losses.
    pub fn recovery(self) -> Selective {
        match self {
            Published::Irn => IRN,
            Published::Srnic => SRNIC,
        }
    }
}

const fn card(dialect: Dialect, congestion: Congestion) -> How {
    How::Card { dialect, congestion, config: |_| {} }
}

/// All transports. A new one is a row here.
pub const TRANSPORTS: &[Transport] = &[
    Transport {
        name: "go-back-n",
        about: "RoCE v2 as it is: all from the first lost packet on is sent again; the window \
                halves at a mark or a loss",
        how: card(Dialect::STANDARD, Congestion::Aimd),
    },
    Transport {
        name: "go-back-n-fixed",
        about: "RoCE v2 with a window that never changes: for networks with flow control",
        how: card(Dialect::STANDARD, Congestion::Fixed),
    },
    Transport {
        name: "selective",
        about: "the lossy dialect: only lost packets are sent again; the window halves at a mark \
                or a loss",
        how: card(Dialect::LOSSY, Congestion::Aimd),
    },
    Transport {
        name: "selective-fixed",
        about: "the lossy dialect with a window that never changes",
        how: card(Dialect::LOSSY, Congestion::Fixed),
    },
    Transport {
        name: "dctcp",
        about: "the lossy dialect; the window shrinks by as much as the share of marked packets \
                says",
        how: card(Dialect::LOSSY, Congestion::Dctcp),
    },
    Transport {
        name: "dcqcn",
        about: "RoCE v2 with a rate that notifications of marks cut, as cards have it",
        how: card(Dialect::STANDARD, Congestion::Dcqcn),
    },
    Transport {
        name: "swift",
        about: "the lossy dialect; the window shrinks when round trips take longer than a target",
        how: card(Dialect::LOSSY, Congestion::Swift),
    },
    Transport {
        name: "selective-16-paths",
        about: "the lossy dialect; each queue pair spreads its packets over 16 source ports, so \
                that ECMP takes several paths",
        how: How::Card {
            dialect: Dialect::LOSSY,
            congestion: Congestion::Aimd,
            config: |config| config.paths = 16,
        },
    },
    Transport {
        name: "irn",
        about: "a model of IRN (SIGCOMM 2018): selective repeat, at most a bandwidth-delay \
                product outstanding, and DCQCN",
        how: How::Published(Published::Irn),
    },
    Transport {
        name: "srnic",
        about: "a model of SRNIC (NSDI 2023): selective repeat by software, and DCTCP",
        how: How::Published(Published::Srnic),
    },
];

impl Transport {
    /// The transport with this name.
    pub fn named(name: &str) -> Option<Transport> {
        TRANSPORTS.iter().find(|transport| transport.name == name).copied()
    }

    /// Is only what was lost sent again?
    pub fn repeats_selectively(&self) -> bool {
        match self.how {
            How::Card { dialect, .. } => dialect.contains(Dialect::LOSSY),
            How::Published(_) => true,
        }
    }

    /// Is it a model, and not the card?
    pub fn is_model(&self) -> bool {
        matches!(self.how, How::Published(_))
    }
}

impl Default for Transport {
    /// RoCE v2 as it is.
    fn default() -> Transport {
        TRANSPORTS[0]
    }
}
