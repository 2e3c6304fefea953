//! The order of completions. A send queue reports each signaled request exactly once, in the order
//! of posting; after an error it reports every request, flushed. A receive queue returns its
//! elements in the order of posting.

use std::collections::VecDeque;

use remora_nic::queue::Status;

use super::{Violation, demand};

const CHECKER: &str = "order";

/// A request that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ended {
    /// Its `wr_id`.
    pub id: u64,
    /// How it ended.
    pub status: Status,
}

/// The requests of one send queue whose end is not known.
#[derive(Clone, Debug, Default)]
pub struct SendOrder {
    posted: VecDeque<(u64, bool)>,
    failed: bool,
}

impl SendOrder {
    /// Records a posted request.
    pub fn post(&mut self, id: u64, signaled: bool) {
        self.posted.push_back((id, signaled));
    }

    /// The number of requests that may still be under way.
    pub fn len(&self) -> usize {
        self.posted.len()
    }

    /// Whether no request is under way.
    pub fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// The number of requests that were posted after the last signaled one.
    pub fn unsignaled(&self) -> usize {
        self.posted.iter().rev().take_while(|(_, signaled)| !signaled).count()
    }

    /// Records a completion. Returns the requests that it shows to have ended, in order.
    pub fn complete(&mut self, id: u64, status: Status) -> Result<Vec<Ended>, Violation> {
        let mut ended = Vec::new();
        while let Some((first, signaled)) = self.posted.pop_front() {
            if first == id {
                demand(signaled || status != Status::Success, CHECKER, || {
                    format!("request {id} was reported though it was not signaled")
                })?;
                demand(!self.failed || status == Status::Flushed, CHECKER, || {
                    format!("request {id} ended with {status:?} after an error")
                })?;
                self.failed |= status != Status::Success;
                ended.push(Ended { id, status });
                return Ok(ended);
            }
            demand(!signaled && !self.failed, CHECKER, || {
                format!("request {id} was reported before request {first}, which came earlier")
            })?;
            ended.push(Ended { id: first, status: Status::Success });
        }
        Err(Violation::new(CHECKER, format!("request {id} was reported but is not under way")))
    }
}

/// The posted elements of one receive queue.
#[derive(Clone, Debug, Default)]
pub struct ReceiveOrder {
    posted: VecDeque<u64>,
}

impl ReceiveOrder {
    /// Records a posted element.
    pub fn post(&mut self, id: u64) {
        self.posted.push_back(id);
    }

    /// The number of posted elements.
    pub fn len(&self) -> usize {
        self.posted.len()
    }

    /// Whether no element is posted.
    pub fn is_empty(&self) -> bool {
        self.posted.is_empty()
    }

    /// Records an element that came back.
    pub fn complete(&mut self, id: u64) -> Result<(), Violation> {
        let first = self.posted.pop_front();
        demand(first == Some(id), CHECKER, || {
            format!("receive element {id} came back before {first:?}, which was posted earlier")
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
    fn the_right_order_is_accepted() {
        let mut o = order();
        let ids = |ended: Vec<Ended>| ended.iter().map(|e| e.id).collect::<Vec<_>>();
        assert_eq!(ids(o.complete(2, Status::Success).unwrap()), [1, 2]);
        assert_eq!(ids(o.complete(3, Status::RetryExceeded).unwrap()), [3]);
        assert_eq!(ids(o.complete(4, Status::Flushed).unwrap()), [4]);
        assert!(o.is_empty());
    }

    #[test]
    fn a_wrong_order_is_found() {
        assert!(order().complete(4, Status::Success).is_err(), "2 was skipped");
        assert!(
            order().complete(1, Status::Success).is_err(),
            "a completion of an unsignaled request must be found"
        );
        assert!(
            order().complete(9, Status::Success).is_err(),
            "a completion without a request must be found"
        );
        let mut o = order();
        o.complete(1, Status::RetryExceeded).unwrap();
        assert!(
            o.clone().complete(2, Status::Success).is_err(),
            "success after an error must be found"
        );
        assert!(
            o.complete(3, Status::Flushed).is_err(),
            "a request flushed before an earlier one must be found"
        );
        let mut o = order();
        o.complete(2, Status::Success).unwrap();
        assert!(o.complete(2, Status::Success).is_err(), "twice");
    }
}
