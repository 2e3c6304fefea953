//! The way to the configuration service: requests go there, and its news come back.
//!
//! Which node becomes the primary is not decided here, nor when a lease is renewed. The rules are
//! those of [`Registry`](remora_store::replica::Registry); `etcd` and `in_process` keep them; a node proposes
//! itself in its [`Replica`](remora_store::replica::Replica) (`replica/member.rs` of the store), and
//! renews as its [`Lease`](remora_store::replica::Lease) says.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use remora_store::replica::{Event, NodeId, Request};

use crate::address::Address;
use crate::group::Group;

/// How long the thread waits for the service at a time, at most: requests wait as long.
const TICK: Duration = Duration::from_millis(2);

/// What the service says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// To the protocol.
    Event(Event),
    /// Where a node is, or that it is gone.
    Address(NodeId, Option<Address>),
    /// Why the group does not begin yet, in words.
    Waits(String),
}

/// One node's way to the configuration service; the service's contract is
/// [`ConfigurationService`](remora_store::replica::ConfigurationService).
pub trait Coordinator: Send {
    /// Asks for something, and waits until the service has it. What becomes of it is in later news.
    ///
    /// # Errors
    /// The service does not answer, in words. The request may be lost.
    fn submit(&mut self, request: Request) -> Result<(), String>;

    /// The next news, if there is any within `timeout`.
    ///
    /// # Errors
    /// The service does not answer, in words.
    fn poll(&mut self, timeout: Duration) -> Result<Option<News>, String>;

    /// The node ends, and never comes back under its number: others need not wait until the service
    /// misses it. (They find it out all the same.)
    fn depart(&mut self) {}
}

/// Carries requests and news to and fro, until the node stops.
pub(crate) fn run(
    group: &Arc<Group>,
    mut coordinator: Box<dyn Coordinator>,
    requests: &Receiver<Request>,
) {
    while !group.is_stopping() {
        let outcome = step(group, &mut *coordinator, requests);
        if note(&mut group.lock().service, outcome) {
            std::thread::sleep(TICK);
        }
    }
    // What the node said last: that it gives its lease up.
    for request in requests.try_iter() {
        if let Err(reason) = coordinator.submit(request) {
            return tracing::debug!("the configuration service is not told of the end: {reason}");
        }
    }
    // With a disk, it may be back before anybody has missed it.
    if group.lock().disk.is_none() {
        coordinator.depart();
    }
}

/// Notes why the service does not answer, until it has answered; whether it has failed just now.
fn note(service: &mut Option<String>, outcome: Result<bool, String>) -> bool {
    match outcome {
        Ok(has_answered) => {
            service.take_if(|_| has_answered);
            false
        }
        Err(reason) => {
            if service.is_none() {
                tracing::warn!("the configuration service does not answer: {reason}");
            }
            *service = Some(reason);
            true
        }
    }
}

/// Carries what there is to and fro; whether the service has answered.
fn step(
    group: &Group,
    coordinator: &mut dyn Coordinator,
    requests: &Receiver<Request>,
) -> Result<bool, String> {
    let mut has_answered = false;
    for request in without_old_renewals(requests.try_iter().collect()) {
        coordinator.submit(request)?;
        has_answered = true;
    }
    let mut timeout = TICK;
    while let Some(news) = coordinator.poll(timeout)? {
        has_answered = true;
        let mut state = group.lock();
        match news {
            News::Event(event) => state.hear(group, event),
            News::Address(node, Some(address)) => {
                state.addresses.insert(node, address);
            }
            News::Address(node, None) => {
                state.addresses.remove(&node);
            }
            News::Waits(reason) => {
                tracing::info!("the group does not begin yet: {reason}");
                state.waits = Some(reason);
            }
        }
        timeout = Duration::ZERO;
    }
    Ok(has_answered)
}

/// Requests in their order, with only the last of the renewals and of the looks: many wait where
/// the service was away, and the last one says what the others would.
fn without_old_renewals(mut requests: Vec<Request>) -> Vec<Request> {
    let kind = |request: &Request| matches!(request, Request::Renew { .. } | Request::Look);
    let mut later = requests.iter().filter(|request| kind(request)).count();
    requests.retain(|request| {
        later -= usize::from(kind(request));
        !kind(request) || later == 0
    });
    requests
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_no_answer() {
        let mut service = None;
        assert!(!note(&mut service, Ok(false)));
        assert!(note(&mut service, Err("away".to_owned())));
        assert!(!note(&mut service, Ok(false)));
        assert_eq!(service.as_deref(), Some("away"));
        assert!(note(&mut service, Err("late".to_owned())));
        assert_eq!(service.as_deref(), Some("late"));
        assert!(!note(&mut service, Ok(true)));
        assert_eq!(service, None);
    }

    #[test]
    fn of_renewals_that_wait_the_last_is_sent() {
        let renewal = |sent_ns| Request::Renew { epoch: 1, sent_ns };
        let resign = || Request::Resign { epoch: 1 };
        let waiting = vec![renewal(1), resign(), Request::Look, renewal(3), resign()];
        assert_eq!(without_old_renewals(waiting), [resign(), renewal(3), resign()]);
        assert_eq!(without_old_renewals(vec![]), []);
    }
}
