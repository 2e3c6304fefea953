//! Any bytes as messages for the communication manager, in any order.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use remora_nic::Psn;
use remora_nic::Time;
use remora_nic::cm::mad::{CM_QPN, DATA_LEN};
use remora_nic::cm::message::{Message, RejectReason, SidrStatus, TransportService};
use remora_nic::cm::service::PortSpace;
use remora_nic::cm::{
    AcceptParams, Cm, CmConfig, CmEvent, ConnId, ConnectRequest, ResolveRequest, SidrAnswer, SidrId,
};

use crate::Seed;

/// The port that the manager listens on.
const PORT: u16 = 7;
/// The most connections of the manager.
const CONNECTIONS: usize = 6;
/// The attributes of messages.
const ATTRIBUTES: std::ops::RangeInclusive<u16> = 0x10..=0x18;

/// The input is a list of steps: a kind, a variant, a length, and that many bytes. A step is a
/// message with valid ids, raw bytes as a message, a request by the caller, or an advance of time.
///
/// # Panics
/// If the manager panics, keeps more than its limits allow, or sends an invalid message.
pub fn mad(data: &[u8]) {
    let mut subject = Subject::new();
    let mut rest = data;
    while let [step, vary, len, tail @ ..] = rest {
        let (bytes, tail) = tail.split_at(tail.len().min(usize::from(*len)));
        rest = tail;
        match step & 7 {
            0 => subject.wish(*vary),
            1 => subject.pass(*vary),
            2 => subject.hear(bytes),
            _ => subject.tell(*step >> 3, *vary, bytes),
        }
        subject.collect();
    }
}

struct Subject {
    cm: Cm,
    now: Time,
    peer: IpAddr,
    conns: VecDeque<ConnId>,
    questions: VecDeque<SidrId>,
    /// The ids that the manager has sent to its peer.
    ids: VecDeque<[u8; 4]>,
}

impl Subject {
    fn new() -> Subject {
        let config = CmConfig {
            max_connections: CONNECTIONS,
            max_pending: 3,
            max_resolutions: 3,
            ..CmConfig::new([10, 0, 0, 2].into(), 2)
        };
        let mut cm = Cm::new(config, 1);
        for space in [PortSpace::Tcp, PortSpace::Udp] {
            cm.listen(space.service_id(PORT)).expect("no other listener has the service");
        }
        Subject {
            cm,
            now: Time(0),
            peer: [10, 0, 0, 1].into(),
            conns: VecDeque::new(),
            questions: VecDeque::new(),
            ids: VecDeque::new(),
        }
    }

    fn hear(&mut self, bytes: &[u8]) {
        self.cm.handle_mad(self.now, self.peer, CM_QPN, bytes);
    }

    /// Delivers a message of a known kind; its ids exist if `vary` says so.
    fn tell(&mut self, kind: u8, vary: u8, bytes: &[u8]) {
        let mut data = [0; DATA_LEN];
        let len = bytes.len().min(DATA_LEN);
        data[..len].copy_from_slice(&bytes[..len]);
        if vary & 1 == 0
            && let Some(id) = self.ids.get(usize::from(vary >> 4) % self.ids.len().max(1))
        {
            data[4..8].copy_from_slice(id);
        }
        let attribute = ATTRIBUTES.start() + u16::from(kind) % ATTRIBUTES.count() as u16;
        let Ok(message) = Message::from_data(attribute, &data) else { return };
        let mad = message.to_mad(u64::from(vary & 2));
        self.hear(&mad[..]);
    }

    fn pass(&mut self, vary: u8) {
        self.now = self.now + Duration::from_millis(1 << (vary & 15));
        self.cm.handle_timeout(self.now);
    }

