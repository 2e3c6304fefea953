//! The order of completions: a send queue reports in the order of posting, exactly once each
//! signaled request, and after an error every request, flushed; a receive queue gives its elements
//! back in the order they were posted.

use std::collections::VecDeque;

use remora_nic::queue::Status;

use super::{Violation, demand};

const WHO: &str = "order";

/// How a request ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its `wr_id`.
    pub id: u64,
    /// How.
    pub status: Status,
}

/// The requests of one send queue that nobody knows the end of.
#[derive(Clone, Debug, Default)]
pub struct SendOrder {
    posted: VecDeque<(u64, bool)>,
    failed: bool,
}

impl SendOrder {
    /// A request was posted.
    pub fn post(&mut self, id: u64, signaled: bool) {
        self.posted.push_back((id, signaled));
    }

    /// How many may still be under way.
    pub fn len(&self) -> usize {
        self.posted.len()
    }

    /// Is none under way?
    pub fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// How many were posted since the last signaled one.
    pub fn unsignaled(&self) -> usize {
        self.posted.iter().rev().take_while(|(_, signaled)| !signaled).count()
    }

    /// A completion came; returns the requests that have thereby ended, in order.
    pub fn complete(&mut self, id: u64, status: Status) -> Result<Vec<Ended>, Violation> {
        let mut ended = Vec::new();
        while let Some((first, signaled)) = self.posted.pop_front() {
            if first == id {
                demand(signaled || status != Status::Success, WHO, || {
                    format!("request {id} was reported though it was not signaled")
                })?;
                demand(!self.failed || status == Status::Flushed, WHO, || {
                    format!("request {id} ended with {status:?} after an error")
                })?;
                self.failed |= status != Status::Success;
                ended.push(Ended { id, status });
                return Ok(ended);
            }
            demand(!signaled && !self.failed, WHO, || {
                format!("request {id} was reported before request {first}, which came earlier")
            })?;
            ended.push(Ended { id: first, status: Status::Success });
        }
        Err(Violation::new(WHO, format!("request {id} was reported but is not under way")))
    }
}

/// The elements of one receive queue.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOrder {
    posted: VecDeque<u64>,
}

impl ReceiveOrder {
    /// An element was posted.
    pub fn post(&mut self, id: u64) {
        self.posted.push_back(id);
    }

    /// How many are posted.
    pub fn len(&self) -> usize {
        self.posted.len()
    }

    /// Is none posted?
    pub fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// An element came back.
    pub fn complete(&mut self, id: u64) -> Result<(), Violation> {
        let first = self.posted.pop_front();
        demand(first == Some(id), WHO, || {
            format!("receive element {id} came back where {first:?} was due")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> SendOrder {
        let mut order = SendOrder::default();
        for (id, signaled) in [(1, false), (2, true), (3, false), (4, true)] {
            order.post(id, signaled);
        }
        order
    }

    #[test]
    fn it_accepts_what_is_right() {
        let mut o = order();
        let ids = |ended: Vec<Ended>| ended.iter().map(|e| e.id).collect::<Vec<_>>();
        assert_eq!(ids(o.complete(2, Status::Success).unwrap()), [1, 2]);
        assert_eq!(ids(o.complete(3, Status::RetryExceeded).unwrap()), [3]);
        assert_eq!(ids(o.complete(4, Status::Flushed).unwrap()), [4]);
        assert!(o.is_empty());
    }

    #[test]
    fn it_objects_to_what_is_wrong() {
        assert!(order().complete(4, Status::Success).is_err(), "2 was skipped");
        assert!(order().complete(1, Status::Success).is_err(), "1 is not signaled");
        assert!(order().complete(9, Status::Success).is_err(), "9 was never posted");
        let mut o = order();
        o.complete(1, Status::RetryExceeded).unwrap();
        assert!(o.clone().complete(2, Status::Success).is_err(), "success after an error");
        assert!(o.complete(3, Status::Flushed).is_err(), "2 was to be flushed first");
        let mut o = order();
        o.complete(2, Status::Success).unwrap();
        assert!(o.complete(2, Status::Success).is_err(), "twice");
    }
}
