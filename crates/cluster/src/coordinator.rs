//! The way to the configuration service.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use remora_store::replica::{Event, NodeId, Request};

use crate::address::Address;
use crate::group::{Group, now_ns};

/// How long the thread waits for the service at a time, at most: requests wait as long.
const TICK: Duration = Duration::from_millis(2);

/// What the service says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// To the protocol.
    Event(Event),
    /// Where a node is, or that it is gone.
    Address(NodeId, Option<Address>),
}

/// One node's way to the configuration service; the service's contract is
/// [`ConfigurationService`](remora_store::replica::ConfigurationService).
pub trait Coordinator: Send {
    /// Asks for something. What becomes of it is in later news.
    ///
    /// # Errors
    /// The service does not answer, in words. The request may be lost.
    fn submit(&mut self, request: Request) -> Result<(), String>;

    /// The next news, if there is any within `timeout`.
    ///
    /// # Errors
    /// The service does not answer, in words.
    fn poll(&mut self, timeout: Duration) -> Result<Option<News>, String>;
}

/// Keeps a node's lease, and carries requests and news to and fro, until the node stops.
pub(crate) fn run(
    group: &Arc<Group>,
    mut coordinator: Box<dyn Coordinator>,
    requests: &Receiver<Request>,
) {
    let mut renewed_ns = None;
    while !group.is_stopping() {
        let outcome = step(group, &mut *coordinator, requests, &mut renewed_ns);
        let mut state = group.lock();
        if state.service.is_none()
            && let Err(reason) = &outcome
        {
            tracing::warn!("the configuration service does not answer: {reason}");
        }
        state.service = outcome.err();
        if state.service.is_some() {
            drop(state);
            std::thread::sleep(TICK);
        }
    }
}

fn step(
    group: &Group,
    coordinator: &mut dyn Coordinator,
    requests: &Receiver<Request>,
    renewed_ns: &mut Option<u64>,
) -> Result<(), String> {
    let every = group.lock().lease.renew_every_ns();
    let sent_ns = now_ns();
    if renewed_ns.is_none_or(|last| sent_ns >= last + every) {
        *renewed_ns = Some(sent_ns);
        coordinator.submit(Request::KeepAlive { sent_ns })?;
    }
    while let Ok(request) = requests.try_recv() {
        coordinator.submit(request)?;
    }
    let mut timeout = TICK;
    while let Some(news) = coordinator.poll(timeout)? {
        let mut state = group.lock();
        match news {
            News::Event(event) => state.hear(group, event),
            News::Address(node, Some(address)) => {
                state.addresses.insert(node, address);
            }
            News::Address(node, None) => {
                state.addresses.remove(&node);
            }
        }
        timeout = Duration::ZERO;
    }
    Ok(())
}
