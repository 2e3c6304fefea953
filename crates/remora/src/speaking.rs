//! The dialect of a device's connections: what is offered, and what is spoken
//! ([`dialect`](crate::dialect)); what their service levels mean, and who has the next turn.

use std::collections::BTreeMap;
use std::net::IpAddr;

use remora_nic::TurnOrder;
use remora_nic::qp::Congestion;
use remora_nic::service_level::ServiceLevel;
use remora_nic::wire::Dialect;

use crate::device::{Device, DeviceOptions};
use crate::dialect::{DialectChoice, PATHS_MAX};
use crate::driver::Own;
use crate::queue_pair::QueuePair;

impl DeviceOptions {
    /// Chooses the dialect that the card offers. Without this option, the environment variable
    /// [`DIALECT_VARIABLE`](crate::dialect::DIALECT_VARIABLE) does.
    #[must_use]
    pub fn dialect(mut self, choice: DialectChoice) -> DeviceOptions {
        self.dialect = Some(choice);
        self
    }

    /// Spreads the packets of lossy connections to other machines over so many paths, 1 to 64, cut
    /// to a power of two. Paths differ in the source port of their packets, by which networks
    /// choose among routes; to each belongs a socket. Without this option, the environment variable
    /// [`PATHS_VARIABLE`](crate::dialect::PATHS_VARIABLE) says how many.
    #[must_use]
    pub fn paths(mut self, paths: u8) -> DeviceOptions {
        self.paths = Some(paths.clamp(1, PATHS_MAX));
        self
    }

    /// Says what a service level, 0 to 15, means to the card ([`crate::service_levels`]). Levels of
    /// which nothing is said have priority 0 and weight 1. Without this option, the environment
    /// variable [`SERVICE_LEVELS_VARIABLE`](crate::service_levels::SERVICE_LEVELS_VARIABLE) says
    /// what all mean.
    ///
    /// # Panics
    /// There is no such level.
    #[must_use]
    pub fn service_level(mut self, level: u8, means: ServiceLevel) -> DeviceOptions {
        self.service_levels.get_or_insert_default()[usize::from(level)] = means;
        self
    }

    /// Says which of the queue pairs of a client and service level has the next turn: the one that
    /// has waited longest, or the one whose message has the least left to send. Without this
    /// option, the environment variable
    /// [`TURN_ORDER_VARIABLE`](crate::service_levels::TURN_ORDER_VARIABLE) does.
    #[must_use]
    pub fn turn_order(mut self, order: TurnOrder) -> DeviceOptions {
        self.turn_order = Some(order);
        self
    }

    /// Chooses the congestion policy of reliable connections that choose none themselves
    /// ([`QpAttr::congestion`](remora_nic::qp::QpAttr::congestion)). Without this option, the
    /// environment variable [`CONGESTION_VARIABLE`](crate::dialect::CONGESTION_VARIABLE) does.
    #[must_use]
    pub fn congestion(mut self, policy: Congestion) -> DeviceOptions {
        self.congestion = Some(policy);
        self
    }
}

impl Device {
    /// How many reliable connections speak each dialect with each peer now, in the order of
    /// addresses; nothing if the card is another process's.
    pub fn dialects(&self) -> Vec<(IpAddr, Dialect, u64)> {
        let mut counts = BTreeMap::new();
        if let Some(own) = self.live.lock().as_own() {
            for (_, peer, dialect) in own.nic.speaking() {
                *counts.entry((peer, dialect.bits())).or_insert(0) += 1;
            }
        }
        let entry = |((peer, bits), count)| (peer, Dialect::from_bits_truncate(bits), count);
        counts.into_iter().map(entry).collect()
    }
}

impl QueuePair {
    /// What the queue pair speaks.
    pub fn dialect(&self) -> Dialect {
        self.query().attr.dialect.unwrap_or(Dialect::STANDARD)
    }

    /// The congestion policy that the queue pair follows.
    pub fn congestion(&self) -> Congestion {
        self.query().attr.congestion.unwrap_or_default()
    }
}

impl Own {
    /// Offers cards of this machine what suits the way of packets to them.
    pub(crate) fn choose_offers(&mut self) {
        let offers = match self.dialect {
            DialectChoice::Auto if !self.is_impaired() => Dialect::STANDARD,
            choice => choice.offers(),
        };
        self.nic.set_offers_here(offers);
    }
}
