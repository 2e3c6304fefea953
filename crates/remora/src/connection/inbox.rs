//! The events of connection management that nobody has taken yet, by what they are about.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;

use remora_nic::cm::{CmEvent, ConnId, IncomingRequest, ListenerId};

/// Requests kept for listeners that do not take them.
const REQUESTS_MAX: usize = 65_536;

/// What a task may wait for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Topic {
    /// An event of a connection.
    Connection(ConnId),
    /// A request for a listener.
    Listener(ListenerId),
}

/// The events, each found at once, however many there are.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    of_connections: HashMap<ConnId, VecDeque<CmEvent>>,
    of_listeners: HashMap<ListenerId, Requests>,
    requests: usize,
}

/// The requests for a listener. The peers take turns, or one that asks thousands of times would
/// keep the others out.
#[derive(Debug, Default)]
struct Requests {
    /// Each peer's, in the order in which they came.
    by_peer: HashMap<IpAddr, VecDeque<Box<IncomingRequest>>>,
    /// The peers that have requests, the next first.
    turns: VecDeque<IpAddr>,
}

impl Inbox {
    /// Keeps an event; says what it is about, or returns it if there is no room for it. An event of
    /// nothing that a task may wait for is dropped.
    pub(crate) fn keep(&mut self, event: CmEvent) -> Result<Option<Topic>, CmEvent> {
        match event {
            CmEvent::ConnectRequest(_) if self.requests >= REQUESTS_MAX => Err(event),
            CmEvent::ConnectRequest(request) => {
                self.requests += 1;
                let listener = request.listener;
                self.of_listeners.entry(listener).or_default().add(request);
                Ok(Some(Topic::Listener(listener)))
            }
            event => Ok(event.conn().map(|conn| {
                // A connection has a few events in all, and the card limits the connections.
                self.of_connections.entry(conn).or_default().push_back(event);
                Topic::Connection(conn)
            })),
        }
    }

    /// Takes the oldest event about a connection; or a request for a listener: the oldest of the
    /// peer whose turn it is.
    pub(crate) fn take(&mut self, topic: Topic) -> Option<CmEvent> {
        match topic {
            Topic::Connection(conn) => self.take_event(conn),
            Topic::Listener(listener) => self.take_request(listener),
        }
    }

    fn take_event(&mut self, conn: ConnId) -> Option<CmEvent> {
        let events = self.of_connections.get_mut(&conn)?;
        let event = events.pop_front();
        if events.is_empty() {
            self.of_connections.remove(&conn);
        }
        event
    }

    fn take_request(&mut self, listener: ListenerId) -> Option<CmEvent> {
        let requests = self.of_listeners.get_mut(&listener)?;
        let request = requests.take();
        if requests.turns.is_empty() {
            self.of_listeners.remove(&listener);
        }
        self.requests -= usize::from(request.is_some());
        request.map(CmEvent::ConnectRequest)
    }

    /// Forgets the events of a connection that the program has dropped.
    pub(crate) fn forget(&mut self, conn: ConnId) {
        self.of_connections.remove(&conn);
    }
}

impl Requests {
    fn add(&mut self, request: Box<IncomingRequest>) {
        let peer = request.peer.ip();
        let of_peer = self.by_peer.entry(peer).or_default();
        if of_peer.is_empty() {
            self.turns.push_back(peer);
        }
        of_peer.push_back(request);
    }

    /// Takes a request of the next peer, whose next turn is after all others'.
    fn take(&mut self) -> Option<Box<IncomingRequest>> {
        let peer = self.turns.pop_front()?;
        let of_peer = self.by_peer.get_mut(&peer)?;
        let request = of_peer.pop_front();
        if of_peer.is_empty() {
            self.by_peer.remove(&peer);
        } else {
            self.turns.push_back(peer);
        }
        request
    }
}

#[cfg(test)]
mod tests {
    use remora_nic::Time;
    use remora_nic::cm::service::PortSpace;
    use remora_nic::cm::{Cm, CmConfig, ConnectRequest};

    use super::*;

    const SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));

    fn peer(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    /// A manager that listens at a port, and the listener.
    fn server() -> (Cm, ListenerId) {
        let mut server = Cm::new(CmConfig::new(SERVER, 1), 1);
        let listener = server.listen(PortSpace::Tcp.service_id(7)).unwrap();
        (server, listener)
    }

    /// The inbox of a server at which peers with these last bytes ask, in this order.
    fn asked_by(peers: &[u8]) -> (Inbox, Topic) {
        let (mut server, listener) = server();
        let topic = Topic::Listener(listener);
        let mut inbox = Inbox::default();
        for (n, last) in peers.iter().enumerate() {
            let mut cm = Cm::new(CmConfig::new(peer(*last), u64::from(*last)), n as u64);
            let qpn = n as u32 + 1;
            let request = ConnectRequest::new(SERVER, PortSpace::Tcp.service_id(7), qpn);
            cm.connect(Time::ZERO, &request).unwrap();
            let mad = cm.poll_mad().unwrap();
            server.handle_mad(Time::ZERO, peer(*last), 1, &mad.bytes[..]);
            let event = server.poll_event().unwrap();
            assert_eq!(inbox.keep(event), Ok(Some(topic)));
        }
        (inbox, topic)
    }

    /// The last bytes of the peers whose requests are taken, and their queue pairs.
    fn taken(inbox: &mut Inbox, topic: Topic) -> Vec<(IpAddr, u32)> {
        let next = || match inbox.take(topic)? {
            CmEvent::ConnectRequest(request) => Some((request.peer.ip(), request.remote_qpn)),
            other => panic!("{other:?}"),
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_peer_that_asks_often_does_not_keep_others_waiting() {
        let (mut inbox, topic) = asked_by(&[2, 2, 2, 2, 3, 4, 3]);
        let expected = [(2, 1), (3, 5), (4, 6), (2, 2), (3, 7), (2, 3), (2, 4)];
        assert_eq!(taken(&mut inbox, topic), expected.map(|(last, qpn)| (peer(last), qpn)));
        assert_eq!(inbox.requests, 0);
        assert!(inbox.of_listeners.is_empty());
    }
}
