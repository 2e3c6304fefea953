//! The events of connection management that nobody has taken yet, by what they are about.

use std::collections::{HashMap, VecDeque};

use remora_nic::cm::{CmEvent, ConnId, ListenerId};

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
    by_topic: HashMap<Topic, VecDeque<CmEvent>>,
    requests: usize,
}

impl Inbox {
    /// Keeps an event; says what it is about, or returns it if there is no room for it. An event of
    /// nothing that a task may wait for is dropped.
    pub(crate) fn keep(&mut self, event: CmEvent) -> Result<Option<Topic>, CmEvent> {
        let topic = match (&event, event.conn()) {
            (CmEvent::ConnectRequest(_), _) if self.requests >= REQUESTS_MAX => return Err(event),
            (CmEvent::ConnectRequest(request), _) => {
                self.requests += 1;
                Topic::Listener(request.listener)
            }
            // A connection has a few events in all, and the card limits the connections.
            (_, Some(conn)) => Topic::Connection(conn),
            (_, None) => return Ok(None),
        };
        self.by_topic.entry(topic).or_default().push_back(event);
        Ok(Some(topic))
    }

    /// Takes the oldest event about `topic`.
    pub(crate) fn take(&mut self, topic: Topic) -> Option<CmEvent> {
        let events = self.by_topic.get_mut(&topic)?;
        let event = events.pop_front();
        if events.is_empty() {
            self.by_topic.remove(&topic);
        }
        self.requests -= usize::from(matches!(event, Some(CmEvent::ConnectRequest(_))));
        event
    }

    /// Forgets the events of a connection that the program has dropped.
    pub(crate) fn forget(&mut self, conn: ConnId) {
        self.by_topic.remove(&Topic::Connection(conn));
    }
}