    /// Makes a request that a caller may make; most requests are invalid at most times.
    fn wish(&mut self, vary: u8) {
        let answer = AcceptParams {
            qpn: u32::from(vary),
            starting_psn: Psn::new(1),
            responder_resources: 1,
            initiator_depth: 1,
            target_ack_delay: 0,
            rnr_retry_count: 7,
            srq: false,
            flow_control: false,
            private_data: b"yes",
        };
        let (cm, now) = (&mut self.cm, self.now);
        let of = usize::from(vary >> 4);
        let conn = self.conns.get(of % self.conns.len().max(1)).copied();
        match (vary & 15, conn) {
            (0, _) => self.connect(vary),
            (1, _) => self.resolve(),
            (2, _) => {
                let status = SidrStatus::Success;
                let yes = SidrAnswer { status, qpn: 1, qkey: 2, private_data: b"here" };
                if let Some(question) = self.questions.pop_front() {
                    let _ = cm.sidr_reply(now, question, &yes);
                }
            }
            (3 | 4, Some(conn)) => drop(cm.accept(now, conn, &answer)),
            (5 | 6, Some(conn)) => drop(cm.establish(now, conn, b"")),
            (7, Some(conn)) => drop(cm.reject(now, conn, RejectReason::CONSUMER_DEFINED, b"")),
            (8, Some(conn)) => drop(cm.mra(now, conn, vary)),
            (9, Some(conn)) => drop(cm.disconnect(now, conn, b"")),
            (10, Some(conn)) => drop(cm.disconnect_reply(now, conn, b"")),
            (11, Some(conn)) => drop(cm.notify_established(now, conn)),
            (_, Some(conn)) => drop(cm.destroy(now, conn)),
            (_, None) => {}
        }
    }

    fn connect(&mut self, vary: u8) {
        let transport = match vary >> 6 {
            0 => TransportService::Uc,
            1 => TransportService::Extended,
            _ => TransportService::Rc,
        };
        let service = PortSpace::Tcp.service_id(PORT);
        let request = ConnectRequest {
            local_port: 9,
            transport,
            private_data: b"please",
            ..ConnectRequest::new(self.peer, service, vary.into())
        };
        self.conns.extend(self.cm.connect(self.now, &request));
    }

    fn resolve(&mut self) {
        let request = ResolveRequest {
            remote: self.peer,
            service: PortSpace::Udp.service_id(PORT),
            local_port: 9,
            told: None,
            private_data: b"who?",
        };
        // An error for too many resolutions is a valid answer.
        let _ = self.cm.resolve_sidr(self.now, &request);
    }

    /// Takes the messages and events of the manager.
    fn collect(&mut self) {
        while let Some(mad) = self.cm.poll_mad() {
            let said = Message::from_mad(&mad.bytes[..]);
            let (_, message) = said.expect("a manager sends valid messages");
            let data = message.to_data();
            self.ids.push_front([data[0], data[1], data[2], data[3]]);
            self.ids.truncate(16);
        }
        while let Some(event) = self.cm.poll_event() {
            match event {
                CmEvent::ConnectRequest(request) => self.conns.push_front(request.conn),
                CmEvent::SidrRequest(question) => self.questions.push_back(question.sidr),
                _ => {}
            }
            self.conns.truncate(16);
        }
        assert!(
            self.cm.connections() <= CONNECTIONS,
            "the manager has more connections than its limit"
        );
    }
}

/// A message of each kind, with the requests that make it valid.
pub fn mads() -> Vec<Seed> {
    let kinds = ATTRIBUTES.count() as u8;
    let seed = |kind: u8| {
        let mut data = Vec::new();
        // The caller connects and resolves, and then a request with a service and an address
        // arrives.
        data.extend([0, 0xc0, 0, 0, 1, 0]);
        let mut request = [0u8; DATA_LEN];
        request[3] = 5;
        request[8..16].copy_from_slice(&PortSpace::Tcp.service_id(PORT).0.to_be_bytes());
        request[34] = 3;
        request[50] = 3;
        request[141] = 0x40;
        data.extend([3, 1, 232]);
        data.extend_from_slice(&request);
        data.extend([0, 3, 0]);
        data.extend([3 + 8 * kind, 0, 232]);
        data.extend_from_slice(&request);
        data.extend([0, 5, 0, 0, 9, 0, 1, 15, 0, 0, 12, 0]);
        Seed { name: format!("message-{kind}"), data }
    };
    (0..kinds).map(seed).collect()
}
