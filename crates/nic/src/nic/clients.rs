//! Commands on clients: the programs that share a card, by numbers that the driver gives them.

use super::Nic;
use crate::chain::ChainError;
use crate::rate::RateLimits;
use crate::time::Time;

/// Clients: see [`crate::QpInit::client`].
impl Nic {
    /// Holds all queue pairs of a client together to rates, in place of those that it had. Without
    /// a rate it is as fast as its share of the card.
    ///
    /// The rates stay with the number, also while it has no queue pairs.
    ///
    /// # Errors
    /// [`ChainError::Rate`] for a rate or burst of zero.
    pub fn set_client_limits(
        &mut self,
        now: Time,
        client: u16,
        limits: RateLimits,
    ) -> Result<(), ChainError> {
        if !limits.is_valid() {
            return Err(ChainError::Rate);
        }
        let some = limits != RateLimits::default();
        let waited = self.card.clients.set(now, client, some.then_some(limits));
        for qp in self.qps.iter_mut().filter(|qp| qp.client == client) {
            qp.note_limits(&self.card);
            qp.end_passes(&mut self.card);
        }
        for qpn in waited {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.go_on(&mut self.card);
            }
        }
        Ok(())
    }

    /// Gives a client `weight` times the share of the card that others have; 0 counts as 1. The
    /// weight stays with the number.
    pub fn set_client_weight(&mut self, client: u16, weight: u16) {
        self.card.scheduler.set_weight(client, weight);
    }

    /// Makes a queue pair a client's from now on: what it does counts as that client's. Nothing
    /// happens if there is no such queue pair.
    pub fn set_qp_client(&mut self, qpn: u32, client: u16) {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.client = client;
            qp.note_limits(&self.card);
            qp.end_passes(&mut self.card);
        }
    }

    /// Lets queue pairs go on that the rates of their clients have held.
    pub(super) fn wake_clients(&mut self, now: Time) {
        while let Some(qpn) = self.card.clients.wake(now) {
            if let Some(qp) = self.qps.get_mut(qpn) {
                qp.go_on(&mut self.card);
            }
        }
    }
}
