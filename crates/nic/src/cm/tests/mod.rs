//! Two managers and a link between them.

mod crowds;
mod directed;
mod hostile;
mod life;
mod lossy;
mod offers;
mod refusals;
mod sidr;

use core::net::{IpAddr, Ipv4Addr};
use core::time::Duration;

use super::mad::CM_QPN;
use super::message::{Message, TransportService};
use super::service::PortSpace;
use super::*;
use crate::{Psn, Time};

pub(super) const PORT: u16 = 18_515;

pub(super) fn ip(last: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, last])
}

/// The same address as one of IPv6.
pub(super) fn mapped(last: u8) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, last).to_ipv6_mapped().into()
}

pub(super) fn config(last: u8) -> CmConfig {
    CmConfig { max_connections: 8, max_pending: 4, ..CmConfig::new(ip(last), u64::from(last)) }
}

pub(super) fn to_port(remote: IpAddr, port: u16, qpn: u32) -> ConnectRequest<'static> {
    ConnectRequest {
        local_port: 40_000,
        starting_psn: Psn::new(100),
        responder_resources: 4,
        initiator_depth: 2,
        private_data: b"please",
        ..ConnectRequest::new(remote, PortSpace::Tcp.service_id(port), qpn)
    }
}

pub(super) fn params(qpn: u32) -> AcceptParams<'static> {
    AcceptParams {
        qpn,
        starting_psn: Psn::new(200),
        responder_resources: 2,
        initiator_depth: 4,
        target_ack_delay: 1,
        rnr_retry_count: 7,
        srq: false,
        flow_control: false,
        private_data: b"welcome",
    }
}

/// Two managers, `a` at 10.0.0.1 and `b` at 10.0.0.2, and the time. `b` listens at [`PORT`].
pub(super) struct Pair {
    pub(super) a: Cm,
    pub(super) b: Cm,
    pub(super) now: Time,
}

pub(super) const A_QPN: u32 = 0x11;
pub(super) const B_QPN: u32 = 0x22;

impl Pair {
    pub(super) fn new() -> Pair {
        let mut pair =
            Pair { a: Cm::new(config(1), 1), b: Cm::new(config(2), 2), now: Time(1_000_000) };
        pair.b.listen(PortSpace::Tcp.service_id(PORT)).unwrap();
        pair
    }

    /// Carries one message of `a`'s to `b`, which must be there.
    pub(super) fn a_to_b(&mut self) -> Message {
        let mad = self.a.poll_mad().expect("a has something to send");
        carry(self.now, &mad, ip(1), ip(2), &mut self.b)
    }

    pub(super) fn b_to_a(&mut self) -> Message {
        let mad = self.b.poll_mad().expect("b has something to send");
        carry(self.now, &mad, ip(2), ip(1), &mut self.a)
    }

    /// Carries messages until there are none.
    pub(super) fn settle(&mut self) {
        loop {
            if let Some(mad) = self.a.poll_mad() {
                carry(self.now, &mad, ip(1), ip(2), &mut self.b);
            } else if let Some(mad) = self.b.poll_mad() {
                carry(self.now, &mad, ip(2), ip(1), &mut self.a);
            } else {
                return;
            }
        }
    }

    /// Moves the time to the next moment at which something is due.
    pub(super) fn wait(&mut self) {
        self.now = self.a.poll_timeout().min(self.b.poll_timeout());
        assert_ne!(self.now, Time::NEVER, "nothing is due");
        self.a.handle_timeout(self.now);
        self.b.handle_timeout(self.now);
    }

    /// `a` asks `b` for a connection, and `b`'s caller gets the event.
    pub(super) fn requested(&mut self) -> (ConnId, ConnId) {
        let a = self.a.connect(self.now, &to_port(ip(2), PORT, A_QPN)).unwrap();
        self.a_to_b();
        let Some(CmEvent::ConnectRequest(request)) = self.b.poll_event() else { panic!() };
        (a, request.conn)
    }

    /// As before; then `b` accepts, and `a`'s caller gets the event.
    pub(super) fn replied(&mut self) -> (ConnId, ConnId) {
        let (a, b) = self.requested();
        self.b.accept(self.now, b, &params(B_QPN)).unwrap();
        self.b_to_a();
        let Some(CmEvent::Replied(_)) = self.a.poll_event() else { panic!() };
        (a, b)
    }

    pub(super) fn established(&mut self) -> (ConnId, ConnId) {
        let (a, b) = self.replied();
        self.a.establish(self.now, a, b"go").unwrap();
        self.a_to_b();
        let Some(CmEvent::Established { .. }) = self.b.poll_event() else { panic!() };
        (a, b)
    }
}

fn carry(now: Time, mad: &OutgoingMad, src: IpAddr, dst: IpAddr, to: &mut Cm) -> Message {
    assert_eq!((mad.dst, mad.dst_qp), (dst, CM_QPN));
    to.handle_mad(now, src, CM_QPN, mad.bytes.as_slice());
    parse(mad)
}

pub(super) fn parse(mad: &OutgoingMad) -> Message {
    Message::from_mad(mad.bytes.as_slice()).expect("what is sent is well-formed").1
}

/// All messages that a manager has to send.
pub(super) fn sent(cm: &mut Cm) -> Vec<Message> {
    std::iter::from_fn(|| cm.poll_mad()).map(|mad| parse(&mad)).collect()
}

pub(super) fn events(cm: &mut Cm) -> Vec<CmEvent> {
    std::iter::from_fn(|| cm.poll_event()).collect()
}
