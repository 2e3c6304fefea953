//! Connections by the communication manager, whose queue pairs speak what both cards offer.
//!
//! Neither the program nor its driver needs to know of that. A queue pair that is readied for the
//! peer of a connection speaks what the connection has agreed on; a reply confirms no more than its
//! queue pair can speak.

use core::net::IpAddr;

use super::Nic;
use crate::cm::{AcceptParams, Cm, CommandError, ConnId, ConnectError, ConnectRequest};
use crate::qp::Qp;
use crate::qp::state::{QpAttr, State};
use crate::time::Time;
use crate::wire::{Dialect, Transport};

/// Connections.
impl Nic {
    /// As [`Cm::connect`], for a queue pair of this card. What the card offers is offered if the
    /// queue pair exists and cannot receive yet: otherwise it speaks already.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn connect(
        &mut self,
        now: Time,
        request: &ConnectRequest<'_>,
    ) -> Result<ConnId, ConnectError> {
        let open = self.qps.get(request.local_qpn).is_some_and(is_open);
        let speaks = if open { Dialect::all() } else { Dialect::STANDARD };
        self.cm.connect_speaking(now, request, speaks)
    }

    /// As [`Cm::accept`], with a queue pair of this card. What the queue pair speaks is confirmed,
    /// or, if it cannot receive yet, what it will speak then.
    ///
    /// # Errors
    /// See [`CommandError`].
    pub fn accept(
        &mut self,
        now: Time,
        conn: ConnId,
        params: &AcceptParams<'_>,
    ) -> Result<(), CommandError> {
        let speaks = match self.qps.get(params.qpn) {
            Some(qp) if is_open(qp) => Dialect::all(),
            Some(qp) => qp.dialect,
            None => Dialect::STANDARD,
        };
        self.cm.accept_speaking(now, conn, params, speaks)
    }

    /// Offers `offers` to cards of this machine from now on
    /// ([`crate::cm::CmConfig::offers_here`]).
    pub fn set_offers_here(&mut self, offers: Dialect) {
        self.cm.set_offers_here(offers);
    }

    /// The reliable connections that can receive: the client of each ([`crate::QpInit::client`]),
    /// the address of its peer, and what it speaks.
    pub fn speaking(&self) -> impl Iterator<Item = (u16, IpAddr, Dialect)> {
        let connected = self.qps.iter().filter(|qp| is_connected(qp));
        connected.map(|qp| (qp.client, qp.path.dst, qp.dialect))
    }

    /// The dialect of a queue pair's reliable connection; `None` if it has none.
    pub fn speaks(&self, qpn: u32) -> Option<Dialect> {
        self.qps.get(qpn).filter(|qp| is_connected(qp)).map(|qp| qp.dialect)
    }
}

/// Is the queue pair an end of a reliable connection?
fn is_connected(qp: &Qp) -> bool {
    qp.transport == Transport::Rc && matches!(qp.state, State::Rtr | State::Rts | State::Sqd)
}

/// Can the queue pair not receive yet, so that what it speaks is open?
fn is_open(qp: &Qp) -> bool {
    matches!(qp.state, State::Reset | State::Init)
}

/// The attributes by which a reliable connection becomes able to receive, with what it has agreed
/// on with its peer; `None` if that is nothing.
pub(super) fn with_agreed(cm: &Cm, qp: &Qp, to: State, attr: &QpAttr) -> Option<QpAttr> {
    if to != State::Rtr || qp.transport != Transport::Rc {
        return None;
    }
    let agreed = cm.agreed(attr.path?.dst, attr.dest_qp?, qp.qpn);
    let dialect = Some(attr.dialect.unwrap_or(qp.dialect) | agreed);
    (!agreed.is_empty()).then(|| QpAttr { dialect, ..attr.clone() })
}
